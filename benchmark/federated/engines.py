"""The engines behind `fit`: the reference engine, and which engine a run gets."""

import os
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner, keeper_of
from benchmark.federated.process_pool import FAST, ProcessPool
from benchmark.federated.start import usable_cores
from benchmark.federated.trees import copied
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

ENGINES = ("auto", "reference", "pool")
# Local steps below which starting workers (seconds each, for importing torch) costs more than they save: "auto".
WORTH_WORKERS = 10_000


class Engine(Protocol):
    """Runs a round's jobs and yields their outcomes in job order."""

    name: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides its bits, for the record: a run that goes on is given an engine of the same settings."""
        ...

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]: ...

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]: ...

    def close(self) -> None:
        """End the engine's processes, if it has any. A `with` block does it."""
        ...


class ReferenceEngine:
    """One job after another on one device.

    `fast`: what a pool of one process would do, without that process: the same bits, and the same name in the record.
    """

    def __init__(self, environment: Environment, device: str = "cpu", *, fast: bool = False) -> None:
        self.device = device_named(device)
        self.name = "pool" if fast else "reference"
        be_deterministic(self.device)
        self._work = JobRunner(environment, device=str(self.device), fast=fast)

    @property
    def settings(self) -> Mapping[str, Any]:
        settings = {"name": self.name, "threads": torch.get_num_threads(), "bit_equal": True}
        if self.name == "pool":
            return {**settings, **FAST, "workers": 1}
        if self.device.type == "cpu":
            return settings
        # Not all of CUDA's kernels give equal bits twice (`be_deterministic`).
        return {**settings, "bit_equal": False, "device": torch.cuda.get_device_name(self.device)}

    def __enter__(self) -> "ReferenceEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to do: this engine has no processes."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """One outcome a job, in job order; a client that sits out sends nothing and took no step.

        Private state is read from `kept` when the job starts and written back when it ends.
        """
        for job in jobs:
            keeper = keeper_of(job)
            private = copied(kept.get(keeper))  # local work may change it in place
            result = self._work.run(job, round_number, private)
            if result.private is not None:
                kept[keeper] = result.private
            yield result

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]:
        """The gradient of each job's loss at the weights that it begins with.

        Private state is read from `kept`. Nothing is trained or kept. A job that would sit out has an empty dict.
        """
        for job in jobs:
            yield self._work.gradient(job, round_number, copied(kept.get(keeper_of(job))))


def device_named(name: str) -> torch.device:
    """The device of that name ("cpu", "cuda", "cuda:1"). Raises ConfigError."""
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: unknown device {name!r}; choose cpu, cuda or cuda:0")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(f"--device: {name!r}, but torch finds no CUDA device here; choose cpu")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ConfigError(f"--device: {name!r}, but the last of {count} CUDA devices is cuda:{count - 1}")
    return torch.device("cuda", device.index or 0)


def be_deterministic(device: torch.device) -> None:
    """Ask torch for fp32 without TF32, and for deterministic kernels, on CUDA.

    It has to be called before the device's context exists. Where torch has no deterministic kernel (the backward pass
    of max-pooling) it takes the other one, so a record cannot promise equal bits. Nothing is set for a CPU.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


def check_engine(name: str, workers: int | None, threads: int, device: str | None) -> None:
    """Raise ConfigError for an unknown engine, or for options that do not fit it."""
    if name == "ray":
        raise ConfigError(
            "--engine: 'ray' is withdrawn; choose pool on one machine, or share runs among many with --launcher ray"
        )
    if name not in ENGINES:
        raise ConfigError(f"--engine: unknown engine {name!r}; choose {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: {workers}; choose 1 or more")
    if threads < 1:
        raise ConfigError(f"--threads: {threads}; choose 1 or more")
    if name == "pool":
        if device not in (None, "cpu"):
            raise ConfigError(f"--device: {device!r}, but --engine pool runs on the CPU; choose --engine reference")
        if threads != 1:
            raise ConfigError(f"--threads: {threads}, but the workers of --engine pool have their own; leave it out")
    if device is not None:
        device_named(device)


def build_engine(
    name: str,
    environment: Environment,
    workers: int | None,
    threads: int,
    *,
    device: str | None = None,
) -> Engine:
    """The engine of that name.

    "auto" is the reference engine on a CUDA device where there is one, or where more than one of `threads` is asked
    for; else the pool, so that the bits are those that launchers give, however many cores there are.

    `threads` and `device` ("cuda", "cuda:1", "cpu") are the reference engine's; workers have one thread each.
    Raises ConfigError.
    """
    check_engine(name, workers, threads, device)
    processes = processes_of(name, environment.experiment, workers, threads, device)
    if processes:
        return pool(environment, processes, threads=1)
    torch.set_num_threads(threads)
    if device is None:
        device = "cuda" if name == "auto" and torch.cuda.is_available() else "cpu"
    return ReferenceEngine(environment, device)


def processes_of(name: str, experiment: Experiment, workers: int | None, threads: int, device: str | None) -> int:
    """The number of processes that the pool would have; 0 where `build_engine` gives another engine.

    A single one is this process. There are no more than a round has jobs (C and the server's), and with "auto" only
    one where starting others costs more time than it saves.
    """
    federation = experiment.federation
    if name == "auto":
        if threads != 1 or (torch.cuda.is_available() if device is None else device != "cpu"):
            return 0
        if federation.C == 1 or federation.rounds * federation.C * federation.T < WORTH_WORKERS:
            return 1
    elif name != "pool":
        return 0
    return min(workers or usable_cores(), federation.C + 1)


def engine_again(
    recorded: Mapping[str, Any], environment: Environment, workers: int | None, *, device: str | None = None
) -> Engine:
    """An engine that gives the bits of the one in a manifest.

    It has the name and threads recorded there; `workers` may be others.
    Raises ConfigError for an engine that is withdrawn.
    """
    name, threads = recorded["name"], recorded["threads"]
    if name == "pool":
        return pool(environment, workers or recorded.get("workers"), threads=threads)
    if name == "reference":
        torch.set_num_threads(threads)
        if "device" not in recorded:
            return ReferenceEngine(environment)
        return ReferenceEngine(environment, "cuda" if device in (None, "cpu") else device)
    raise ConfigError(f"this run was begun by the engine {name!r}, which is withdrawn; start it anew")


def pool(environment: Environment, workers: int | None, *, threads: int) -> Engine:
    """The pool, whose only worker is this process where `workers` is 1."""
    torch.set_num_threads(threads if workers == 1 else 1)
    if workers == 1:
        return ReferenceEngine(environment, fast=True)
    return ProcessPool(environment, workers, threads=threads)
