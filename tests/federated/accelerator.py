"""Simulate an accelerator: tensors of the device "meta" that have values, and a list of operations that a real one
would wait for.

The code under test takes the path that it takes on a GPU: it asks for the tensors' device, and moves them. Every
operation passes `Accelerator`, which computes it on the host, and refuses tensors of both devices in one operation as
CUDA does.
"""

import contextlib
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from benchmark.federated import jobs
from benchmark.federated.batches import LocalBatch
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner
from benchmark.federated.local import LocalModule
from benchmark.federated.trees import moved
from benchmark.methods.protocol import Job, Outcome, Tree

DEVICE = torch.device("meta")
# What gives the host a number, or a tensor whose shape depends on values: the host waits for the device.
READS = {"_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "bincount", "median"}
NOT_COUNTED = {"detach", "lift_fresh", "empty", "empty_like"}  # no kernel


class OnDevice(Tensor):
    """A tensor of the device, with its values in `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnDevice":
        return Tensor._make_wrapper_subclass(
            cls,
            host.shape,
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=DEVICE,
        )

    def __init__(self, host: Tensor) -> None:
        self.host = host

    def tolist(self) -> Any:
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise AssertionError(f"{func} on the pretended device outside of `Accelerator`")


class Accelerator(TorchDispatchMode):
    """While it is entered, `DEVICE` can be used. What it notes is of local training alone, from its first batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.training = self.in_step = False
        self.waits: Counter[str] = Counter()  # in local steps, and between them
        self.sent: Counter[bool] = Counter()  # copies to the device for which nobody waits, in local steps or not
        self.kind = ""  # of the local step: its update, the streams of its batch, the loss where there are several
        self.steps: Counter[str] = Counter()  # by kind
        self.operations: Counter[str] = Counter()  # by kind: those that launch a kernel

    def __enter__(self) -> "Accelerator":
        self._patches = contextlib.ExitStack()
        tensor = torch.tensor
        supported = ["cpu", "meta"]

        def made_and_sent(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
            made = tensor(*args, **kwargs)
            return made if device is None else made.to(device)

        for owner, name, new in (
            (torch, "tensor", made_and_sent),
            (_foreach_utils, "_get_foreach_kernels_supported_devices", lambda: supported),
            (_foreach_utils, "_foreach_supported_types", [Tensor, OnDevice]),
            (sys.modules["torch.optim.optimizer"], "_get_fused_kernels_supported_devices", lambda: supported),
            (jobs, "train", lambda module, batches, train=jobs.train: train(module, self._stepped(module, batches))),
        ):
            self._patches.enter_context(mock.patch.object(owner, name, new))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._patches.close()
        super().__exit__(*error)

    def _stepped(self, module: LocalModule, batches: Iterable[LocalBatch]) -> Iterator[LocalBatch]:
        """Yield the batches; a local step is everything between two batches."""
        update = module.update
        self.training = True
        for batch in batches:
            phase = () if len(update.phases) == 1 else (update.phases[batch.phase],)
            helpers = (name for name in module.frozen if name.startswith("helper"))
            with self.step(" ".join((type(update).__name__, *batch.streams, *phase, *helpers))):
                yield batch
        self.training = False

    @contextlib.contextmanager
    def step(self, kind: str) -> Iterator[None]:
        """Enter a local step of this kind."""
        self.in_step, self.kind, before = True, kind, self.training
        self.training = True
        self.steps[kind] += 1
        yield
        self.in_step, self.training = False, before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        assert not any(type(value) is Tensor and value.device == DEVICE for value in given), (
            f"{name}: copied from a list"
        )
        here = [value for value in given if isinstance(value, OnDevice)]
        to_device = bool(here)
        if kwargs.get("device") is not None:
            to_device = torch.device(kwargs["device"]).type == DEVICE.type
            kwargs["device"] = torch.device("cpu") if to_device else kwargs["device"]
        self._judge(func, name, given, here, to_device, args, kwargs)
        result = func(*tree_map(_host, args), **tree_map(_host, kwargs))
        if not to_device or (name == "copy_" and not isinstance(args[0], OnDevice)):
            return args[0] if name == "copy_" else result
        known = {id(value.host): value for value in here}

        def placed(value: Any) -> Any:
            return known.get(id(value), OnDevice(value)) if isinstance(value, Tensor) else value

        wrapped = tree_map(placed, result)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)

    def _judge(
        self, func: Any, name: str, given: list[Tensor], here: list[OnDevice], to_device: bool, args: Any, kwargs: Any
    ) -> None:
        """Refuse what CUDA refuses, and note what a local step costs."""
        copies = name in ("_to_copy", "copy_")
        crosses = copies and (0 < len(here) < len(given) or to_device != bool(here))
        if not copies and here and any(value.dim() for value in given if not isinstance(value, OnDevice)):
            assert name in ("index", "index_put_", "index_put"), f"{name}: tensors of both devices"
            crosses = True
        if not self.training:
            return
        by_mask = name.startswith("index") and any(
            value.dtype in (torch.bool, torch.uint8) for value in tree_leaves(args[1]) if isinstance(value, Tensor)
        )
        without_wait = crosses and to_device and (kwargs.get("non_blocking") or args[2:] == (True,))
        self.sent[self.in_step] += bool(without_wait)
        if here and (by_mask or name in READS) or (crosses and not without_wait):
            self.waits[f"{name} at {_place()}"] += 1
        if self.in_step and to_device and not func.is_view and name not in NOT_COUNTED:
            self.operations[self.kind] += 1


def _host(value: Any) -> Any:
    return value.host if isinstance(value, OnDevice) else value


def _place() -> str:
    """Return the innermost line of the suite's own code."""
    lines = [frame for frame in traceback.extract_stack() if "/benchmark/" in frame.filename]
    return f"{lines[-1].filename.rpartition('/benchmark/')[2]}:{lines[-1].lineno}" if lines else "?"


class OnAccelerator(ReferenceEngine):
    """The reference engine on the pretended device."""

    def __init__(self, environment: Environment) -> None:
        self.device = DEVICE
        self._work = JobRunner(environment, device=DEVICE.type, fast=True)


class InAWorker(OnAccelerator):
    """As if each job ran in another process, which is sent everything from the host and sends it there."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        host = torch.device("cpu")
        for job in jobs:
            held = {name: value for name, value in vars(job.update).items() if isinstance(value, Tensor)}
            sent = replace(job, receives=moved(job.receives, host), update=replace(job.update, **moved(held, host)))  # type: ignore[type-var]
            (outcome,) = super().fit([sent], round_number, kept)
            kept.update(moved(dict(kept), host))
            yield replace(outcome, sends=moved(outcome.sends, host))
