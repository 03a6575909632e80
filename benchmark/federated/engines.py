"""The engines behind `fit`: the reference engine, and which engine a run gets."""

import os
import warnings
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

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


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What `fssl run` says of the engine. Raises ConfigError for an unknown one, or for options that do not fit it.

    "auto" is the reference engine on a CUDA device where there is one, or where more than one thread is asked for;
    else the pool, so that the bits are those that launchers give, however many cores there are.
    """

    engine: str = "reference"
    workers: int | None = None  # processes of the pool, of one thread each; None: one for each core. They move no bit
    threads: int = 1  # of a tensor operation of the reference engine
    device: str | None = None  # of the reference engine: "cpu", "cuda" or "cuda:1"

    def __post_init__(self) -> None:
        if self.engine == "ray":
            raise ConfigError(
                "--engine: 'ray' is withdrawn; choose pool on one machine, or share runs among many with --launcher ray"
            )
        if self.engine not in ENGINES:
            raise ConfigError(f"--engine: unknown engine {self.engine!r}; choose {', '.join(ENGINES)}")
        for name, count in (("workers", self.workers), ("threads", self.threads)):
            if count is not None and count < 1:
                raise ConfigError(f"--{name}: {count}; choose 1 or more")
        if self.engine == "pool" and self.device not in (None, "cpu"):
            raise ConfigError(
                f"--device: {self.device!r}, but --engine pool runs on the CPU; choose --engine reference"
            )
        if self.engine == "pool" and self.threads != 1:
            raise ConfigError(
                f"--threads: {self.threads}, but the workers of --engine pool have their own; leave it out"
            )
        if self.device is not None:
            device_named(self.device)

    def as_recorded(self, manifest: Mapping[str, Any]) -> Self:
        """The same options, but for what decides the bits: that is as in a run's manifest, where it names an engine.

        Raises ConfigError for an engine that is withdrawn.
        """
        settings = manifest.get("engine")
        if not settings:
            return self
        name = settings["name"]
        if name == "pool":
            return replace(self, engine=name, workers=self.workers or settings.get("workers"), threads=1, device=None)
        if name != "reference":
            raise ConfigError(f"this run was begun by the engine {name!r}, which is withdrawn; start it anew")
        device = "cpu"
        if "device" in settings:
            device = "cuda" if self.device in (None, "cpu") else self.device
        return replace(self, engine=name, threads=settings["threads"], device=device)

    def processes(self, experiment: Experiment) -> int:
        """The number of processes of the pool, where a single one is this process; 0 for the reference engine.

        There are no more than a round has jobs (C and the server's), and with "auto" only one where starting others
        costs more time than it saves.
        """
        federation = experiment.federation
        if self.engine == "auto":
            on_cuda = torch.cuda.is_available() if self.device is None else self.device != "cpu"
            if on_cuda or self.threads != 1:
                return 0
            if federation.C == 1 or federation.rounds * federation.C * federation.T < WORTH_WORKERS:
                return 1
        elif self.engine == "reference":
            return 0
        return min(self.workers or usable_cores(), federation.C + 1)


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
        """End the engine's processes, if it has any."""
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


def build_engine(options: EngineOptions, environment: Environment) -> Engine:
    """The engine that the options choose. Sets the threads of this process."""
    torch.set_num_threads(options.threads)
    processes = options.processes(environment.experiment)
    if processes > 1:
        return ProcessPool(environment, processes)
    if processes == 1:
        return ReferenceEngine(environment, fast=True)
    device = options.device
    if device is None:
        device = "cuda" if options.engine == "auto" and torch.cuda.is_available() else "cpu"
    return ReferenceEngine(environment, device)
