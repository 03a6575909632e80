"""Which engine a run gets: the one asked for, or the one that suits the work and the machine."""

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.gpu import GpuEngine, device_named
from benchmark.federated.workers import CpuEngine, usable_cores

ENGINES = ("auto", "reference", "cpu", "gpu")
# Local steps below which starting workers (seconds each, for importing torch) costs more than they save.
WORTH_WORKERS = 10_000


def build_engine(
    name: str,
    environment: Environment,
    workers: int | None,
    threads: int,
    *,
    device: str | None = None,
    gpu_candidate: str = "measured",
) -> Engine:
    """The engine of that name. "auto": gpu where there is a CUDA device, else worker processes where there are cores
    and enough jobs for them.

    Reference and cpu give equal bits at one thread, so a run may go on with the other; gpu agrees with them to 1e-5.
    `device` ("cuda", "cuda:1"; "cpu" runs gpu's steps without a GPU) and `gpu_candidate` are for gpu alone.
    Raises ConfigError.
    """
    if name not in ENGINES:
        raise ConfigError(f"--engine: {name!r}; one of {', '.join(ENGINES)} would be right")
    on_cuda = device is not None and device != "cpu"
    if name == "gpu" or (name == "auto" and (on_cuda or (device is None and torch.cuda.is_available()))):
        return GpuEngine(environment, device_named(device), gpu_candidate)
    if on_cuda:
        raise ConfigError(
            f"--device: {device!r} with --engine {name}, which runs on the CPU; --engine gpu would be right"
        )
    if gpu_candidate != "measured":
        raise ConfigError(f"--gpu-candidate: {gpu_candidate!r} without the gpu engine; --engine gpu would be right")
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
