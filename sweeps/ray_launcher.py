"""The workers of a launch on a Ray cluster: one Ray task a run, on any node with room.

Ray only chooses the node. The records are in a folder that all nodes share, a claim there keeps each run to one
process, and the launch decides what is tried again (Ray retries nothing). Ray is an extra: `fssl-bench[ray]`.
"""

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite, ConfigError, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment, from_json, to_json
from benchmark.records.provenance import commit
from sweeps.launcher import RunDied, named
from sweeps.processes import CPU, attempt

LOCAL = "local"  # the address of a cluster on this machine, for the time of the launch
STORE = 80 * 2**20  # bytes of Ray's object store, the least that Ray takes; nothing large goes through it
SECONDS_TO_CONNECT = 30.0
SECONDS_TO_SEE = 5.0  # until a new file of another machine shows in a network folder
SECONDS_WITHOUT_NODES = 120.0  # until the launch ends; nodes may come back, and new ones may join


@contextlib.contextmanager
def joined(address: str, *, seconds: float = SECONDS_TO_CONNECT) -> Iterator[None]:
    """Be a driver of the cluster at `address`: "auto", "HOST:PORT", or "local" for a new one. Raises ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use to its makers
    try:
        import ray
    except ImportError:
        raise ConfigError("--launcher: ray is not installed; pip install 'fssl-bench[ray]'") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        options |= {"include_dashboard": False, "object_store_memory": STORE}
    else:
        _check(address, seconds)
    ray.init(address=address, **options)
    try:
        yield
    finally:
        ray.shutdown()


def _check(address: str, seconds: float) -> None:
    """Raise ConfigError where no cluster answers. A process of its own asks: Ray may wait for minutes, and end it."""
    command = [sys.executable, "-c", "import sys, ray; ray.init(sys.argv[1])", address]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds)
        return
    except subprocess.TimeoutExpired:
        reason = f"no answer within {seconds:g} seconds"
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["Ray ended"])[-1]
    raise ConfigError(f"--address: no Ray cluster at {address!r} ({reason}); {LOCAL} starts one here")


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The same for all tasks of a launch."""

    results: Path  # absolute
    token: str  # the name of a file in `results`, there for the time of the launch
    code: dict[str, Any]  # `provenance.commit()`
    data_root: Path | None
    fssl_data: str | None  # $FSSL_DATA, for nodes without one
    patience: float  # see `records.run`
    device: str

    def check_node(self) -> None:
        """Raise CannotWrite where this node has another folder of results, ConfigError where it has other code."""
        node, deadline = f"node {socket.gethostname()}", time.monotonic() + SECONDS_TO_SEE
        while not (self.results / self.token).exists():
            if time.monotonic() > deadline:
                raise CannotWrite(f"{node} does not see {self.results}: all nodes have to share the folder of results")
            time.sleep(0.2)
        if (here := commit()) != self.code:
            raise ConfigError(f"{node} has other code ({here}); check out {self.code} there")


def train(data: dict[str, Any], orders: Orders) -> FsslError | None:
    """The task: train one run, given as JSON. Returns the run's error; raises what is wrong with the node."""
    orders.check_node()
    if orders.fssl_data is not None:
        os.environ.setdefault("FSSL_DATA", orders.fssl_data)
    return attempt(from_json(data), orders.results, orders.data_root, orders.patience, orders.device)


class RayWorkers:
    """Tasks on the cluster that this process has joined; each takes `cpus` and `gpus` of a node.

    Raises ConfigError where no node has room for a run, CannotWrite where `results` cannot be written.
    """

    def __init__(
        self,
        results: Path,
        data_root: Path | None,
        patience: float,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        at_most: int | None = None,
        seconds_without_nodes: float = SECONDS_WITHOUT_NODES,
    ) -> None:
        import ray

        self._share, self._at_most, self._seconds_without_nodes = (cpus, gpus), at_most, seconds_without_nodes
        self._tasks: dict[Any, Experiment] = {}  # reference to the task's answer -> its run
        self._stopping = False
        self._last_room = time.monotonic()
        if not self.size:
            raise ConfigError(f"no node of the cluster has {cpus:g} CPUs and {gpus:g} GPUs; see `ray status`")
        self._orders = Orders(
            results=results.resolve(),
            token=f".launched-{secrets.token_hex(8)}",
            code=commit(),
            data_root=None if data_root is None else data_root.resolve(),
            fssl_data=os.environ.get("FSSL_DATA"),
            patience=patience,
            device="cuda:0" if gpus else CPU,  # Ray hides all other GPUs from a task
        )
        try:
            results.mkdir(parents=True, exist_ok=True)
            (self._orders.results / self._orders.token).touch(exist_ok=False)
        except OSError as error:
            raise CannotWrite(f"{results}: cannot be written ({error.strerror}); name another by --results") from None
        self._train = ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus)(train)

    @property
    def size(self) -> int:
        import ray

        room = sum(fit_in(node["Resources"], *self._share) for node in ray.nodes() if node["Alive"])
        if room:
            self._last_room = time.monotonic()
        return min(room, self._at_most or room)

    @property
    def running(self) -> set[Experiment]:
        return set(self._tasks.values())

    def start(self, run: Experiment) -> None:
        self._tasks[self._train.remote(to_json(run), self._orders)] = run

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        """Raises what is wrong with a node, and Stopped where none is left."""
        import ray

        if not self.size and time.monotonic() - self._last_room > self._seconds_without_nodes:
            raise Stopped("no node of the cluster has room for a run any more; with nodes, the same command goes on")
        if not self._tasks:
            time.sleep(timeout)
            return
        for task in ray.wait(list(self._tasks), num_returns=1, timeout=timeout)[0]:
            run = self._tasks.pop(task)
            yield run, self._error_of(task, run)

    def _error_of(self, task: Any, run: Experiment) -> FsslError | None:
        import ray
        from ray.exceptions import NodeDiedError, RayError, RayTaskError, TaskCancelledError

        try:
            error: FsslError | None = ray.get(task)
        except RayTaskError as failed:
            raise failed.cause from None
        except TaskCancelledError as cancelled:  # before the run began
            error = Stopped(str(cancelled))
        except NodeDiedError:
            return RunningElsewhere(f"{named(run)}: its node is lost")
        except RayError as failed:  # its process is, or Ray ended it for want of memory
            return RunDied(f"Ray's {type(failed).__name__}")
        if isinstance(error, Stopped) and not self._stopping:  # by a node that is being taken away
            return RunningElsewhere(str(error))
        return error

    def stop(self) -> None:
        import ray

        self._stopping = True
        for task in self._tasks:
            ray.cancel(task, force=False)

    def close(self) -> None:
        import ray

        try:
            if self._tasks:
                ray.wait(list(self._tasks), num_returns=len(self._tasks))
        except BaseException:
            for task in self._tasks:
                ray.cancel(task, force=True)
            raise
        finally:
            with contextlib.suppress(OSError):
                (self._orders.results / self._orders.token).unlink()


def fit_in(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """How many runs of that share a node takes at a time."""
    shares = {"CPU": cpus, "GPU": gpus}
    # A millionth more: ten shares of a tenth are one.
    return min(int(resources.get(name, 0.0) / share + 1e-6) for name, share in shares.items() if share > 0)
