"""Which engine a run gets: the one asked for, the one that suits the work and the machine, or the one it began with."""

from collections.abc import Mapping
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.distributed import DistributedEngine, Identity
from benchmark.federated.engines import PLAIN, Engine, ReferenceEngine, Speed
from benchmark.federated.environment import Environment
from benchmark.federated.gpu import GpuEngine, device_named
from benchmark.federated.processes import usable_cores
from benchmark.federated.ranks import Place, Ranks, place_of
from benchmark.federated.workers import CpuEngine

ENGINES = ("auto", "reference", "cpu", "distributed", "gpu")
# Local steps below which starting workers (seconds each, for importing torch) costs more than they save.
WORTH_WORKERS = 10_000


def place_among_ranks(name: str, environ: Mapping[str, str]) -> Place | None:
    """Where the engine of that name is to run on the ranks that torchrun started: this process's place among them.

    "auto" does where there are two or more. Raises ConfigError where the engine and the environment do not agree.
    """
    place = place_of(environ)
    if name == "distributed" and place is None:
        raise ConfigError("--engine: 'distributed' without ranks; `torchrun --nproc-per-node 2 ...` would be right")
    if name in ("reference", "cpu") and place is not None and place.size > 1:
        raise ConfigError(
            f"--engine: {name!r} on {place.size} ranks, each of which would do all; 'distributed' is right"
        )
    return place if place is not None and (name == "distributed" or place.size > 1) else None


def build_engine(
    name: str,
    environment: Environment,
    workers: int | None,
    threads: int,
    *,
    confident_only: bool = True,
    ranks: Ranks | None = None,
    identity: Identity | None = None,
    device: str | None = None,
    gpu_candidate: str = "measured",
) -> Engine:
    """The engine of that name. "auto": gpu where there is a CUDA device, else worker processes where there are cores
    and enough jobs for them.

    `threads` are the reference engine's and those of ranks; those of workers follow from `layout`. `ranks` that have
    met are what "distributed" and "auto" run on, once each has the same `identity`. `device` ("cuda", "cuda:1"; "cpu"
    runs gpu's steps without a GPU) and `gpu_candidate` are for gpu alone. Raises ConfigError.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine: {name!r}; one of {', '.join(ENGINES)} would be right")
    if ranks is not None:
        if workers is not None:
            raise ConfigError(f"--workers: {workers} with ranks, of which each does one job at a time; none is right")
        torch.set_num_threads(threads)
        return DistributedEngine(environment, ranks, identity or {}, Speed(confident_only=confident_only))
    if name == "distributed":
        raise ConfigError("engine: 'distributed' needs ranks that have met (benchmark.federated.ranks.join)")
    on_cuda = device is not None and device != "cpu"
    if name == "gpu" or (name == "auto" and suits_gpu(device)):
        return GpuEngine(environment, device_named(device), gpu_candidate)
    if on_cuda:
        raise ConfigError(
            f"--device: {device!r} with --engine {name}, which runs on the CPU; --engine gpu would be right"
        )
    if gpu_candidate != "measured":
        raise ConfigError(f"--gpu-candidate: {gpu_candidate!r} without the gpu engine; --engine gpu would be right")
    if name == "cpu" and threads != 1:
        raise ConfigError(f"--threads: {threads} with --engine cpu, whose workers have their own; 1 would be right")
    if needs_workers(name, environment.experiment, workers, threads, device=device):
        torch.set_num_threads(1)  # this process averages and evaluates
        count, each = layout(environment.experiment.federation.C, workers)
        return CpuEngine(environment, count, threads=each, confident_only=confident_only)
    torch.set_num_threads(threads)
    return ReferenceEngine(environment)


def engine_again(
    recorded: Mapping[str, Any],
    environment: Environment,
    workers: int | None,
    *,
    ranks: Ranks | None = None,
    identity: Identity | None = None,
    device: str | None = None,
) -> Engine:
    """An engine that gives the bits of the one in a manifest, on ranks where there are some.

    `workers` and `ranks` may be others than they were, their threads not. A record without `plain` is the reference
    engine's, or older than the fast local step: its bits were the reference's.
    """
    if recorded["name"] == "gpu":
        return GpuEngine(environment, device_named(device), recorded["candidate"], choices=recorded.get("choices"))
    plain, dense = recorded.get("plain", True), not recorded.get("confident_only", False)
    threads = recorded["threads"]
    torch.set_num_threads(threads if plain or ranks is not None else 1)
    if ranks is not None:
        speed = PLAIN if plain else Speed(confident_only=not dense)
        return DistributedEngine(environment, ranks, identity or {}, speed)
    if plain and recorded["name"] != "cpu":
        return ReferenceEngine(environment)
    if "plain" not in recorded:
        return ReferenceEngine(environment)
    return CpuEngine(
        environment, workers or recorded.get("workers"), threads=threads, confident_only=not dense, plain=plain
    )


def needs_workers(
    name: str, experiment: Experiment, workers: int | None, threads: int, *, device: str | None = None
) -> bool:
    """Whether `build_engine` without ranks gives the cpu engine, told before there is an environment."""
    if name == "auto":
        return threads == 1 and not suits_gpu(device) and suits_workers(experiment, workers)
    return name == "cpu"


def suits_gpu(device: str | None) -> bool:
    """A CUDA device is asked for, or nothing is and there is one."""
    return torch.cuda.is_available() if device is None else device != "cpu"


def suits_workers(experiment: Experiment, workers: int | None) -> bool:
    """Two or more processes, two or more jobs a round, and work beyond `WORTH_WORKERS` steps."""
    federation = experiment.federation
    steps = federation.rounds * federation.C * federation.T
    return (workers or usable_cores()) > 1 and federation.C > 1 and steps >= WORTH_WORKERS


def layout(C: int, workers: int | None) -> tuple[int, int]:
    """Workers, and threads of each: one a core, but no more workers than a round has jobs (C and the server's)."""
    cores, jobs = workers or usable_cores(), C + 1
    return (cores, 1) if jobs >= cores else (jobs, cores // jobs)
