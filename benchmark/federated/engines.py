"""Defines the reference engine and chooses the engine that a run uses behind `fit`."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.devices import auto_devices, check_precision, cuda_devices, engine_settings, prepare_torch
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner
from benchmark.federated.process_pool import ProcessPool
from benchmark.federated.processes import CPU, usable_cores
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.federated.stacked.together import Seat
from benchmark.federated.trees import copied
from benchmark.methods.protocol import Job, Outcome, Tree, Weights

ENGINES = ("auto", "reference", "pool", "stacked")
# "auto" starts no workers for fewer local steps, because each worker needs seconds to import torch.
WORTH_WORKERS = 10_000


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The engine options of `fssl run`. Raises ConfigError for an unknown engine or options that do not fit it.

    "auto" is the reference engine if more than one thread is requested. If not, it is the stacked engine on a CUDA
    device, and the pool on other devices, because the pool gives the bits of the launchers for any number of cores.
    """

    engine: str = "reference"
    workers: int | None = None  # number of single-threaded processes of the pool; None for one per device or core
    threads: int = 1  # threads per tensor operation of the reference engine
    # The devices that the pool's workers get in turn; ("cpu",) means the cores. None means the CPU, but with "auto" the
    # first CUDA device if `auto_devices` chooses it.
    devices: tuple[str, ...] | None = None

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
        if self.engine == "pool" and self.threads != 1:
            raise ConfigError(
                f"--threads: {self.threads}, but the workers of --engine pool have their own; leave it out"
            )
        if self.engine == "stacked" and self.workers not in (None, 1):
            raise ConfigError(f"--workers: {self.workers}, but --engine stacked is one process; leave it out")
        has_one = self.engine in ("reference", "stacked") or self.threads != 1
        if self.devices is not None and len(self.devices) > 1 and has_one:
            name = "stacked" if self.engine == "stacked" else "reference"
            raise ConfigError(f"--devices: {','.join(self.devices)}, but --engine {name} has one; choose --engine pool")

    def as_recorded(self, manifest: Mapping[str, Any]) -> Self:
        """Return these options with the settings that determine the bits taken from a run's manifest.

        Return the options unchanged if the manifest names no engine. Raise ConfigError for a withdrawn engine and for a
        device that this machine does not have.
        """
        settings = manifest.get("engine")
        if not settings:
            return self
        name = settings["name"]
        devices = self.devices
        if name not in ("pool", "reference", "stacked"):
            raise ConfigError(f"this run was begun by the engine {name!r}, which is withdrawn; start it anew")
        kind = (CPU,) if "device" not in settings else cuda_devices()
        if not kind:
            raise ConfigError(
                f"this run was begun on {settings['device']}, so only a CUDA device can resume or repeat it, and this "
                "machine has none; type the same command on a machine with one"
            )
        if devices is None or devices[0].partition(":")[0] != kind[0].partition(":")[0]:
            devices = kind
        if name in ("reference", "stacked"):
            return replace(self, engine=name, workers=None, threads=settings["threads"], devices=devices[:1])
        workers = self.workers or settings.get("workers")
        return replace(self, engine=name, workers=workers, threads=1, devices=devices)

    def devices_of(self, experiment: Experiment) -> tuple[str, ...]:
        """Return the devices that train the run's jobs. Raise ConfigError if they do not support the precision."""
        devices = self.devices or (auto_devices([experiment])[:1] if self.engine == "auto" else (CPU,))
        check_precision(experiment.precision, devices)
        return devices

    def is_stacked(self, experiment: Experiment) -> bool:
        """Return whether the stacked engine trains the jobs of a round together."""
        if self.engine != "auto":
            return self.engine == "stacked"
        return self.threads == 1 and self.workers is None and CPU not in self.devices_of(experiment)

    def processes(self, experiment: Experiment) -> int:
        """Return the number of processes of the pool, or 0 for the other engines. A single process is this process.

        Their number is at most the number of jobs in a round, including the server's. With "auto" on the CPU there is
        only one if starting others costs more time than it saves.
        """
        devices = self.devices_of(experiment)
        federation = experiment.federation
        if self.engine in ("reference", "stacked") or self.threads != 1:
            return 0
        few = federation.C == 1 or federation.rounds * federation.C * federation.T < WORTH_WORKERS
        if self.engine == "auto" and few and CPU in devices:
            return 1
        workers = self.workers or (usable_cores() if devices == (CPU,) else len(devices))
        return min(workers, federation.C + 1)


class ReferenceEngine:
    """An engine that trains one job after the other on one device, in windows if the device is not a CPU.

    With `fast` it is a pool of one process inside this process, with the same bits and the same name in the
    run record.
    """

    def __init__(self, environment: Environment, device: str = CPU, *, fast: bool = False) -> None:
        self.device = torch.device(device)
        self.name = "pool" if fast else "reference"
        experiment = environment.experiment
        prepare_torch(self.device, experiment.precision, experiment.model)
        self.settings = engine_settings(self.name, [self.device], torch.get_num_threads(), experiment)
        self._work = JobRunner(environment, device=device, fast=fast)

    def close(self) -> None:
        """Do nothing, because this engine has no processes."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """Yield one outcome per job, in job order. A client that skips the round sends nothing and takes no step.

        Client state is read from `kept` when the job starts and written back when it ends. On any device but a CPU,
        jobs run in windows, with the same outcomes: the host waits twice per window instead of several times per job.
        """
        if self.device.type != CPU:
            yield from self._work.run_in_windows(jobs, round_number, kept)
            return
        for job in jobs:
            state_key = job.state_key
            private = copied(kept.get(state_key))  # local work may change it in place
            result = self._work.run(job, round_number, private)
            if result.private is not None:
                kept[state_key] = result.private
            yield result

    def gradients(
        self, jobs: Sequence[Job], round_number: int, kept: Mapping[str, Tree]
    ) -> Iterator[dict[str, Weights]]:
        """Compute the gradient of each job's loss at its initial weights, in job order.

        Client state is read from `kept`. Nothing is trained or stored. The result is an empty dict for a job that would
        skip the round.
        """
        for job in jobs:
            yield self._work.gradient(job, round_number, copied(kept.get(job.state_key)))


Engine: TypeAlias = ReferenceEngine | ProcessPool | StackedEngine


def build_engine(options: EngineOptions, environment: Environment, seat: Seat | None = None) -> Engine:
    """Return the engine that the options choose, and set the number of threads of this process.

    `seat` is the place of a run among runs that train together; only the stacked engine uses it.
    """
    torch.set_num_threads(options.threads)
    devices = options.devices_of(environment.experiment)
    if options.is_stacked(environment.experiment):
        if seat is not None:
            return seat.engine(environment, devices[0])
        return StackedEngine(environment, devices[0])
    processes = options.processes(environment.experiment)
    if processes > 1:
        return ProcessPool(environment, processes, devices)
    return ReferenceEngine(environment, devices[0], fast=processes == 1)
