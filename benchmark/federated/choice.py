"""Which engine a run gets: the one asked for, the one that suits the work and the machine, or the one it began with."""

from collections.abc import Mapping
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.processes import usable_cores
from benchmark.federated.workers import CpuEngine

ENGINES = ("auto", "reference", "pool")
# Local steps below which starting workers (seconds each, for importing torch) costs more than they save.
WORTH_WORKERS = 10_000


def build_engine(
    name: str,
    environment: Environment,
    workers: int | None,
    threads: int,
    *,
    confident_only: bool = True,
    device: str | None = None,
) -> Engine:
    """The engine of that name. "auto": the reference engine on a CUDA device where there is one, else worker processes
    where there are cores and enough jobs for them.

    `threads` and `device` ("cuda", "cuda:1", "cpu") are the reference engine's; the threads of workers follow from
    `layout`. Raises ConfigError.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine: unknown engine {name!r}; choose {', '.join(ENGINES)}")
    if name == "auto" and device is None and torch.cuda.is_available():
        device = "cuda"
    if name == "pool":
        if device not in (None, "cpu"):
            raise ConfigError(f"--device: {device!r}, but --engine pool runs on the CPU; choose --engine reference")
        if threads != 1:
            raise ConfigError(f"--threads: {threads}, but the workers of --engine pool have their own; leave it out")
    if needs_workers(name, environment.experiment, workers, threads, device=device):
        torch.set_num_threads(1)  # this process averages and evaluates
        count, each = layout(environment.experiment.federation.C, workers)
        return CpuEngine(environment, count, threads=each, confident_only=confident_only)
    torch.set_num_threads(threads)
    return ReferenceEngine(environment, device or "cpu")


def engine_again(
    recorded: Mapping[str, Any], environment: Environment, workers: int | None, *, device: str | None = None
) -> Engine:
    """An engine that gives the bits of the one in a manifest. `workers` may be others than they were, their threads
    not.

    A record without `plain` is the reference engine's, or older than the fast local step: its bits were the
    reference's. Older records call the pool "cpu". Raises ConfigError for an engine that is no longer there.
    """
    name, threads = recorded["name"], recorded["threads"]
    if name not in ("reference", "pool", "cpu"):
        raise ConfigError(f"this run was begun by the engine {name!r}, which is no longer there; start it anew")
    if name == "reference" or "plain" not in recorded:
        torch.set_num_threads(threads)
        if "device" not in recorded:
            return ReferenceEngine(environment)
        return ReferenceEngine(environment, "cuda" if device in (None, "cpu") else device)
    torch.set_num_threads(1)
    return CpuEngine(
        environment,
        workers or recorded.get("workers"),
        threads=threads,
        confident_only=recorded["confident_only"],
        plain=recorded["plain"],
    )


def needs_workers(
    name: str, experiment: Experiment, workers: int | None, threads: int, *, device: str | None = None
) -> bool:
    """Whether `build_engine` gives the process pool, told before there is an environment."""
    if name == "auto":
        on_cuda = torch.cuda.is_available() if device is None else device != "cpu"
        return threads == 1 and not on_cuda and suits_workers(experiment, workers)
    return name == "pool"


def suits_workers(experiment: Experiment, workers: int | None) -> bool:
    """Two or more processes, two or more jobs a round, and work beyond `WORTH_WORKERS` steps."""
    federation = experiment.federation
    steps = federation.rounds * federation.C * federation.T
    return (workers or usable_cores()) > 1 and federation.C > 1 and steps >= WORTH_WORKERS


def layout(C: int, workers: int | None) -> tuple[int, int]:
    """Workers, and threads of each: one a core, but no more workers than a round has jobs (C and the server's)."""
    cores, jobs = workers or usable_cores(), C + 1
    return (cores, 1) if jobs >= cores else (jobs, cores // jobs)
