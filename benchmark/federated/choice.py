"""Which engine a run gets: the one asked for, the one that suits the work and the machine, or the one it began with."""

from collections.abc import Mapping
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.workers import CpuEngine, usable_cores

ENGINES = ("auto", "reference", "cpu")
# Local steps below which starting workers (seconds each, for importing torch) costs more than they save.
WORTH_WORKERS = 10_000


def build_engine(
    name: str, environment: Environment, workers: int | None, threads: int, *, confident_only: bool = True
) -> Engine:
    """The engine of that name. "auto": worker processes where there are cores and enough jobs for them.

    `threads` are the reference engine's; those of workers follow from `layout`. Raises ConfigError.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine: {name!r}; one of {', '.join(ENGINES)} would be right")
    if name == "cpu" and threads != 1:
        raise ConfigError(f"--threads: {threads} with --engine cpu, whose workers have their own; 1 would be right")
    if name == "cpu" or (name == "auto" and threads == 1 and suits_workers(environment.experiment, workers)):
        torch.set_num_threads(1)  # this process averages and evaluates
        count, each = layout(environment.experiment.federation.C, workers)
        return CpuEngine(environment, count, threads=each, confident_only=confident_only)
    torch.set_num_threads(threads)
    return ReferenceEngine(environment)


def engine_again(recorded: Mapping[str, Any], environment: Environment, workers: int | None) -> Engine:
    """An engine that gives the bits of the one in a manifest. `workers` may be others, their threads not.

    Of a cpu engine without `plain` the record is older than its fast local step: its bits were the reference's.
    """
    if recorded["name"] == "cpu" and "plain" in recorded:
        torch.set_num_threads(1)
        return CpuEngine(
            environment,
            workers or recorded["workers"],
            threads=recorded["threads"],
            confident_only=recorded["confident_only"],
            plain=recorded["plain"],
        )
    torch.set_num_threads(recorded["threads"])
    return ReferenceEngine(environment)


def suits_workers(experiment: Experiment, workers: int | None) -> bool:
    """Two or more processes, two or more jobs a round, and work beyond `WORTH_WORKERS` steps."""
    federation = experiment.federation
    steps = federation.rounds * federation.C * federation.T
    return (workers or usable_cores()) > 1 and federation.C > 1 and steps >= WORTH_WORKERS


def layout(C: int, workers: int | None) -> tuple[int, int]:
    """Workers, and threads of each: one a core, but no more workers than a round has jobs (C and the server's)."""
    cores, jobs = workers or usable_cores(), C + 1
    return (cores, 1) if jobs >= cores else (jobs, cores // jobs)
