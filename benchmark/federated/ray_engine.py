"""A run's jobs over a Ray cluster: for a run that outgrows one machine. The bits are the process pool's.

Ray is an extra (`pip install 'fssl-bench[ray]'`), imported here only. The cluster is the one at $RAY_ADDRESS, or one on
this machine for the time of the run. Its nodes need the same code; the data comes from this process.
"""

import hashlib
import logging
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.process_pool import from_memory, in_memory
from benchmark.federated.sharing import Call, SharingEngine, result_of
from benchmark.federated.trees import copied
from benchmark.methods.protocol import Tree

LOOK = 1.0  # seconds after which a wait for Ray looks whether this process was asked to stop


class RayEngine(SharingEngine[Any]):
    """`workers` actors of `threads` CPUs each; None: as many as the cluster has CPUs for. They live as long as the
    engine.

    Raises ConfigError where Ray is not installed, the cluster has too few CPUs, or a node has other code.
    """

    name = "ray"

    def __init__(self, environment: Environment, workers: int | None = None, *, threads: int = 1) -> None:
        self._ray, self._ours = connected()
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        super().__init__(environment, max(1, cpus // threads) if workers is None else workers, threads)
        self._sent: dict[int, list[Any]] = {}  # by call: its jobs, as Ray calls them
        self._waiting: dict[Any, tuple[Any, int, int]] = {}  # by what Ray calls a result: worker, call and index
        if self._count > cpus // threads:
            self.close()
            raise ConfigError(
                f"--workers: {self._count} of {threads} CPUs each, but the Ray cluster has {cpus}; "
                f"choose 1 to {cpus // threads}"
            )

    def close(self) -> None:
        for worker in self._jobs_of:
            self._ray.kill(worker)
        for held in (self._jobs_of, self._sent, self._waiting):
            held.clear()
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()

    def _begin(self) -> None:
        if self._jobs_of:
            return
        # Tensors go as arrays, which the workers of a node share without a copy. Outcomes come back as torch pickles
        # them: writable, as those of this process are.
        self._ray.util.register_serializer(Tensor, serializer=in_memory, deserializer=from_memory)
        environment = self._ray.put(self._environment)
        actor = self._ray.remote(num_cpus=self._threads, max_restarts=0)(RayWorker)
        workers = [actor.remote(environment, self._threads) for _ in range(self._count)]
        try:
            for there in self._ray.get([worker.code.remote() for worker in workers]):
                if there != code():
                    raise ConfigError(f"a node of the Ray cluster has other code ({there}, here {code()})")
        except self._ray.exceptions.RayError as error:
            raise FsslError(f"a Ray worker cannot start: {last_line(error)}") from error
        self._jobs_of = {worker: [] for worker in workers}

    def _give(self, worker: Any, call: Call, index: int, private: Tree | None) -> None:
        try:
            if call.number not in self._sent:
                self._sent[call.number] = [self._ray.put(list(call.jobs))]
        except Exception as error:
            raise self._cannot_be_sent(call, index, error) from error
        arguments = (call.number, self._sent[call.number], index, private, call.wants_gradient, call.round_number)
        self._waiting[worker.run.remote(*arguments)] = (worker, call.number, index)

    def _take_in(self) -> None:
        done, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=LOOK)
        if not done:
            return
        worker, number, index = self._waiting.pop(done[0])
        try:
            result = self._ray.get(done[0])
        except self._ray.exceptions.RayError as error:
            message = f"a Ray worker ended during {self._job_of(worker)}: {last_line(error)}"
            self.close()
            raise FsslError(message) from error
        self._enter(worker, number, index, result)

    def _forget(self, call: Call) -> None:
        self._sent.pop(call.number, None)


class RayWorker:
    """What runs on a node, as a Ray actor: jobs one after another. It keeps the jobs of the last call."""

    def __init__(self, environment: Environment, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._runner = JobRunner(environment, fast=True)
        self._call, self._jobs = -1, list[Any]()

    def code(self) -> str:
        return code()

    def run(self, call: int, sent: list[Any], index: int, private: Tree | None, *how: Any) -> Any:
        """`sent`: the one reference to the jobs of the call, in a list, so that Ray leaves the fetching to us."""
        if call != self._call:
            import ray

            self._call, self._jobs = call, ray.get(sent[0])
        # What comes from Ray cannot be written to, and local work may change it in place.
        job = replace(self._jobs[index], receives=copied(self._jobs[index].receives))
        return result_of(self._runner, job, copied(private), *how)


def connected() -> tuple[Any, bool]:
    """Ray, connected to a cluster, and whether it is this function that connected it. Raises ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to Ray's makers
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if in_main else None
    try:
        import ray
        import ray.exceptions

        if ray.is_initialized():
            return ray, False
        address = os.environ.get("RAY_ADDRESS", "local")
        dashboard = False if address == "local" else None  # a cluster that is there has its own, or none
        ray.init(address=address, include_dashboard=dashboard, log_to_driver=False, logging_level=logging.ERROR)
    except ImportError:
        raise ConfigError("--engine ray: Ray is not installed; type pip install 'fssl-bench[ray]'") from None
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--engine ray: no cluster at RAY_ADDRESS: {last_line(error)}") from None
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)  # Ray puts its own in place
    return ray, True


def code() -> str:
    """A short hash of the package's source and of torch's version."""
    found = hashlib.sha256(torch.__version__.encode())
    for path in sorted(Path(__file__).resolve().parents[1].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:12]


def last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
