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
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.sharing import FAST
from benchmark.federated.start import usable_cores
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

ENGINES = ("auto", "reference", "pool", "ray")
# Local steps below which starting workers (seconds each, for importing torch) costs more than they save.
WORTH_WORKERS = 10_000


class Engine(Protocol):
    """Runs a round's jobs and yields their outcomes in job order, whatever order it worked in."""

    name: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """What decides its bits, for the record: a run that goes on is given an engine of the same settings."""
        ...

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]: ...

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]: ...

    def close(self) -> None:
        """Let go of what the engine holds (processes). A `with` block does it."""
        ...


class ReferenceEngine:
    """One job after another on one device, one reused module for each kind of local work.

    `fast`: what a pool of one process would do, without that process: the same bits, and the same name in the record.
    """

    def __init__(self, environment: Environment, device: str = "cpu", *, fast: bool = False) -> None:
        self.device = device_named(device)
        self.name = "pool" if fast else "reference"
        careful(self.device)
        self._work = JobRunner(environment, device=str(self.device), fast=fast)

    @property
    def settings(self) -> Mapping[str, Any]:
        found = {"name": self.name, "threads": torch.get_num_threads(), "bit_equal": True}
        if self.name == "pool":
            return {**found, **FAST, "workers": 1}
        if self.device.type == "cpu":
            return found
        # Not all of CUDA's kernels give equal bits twice (`careful`).
        return {**found, "bit_equal": False, "device": torch.cuda.get_device_name(self.device)}

    def __enter__(self) -> "ReferenceEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """One outcome a job, in job order; a client that sits out sends nothing and took no step.

        Private state is read from `kept` when the job starts and written back when it ends.
        """
        for job in jobs:
            result = self._work.run(job, round_number, kept.get(keeper_of(job)))
            if result.private is not None:
                kept[keeper_of(job)] = result.private
            yield result

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """For each job the gradient of its loss at the weights it receives; trains nothing and keeps nothing.

        A job that would sit out has none: an empty dict stands in its place.
        """
        for job in jobs:
            yield self._work.gradient(job, round_number)


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


def careful(device: torch.device) -> None:
    """Ask for fp32 without TF32, and for deterministic kernels, before the device's context exists.

    Where torch has no deterministic kernel (the backward pass of max-pooling) it takes the other one and does not
    refuse, so that a record cannot promise equal bits. Nothing is set for a CPU.
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
    """Raise ConfigError where there is no such engine, or it does not go with the rest."""
    if name not in ENGINES:
        raise ConfigError(f"--engine: unknown engine {name!r}; choose {', '.join(ENGINES)}")
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers: {workers}; choose 1 or more")
    if threads < 1:
        raise ConfigError(f"--threads: {threads}; choose 1 or more")
    if name in ("pool", "ray"):
        if device not in (None, "cpu"):
            raise ConfigError(f"--device: {device!r}, but --engine {name} runs on the CPU; choose --engine reference")
        if threads != 1:
            raise ConfigError(f"--threads: {threads}, but the workers of --engine {name} have their own; leave it out")
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
    """The engine of that name. "auto": the reference engine on a CUDA device where there is one, else the process pool
    where there are cores and enough jobs for it. A pool of one worker is this process.

    `threads` and `device` ("cuda", "cuda:1", "cpu") are the reference engine's; the threads of workers follow from
    `layout`. Raises ConfigError.
    """
    check_engine(name, workers, threads, device)
    if name == "ray":
        torch.set_num_threads(1)  # this process averages and evaluates
        return ray_engine(environment, workers, threads=1)
    if name == "pool" or needs_workers(name, environment.experiment, workers, threads, device=device):
        return pool(environment, *layout(environment.experiment.federation.C, workers))
    torch.set_num_threads(threads)
    if device is None:
        device = "cuda" if name == "auto" and torch.cuda.is_available() else "cpu"
    return ReferenceEngine(environment, device)


def engine_again(
    recorded: Mapping[str, Any],
    environment: Environment,
    workers: int | None,
    *,
    name: str = "auto",
    device: str | None = None,
) -> Engine:
    """An engine that gives the bits of the one in a manifest. `workers` may be others than they were, their threads
    not. The pool and Ray give the same bits: which of the two it is, `name` decides.

    Raises ConfigError for an engine that is no longer there.
    """
    began, threads = recorded["name"], recorded["threads"]
    if began == "reference":
        torch.set_num_threads(threads)
        if "device" not in recorded:
            return ReferenceEngine(environment)
        return ReferenceEngine(environment, "cuda" if device in (None, "cpu") else device)
    if began not in ("pool", "ray") or not recorded.items() >= FAST.items():
        raise ConfigError(f"this run was begun by the engine {began!r}, which is no longer there; start it anew")
    torch.set_num_threads(1)
    if name == "ray":
        return ray_engine(environment, workers, threads=threads)
    return pool(environment, workers or (None if began == "ray" else recorded.get("workers")), threads)


def pool(environment: Environment, workers: int | None, threads: int) -> Engine:
    """Processes; for a single one this one does its work."""
    if workers == 1:
        torch.set_num_threads(threads)
        return ReferenceEngine(environment, fast=True)
    torch.set_num_threads(1)
    return ProcessPool(environment, workers, threads=threads)


def ray_engine(environment: Environment, workers: int | None, *, threads: int) -> Engine:
    from benchmark.federated.ray_engine import RayEngine

    return RayEngine(environment, workers, threads=threads)


def needs_workers(
    name: str, experiment: Experiment, workers: int | None, threads: int, *, device: str | None = None
) -> bool:
    """Whether `build_engine` starts processes, told before there is an environment."""
    if name == "auto":
        on_cuda = torch.cuda.is_available() if device is None else device != "cpu"
        return threads == 1 and not on_cuda and suits_workers(experiment, workers)
    return name == "pool" and workers != 1


def suits_workers(experiment: Experiment, workers: int | None) -> bool:
    """Two or more processes, two or more jobs a round, and work beyond `WORTH_WORKERS` steps."""
    federation = experiment.federation
    steps = federation.rounds * federation.C * federation.T
    return (workers or usable_cores()) > 1 and federation.C > 1 and steps >= WORTH_WORKERS


def layout(C: int, workers: int | None) -> tuple[int, int]:
    """Workers, and threads of each: one a core, but no more workers than a round has jobs (C and the server's)."""
    cores, jobs = workers or usable_cores(), C + 1
    return (cores, 1) if jobs >= cores else (jobs, cores // jobs)
