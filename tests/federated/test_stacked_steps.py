"""A local step of several jobs waits for nothing and takes about as many operations as that of one job.

python -m tests.federated.test_stacked_steps      operations per tick and per job of each kind, M = 10 and 64
"""

import contextlib
import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from benchmark.data.partition import Iid
from benchmark.experiment import Experiment
from benchmark.federated import jobs
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.local import LocalModule, train
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.federated.stacked.group import Group
from benchmark.federated.stacked.layers import Masks
from benchmark.federated.stacked.log import Log
from benchmark.federated.stacked.runner import GroupRunner
from benchmark.federated.stacked.shared import Shared
from benchmark.federated.stacked.tick import Inputs, StackedState, Tick
from tests.federated.accelerator import DEVICE, Accelerator
from tests.federated.test_replay import BY_PASSES, Operations, copied, tensors_in
from tests.federated.test_stacked import MOST, STACKING, longer
from tests.methods.golden import FOLDER, TRACES, trace

# The first trace of each method, and others with steps of their own; the rest only with the slow tests.
KINDS = {
    *{type(TRACES[name].method): name for name in reversed(STACKING)}.values(),
    "feddure-released",
    "rscfed-released",
    "semifl-static-batch-norm",
    "fedmatch-every-client",
    "crl-batch-norm",
}
NAMES = [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in STACKING]
TABLE = ("crl-fedavg", "semifl", "flfl", "fedprox-fixmatch", "fedswitch", "fedmatch", "supervised-fl-everywhere")
MOST_OPERATIONS = 1.6  # of a step of several jobs, per operation of a step of one
NO_KERNEL = {"detach", "lift_fresh", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "alias"}


class OnAccelerator(StackedEngine):
    """The stacked engine on the pretended device."""

    def __init__(self, environment: Environment) -> None:
        self.device = DEVICE
        self.runner = GroupRunner(environment, device=DEVICE.type, shared=Shared(most=MOST))
        self._seed = environment.experiment.seed
        self._order = torch.contiguous_format


@contextlib.contextmanager
def watched_steps(accelerator: Accelerator) -> Iterator[None]:
    """Let the accelerator watch from a group's first step in float32 to its log, which is read once."""
    step, read = Group.step, Log.of_each

    def watched(self: Group, at: Any, batches: Any, number: int) -> Any:
        first = next(iter(next(iter(self.state.trainable.values())).values()))
        if first.dtype == torch.float64:  # the guard's step
            return step(self, at, batches, number)
        accelerator.training = True
        with accelerator.step(type(self._update).__name__):
            return step(self, at, batches, number)

    def of_each(self: Log, M: int) -> Any:
        accelerator.training = False
        return read(self, M)

    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # `double` cannot set the data of such tensors
    try:
        with mock.patch.object(Group, "step", watched), mock.patch.object(Log, "of_each", of_each):
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)


@pytest.mark.parametrize("name", NAMES)
def test_steps_of_several_jobs_wait_for_nothing(name):
    """From a group's first step on, views included, until its log is read. The numbers are the CPU's."""
    environment = prepare(TRACES[name])
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    with Accelerator() as accelerator, watched_steps(accelerator):
        engine = OnAccelerator(environment)
        module = FederatedModule(environment, engine)
        lines = trace(TRACES[name], module, (1,))
        if not engine.runner.counts.together:
            lines += trace(TRACES[name], module, (2,))
    assert lines == [pytest.approx(line, rel=2e-4, abs=1e-7) for line in golden[: len(lines)]]
    assert engine.runner.counts.together and not engine.runner.counts.reasons
    assert accelerator.steps and not accelerator.waits


class Count(TorchDispatchMode):
    """Counts operations that launch a kernel on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += not func.is_view and func.overloadpacket.__name__ not in NO_KERNEL
        return func(*args, **(kwargs or {}))


@dataclass(kw_only=True)
class Counted:
    """Operations of the steps of one kind of job: one batch, with all its losses."""

    alone: float = 0.0
    together: dict[int, float] = field(default_factory=dict)  # by the number of jobs, the most that were counted
    with_inputs: dict[int, float] = field(default_factory=dict)  # also stacking batches, and jobs that are left out


def play_until_together(environment: Environment) -> int:
    """Train until jobs have trained together, which some methods' warm-up delays. Return the number of rounds."""
    engine = StackedEngine(environment, most=MOST)
    module = FederatedModule(environment, engine)
    for number in range(1, environment.experiment.federation.rounds + 1):
        module.training_step(number, 0)
        if engine.runner.counts.together:
            return number
    raise AssertionError("no jobs trained together")


def counted(experiment: Experiment) -> dict[str, Counted]:
    """Train by both engines; return the operations by kind of job."""
    environment = prepare(experiment)
    kinds = defaultdict[str, Counted](Counted)
    take, step = Tick.take, Group.step

    def trained(module: LocalModule, batches: Any) -> Any:
        listed = list(batches)
        helpers = [name for name in module.frozen if name.startswith("helper")]
        kind = " ".join((type(module.update).__name__, *listed[0].streams, *helpers))
        with Count() as count:
            momentum = train(module, listed)
        kinds[kind].alone = count.number * len(module.update.phases) / len(listed)
        return momentum

    inner: list[int] = []

    def taken(self: Tick, *arguments: Any) -> Any:
        with Count() as count:
            results = take(self, *arguments)
        inner.append(count.number)
        return results

    def stepped(self: Group, at: Any, batches: Any, number: int) -> Any:
        member = self._members[0]
        helpers = [name for name in member.local.frozen if name.startswith("helper")]
        kind = " ".join((type(member.job.update).__name__, *batches[0][0].streams, *helpers))
        with Count() as count:
            results = step(self, at, batches, number)
        noted = kinds[kind]
        M = len(at)
        noted.together[M] = max(noted.together.get(M, 0), inner[-1])
        noted.with_inputs[M] = max(noted.with_inputs.get(M, 0), count.number)
        return results

    with mock.patch.object(Tick, "take", taken), mock.patch.object(Group, "step", stepped):
        rounds = play_until_together(environment)
    with mock.patch.object(jobs, "train", trained):
        reference = FederatedModule(environment, ReferenceEngine(environment))
        for number in range(1, rounds + 1):
            reference.training_step(number, 0)
    return {kind: operations for kind, operations in kinds.items() if operations.together}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_several_jobs_takes_few_more_operations_than_that_of_one(name):
    kinds = counted(longer(TRACES[name], 2))
    assert kinds
    for operations in kinds.values():
        most = MOST_OPERATIONS * operations.alone
        assert 0 < max(operations.together.values()) <= most


@dataclass(kw_only=True)
class Snapshot:
    """Hold what one step of several jobs began with, as copies."""

    tick: Tick
    number: int
    tree: dict[str, Any]  # the state, and what the step was given
    shared: Any

    def key(self) -> str:
        leaves, layout = tree_flatten(self.tree)
        return (
            f"{id(self.tick)} {layout} {[tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in leaves]}"
        )

    def taken(self, tree: dict[str, Any]) -> list[Tensor]:
        """Take the step from these tensors, and return all that is left."""
        state = StackedState(**tree["state"], shared=self.shared)
        given = {name: tree[name] for name in ("batch", "drawn", "rates")}
        results = self.tick.take(state, Inputs(**given, number=self.number), Masks([]))
        return tensors_in([state.trees(), [[loss_M, dict(aux)] for loss_M, aux in results]])

    def copied(self) -> dict[str, Any]:
        tree: dict[str, Any] = tree_map(copied, self.tree)
        return tree


def snapshots_of(experiment: Experiment) -> list[Snapshot]:
    """Train a round and keep what each step of several jobs began with."""
    environment = prepare(experiment)
    seen = list[Snapshot]()
    take = Tick.take

    def taken(self: Tick, state: StackedState, inputs: Inputs, masks: Masks) -> Any:
        first = next(iter(next(iter(state.trainable.values())).values()))
        if first.dtype != torch.float64:  # the guard's step
            rates = [torch.as_tensor(rate, dtype=first.dtype) for rate in inputs.rates]  # else a number of the record
            tree = {"state": state.trees(), "batch": inputs.batch, "drawn": inputs.drawn, "rates": rates}
            seen.append(
                Snapshot(tick=self, number=inputs.number, tree=tree_map(copied, tree), shared=dict(state.shared))
            )
        return take(self, state, inputs, masks)

    with mock.patch.object(Tick, "take", taken):
        play_until_together(environment)
    return seen


def repeats(snapshots: list[Snapshot]) -> tuple[int, set[str]]:
    """Record the first step of each kind, repeat it for the others; return their number and the updates that differ."""
    kinds = defaultdict[str, list[Snapshot]](list)
    for snapshot in snapshots:
        kinds[snapshot.key()].append(snapshot)
    repeated = 0
    wrong = set()
    for first, *others in kinds.values():
        tree = first.copied()
        with Operations(tensors_in(tree)) as operations:
            left = first.taken(tree)
        wanted = [operations.noted(tensor) for tensor in left]
        for other in others:
            expected, found = other.taken(other.copied()), operations.repeat(tensors_in(other.copied()), wanted)
            repeated += 1
            if not all(torch.equal(*pair) for pair in zip(found, expected, strict=True)):
                wrong.add(type(other.tick._update).__name__)
    return repeated, wrong


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_step_of_several_jobs_repeats_with_other_values(name):
    """As a CUDA graph repeats it: a list of operations, with the values of the steps that follow."""
    trace = longer(TRACES[name], 2, T=3)
    repeated, wrong = repeats(snapshots_of(trace))
    assert repeated > 0 and wrong <= set(BY_PASSES.get(name, []))  # its branch may not come in three steps


def with_clients(name: str, M: int) -> Experiment:
    """Return the trace with M clients, all in each round."""
    known = TRACES[name]
    return replace(longer(known, 2, K=M, C=M), partition=Iid())


def main() -> None:
    """Print operations per step of one job, and per step of M jobs and job."""
    warnings.simplefilter("ignore")
    print(f"{'trace, kind of job':<64}{'one job':>8}{'M = 10':>8}{'a job':>7}{'M = 64':>8}{'a job':>7}")
    for name in TABLE:
        columns: dict[str, list[float]] = {}
        for M in (10, 64):
            for kind, operations in counted(with_clients(name, M)).items():
                most = max(operations.together)
                columns.setdefault(kind, [operations.alone]).extend((operations.together[most], most))
        for kind, (alone, *rest) in columns.items():
            cells = [f"{value:>8.0f}{value / M:>7.1f}" for value, M in zip(rest[::2], rest[1::2], strict=True)]
            print(f"{f'{name}, {kind}':<64}{alone:>8.0f}{''.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
