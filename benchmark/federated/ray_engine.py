"""A run's jobs over a Ray cluster: for a run that outgrows one machine. The bits are the process pool's.

Ray is an extra (`pip install 'fssl-bench[ray]'`), imported here only. The cluster is the one at $RAY_ADDRESS, or one on
this machine for the time of the run. Its nodes need the same code; the data comes from this process.
"""

import hashlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.errors import ConfigError, FsslError
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner, Speed
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.process_pool import Packed, Sent, answer, pack, unpack
from benchmark.federated.sharing import Call, Failure, SharingEngine
from benchmark.methods.protocol import Tree

LOOK = 1.0  # seconds after which a wait for Ray looks whether this process was asked to stop


class RayEngine(SharingEngine[Any]):
    """`workers` actors of `threads` CPUs each; None: as many as the cluster has CPUs for. They live as long as the
    engine, and keep nothing between calls.

    Raises ConfigError where Ray is not installed, the cluster has too few CPUs, or a node has other code.
    """

    name = "ray"

    def __init__(
        self,
        environment: Environment,
        workers: int | None = None,
        *,
        threads: int = 1,
        confident_only: bool = True,
    ) -> None:
        super().__init__(environment)
        self._sent: dict[Any, dict[int, Sent]] = {}  # by worker and call: the tensors that it has
        self._waiting: dict[Any, tuple[Any, int, int]] = {}  # by what Ray calls a result: worker, call and index
        self._threads, self._speed = threads, Speed(confident_only=confident_only)
        self._ray, self._ours = connected()
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        self._count = cpus // threads if workers is None else workers
        if not 1 <= self._count <= cpus // threads:
            self.close()
            raise ConfigError(
                f"--workers: {self._count} of {threads} CPUs each, but the Ray cluster has {cpus}; "
                f"choose 1 to {cpus // threads}"
            )

    def __enter__(self) -> "RayEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; work begun is lost."""
        for worker in self._jobs_of:
            self._ray.kill(worker)
        for held in (self._jobs_of, self._sent, self._waiting):
            held.clear()
        if self._ours and self._ray.is_initialized():
            self._ray.shutdown()

    @property
    def settings(self) -> Mapping[str, Any]:
        """`workers` does not decide its bits, and stands there for the time it took."""
        speed = {"plain": False, "confident_only": self._speed.confident_only}
        return {"name": self.name, "threads": self._threads, "bit_equal": True, **speed, "workers": self._count}

    def _begin(self) -> None:
        if self._jobs_of:
            return
        environment = self._ray.put(sendable(pack(self._environment, {})))
        actor = self._ray.remote(num_cpus=self._threads, max_restarts=0)(RayWorker)
        workers = [actor.remote(environment, self._threads, self._speed) for _ in range(self._count)]
        try:
            for there in self._ray.get([worker.code.remote() for worker in workers]):
                if there != code():
                    raise ConfigError(f"a node of the Ray cluster has other code ({there}, here {code()})")
        except self._ray.exceptions.RayError as error:
            raise FsslError(f"a Ray worker cannot start: {last_line(error)}") from error
        self._jobs_of = {worker: [] for worker in workers}

    def _give(self, worker: Any, call: Call, index: int, private: Tree | None) -> None:
        sent = self._sent.setdefault(worker, {}).setdefault(call.number, {})
        try:
            job = sendable(pack(call.jobs[index], sent))
        except Exception as error:
            raise self._cannot_be_sent(call, index, error) from error
        state = sendable(pack(private, {}))
        result = worker.run.remote(call.number, job, state, call.kept is None, call.round_number)
        self._waiting[result] = (worker, call.number, index)

    def _take_in(self) -> None:
        done: list[Any] = []
        while not done:
            done, _ = self._ray.wait(list(self._waiting), num_returns=1, timeout=LOOK)
        worker, number, index = self._waiting.pop(done[0])
        try:
            result = unpack(writable(self._ray.get(done[0])), {})
        except self._ray.exceptions.RayError as error:
            message = f"a Ray worker ended during {self._job_of(worker)}: {last_line(error)}"
            self.close()
            raise FsslError(message) from error
        self._enter(worker, number, index, result)

    def _forget(self, call: Call) -> None:
        for worker, sent in self._sent.items():
            if sent.pop(call.number, None) is not None and worker in self._jobs_of:
                worker.forget.remote(call.number)


class RayWorker:
    """What runs on a node, as a Ray actor: jobs one after another."""

    def __init__(self, environment: Packed, threads: int, speed: Speed) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # images lie in Ray's shared memory, which nobody writes to
            self._runner = JobRunner(unpack(environment, {}), speed)
        self._received: dict[int, dict[int, torch.Tensor]] = {}  # by call: tensors that several of its jobs receive

    def code(self) -> str:
        return code()

    def run(self, call: int, job: Packed, private: Packed, wants_gradient: bool, round_number: int) -> Packed:
        received = self._received.setdefault(call, {})
        try:
            result = answer(self._runner, writable(job), writable(private), received, wants_gradient, round_number)
        except Exception as error:
            result = pack(Failure.of(error), {})
        return sendable(result)

    def forget(self, call: int) -> None:
        self._received.pop(call, None)


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


def sendable(packed: Packed) -> Packed:
    """With memory as arrays, which Ray takes without a copy."""
    return Packed(packed.pickled, [np.asarray(buffer) for buffer in packed.buffers])


def writable(packed: Packed) -> Packed:
    """With a copy of the memory, since what Ray gives cannot be written to, and local work may change it in place."""
    return Packed(packed.pickled, [bytearray(buffer) for buffer in packed.buffers])


def last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
