"""Which engine a run gets: the one asked for, or the one that suits the work and the machine."""

from collections.abc import Mapping

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.distributed import DistributedEngine, Identity
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.ranks import Place, Ranks, place_of
from benchmark.federated.workers import CpuEngine, usable_cores

ENGINES = ("auto", "reference", "cpu", "distributed")
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
    ranks: Ranks | None = None,
    identity: Identity | None = None,
) -> Engine:
    """The engine of that name. "auto": worker processes where there are cores and enough jobs for them.

    `ranks` that have met are what "distributed" and "auto" run on, once each has the same `identity`.
    Reference, cpu and distributed give equal bits at one thread, so a run may go on with the other. Raises ConfigError.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine: {name!r}; one of {', '.join(ENGINES)} would be right")
    if ranks is not None:
        if workers is not None:
            raise ConfigError(f"--workers: {workers} with ranks, of which each does one job at a time; none is right")
        return DistributedEngine(environment, ranks, identity or {})
    if name == "distributed":
        raise ConfigError("engine: 'distributed' needs ranks that have met (benchmark.federated.ranks.join)")
    if name == "cpu" and threads != 1:
        raise ConfigError(f"--threads: {threads} with --engine cpu, whose workers have one each; 1 would be right")
    if name == "cpu" or (name == "auto" and threads == 1 and suits_workers(environment.experiment, workers)):
        return CpuEngine(environment, workers)
    return ReferenceEngine(environment)


def suits_workers(experiment: Experiment, workers: int | None) -> bool:
    """Two or more processes, two or more jobs a round, and work beyond `WORTH_WORKERS` steps."""
    federation = experiment.federation
    steps = federation.rounds * federation.C * federation.T
    return (workers or usable_cores()) > 1 and federation.C > 1 and steps >= WORTH_WORKERS
