"""The workers of a launch on a Ray cluster: one Ray task a run, on any node with room.

Ray only chooses the node. The records are in a folder that all nodes share, a claim there keeps each run to one
process, and the launch decides what is tried again (Ray retries nothing). Ray is an extra: `fssl[ray]`.
"""

import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite, ConfigError, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment, from_json, to_json
from benchmark.federated.processes import CPU
from benchmark.files import cannot_write
from benchmark.records.provenance import commit
from sweeps.launcher import RunDied, RunFailed, named
from sweeps.workers import Mirror, attempt

LOCAL = "local"  # the address of a cluster on this machine, for the time of the launch
STORE = 80 * 2**20  # bytes of Ray's object store, the least that Ray takes; nothing large goes through it
SECONDS_TO_SEE = 5.0  # until a new file of another machine shows in a network folder
SECONDS_WITHOUT_NODES = 120.0  # until the launch ends; nodes may come back, and new ones may join


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """Join the cluster at `address` as a driver: "auto", "HOST:PORT", or "local" for a new one. Raise ConfigError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use to its makers
    try:
        import ray
    except ImportError:
        raise ConfigError("--launcher: ray is not installed; type make setup-dev, or pip install ray") from None
    store: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE} if address == LOCAL else {}
    try:
        if ":" in address:  # where nothing listens, Ray would try for two minutes and then end this process
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=30).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **store)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"--address: no Ray cluster at {address!r} ({text}); {LOCAL} starts one here") from None
    try:
        yield
    finally:
        ray.shutdown()


def train(
    data: dict[str, Any], token: Path, code: dict[str, Any], fssl_data: str, device: str, mirror: Mirror | None
) -> FsslError | None:
    """Train one run, given as JSON, as a Ray task. Return the run's error.

    `token` is a file in the launch's folder of results, `code` its commit, `fssl_data` its $FSSL_DATA, for nodes
    without one. Raises CannotWrite where this node has another folder of results, ConfigError where it has other code
    or lacks a method of the user's own.
    """
    node, deadline = socket.gethostname(), time.monotonic() + SECONDS_TO_SEE
    while not token.exists():
        if time.monotonic() > deadline:
            where = f"node {node} does not see {token.parent}"
            raise CannotWrite(f"{where}: all nodes have to share the folder of results")
        time.sleep(0.2)
    if (here := commit()) != code:
        names = [f"commit {c['commit']:.10}{' with changes' if c['changes'] else ''}" for c in (here, code)]
        raise ConfigError(f"node {node} has other code ({names[0]}); check out {names[1]} there")
    os.environ.setdefault("FSSL_DATA", fssl_data)
    return attempt(from_json(data), token.parent, device, mirror=mirror)


class RayWorkers:
    """Tasks on the cluster that this process has joined. `share`: CPUs and GPUs of a node that a run takes. Raises
    ConfigError where no node has room for a run, CannotWrite where `results` cannot be written.
    """

    def __init__(
        self,
        results: Path,
        share: tuple[float, float] = (1.0, 0.0),
        at_most: int = 10**6,
        mirror: Mirror | None = None,
    ) -> None:
        import ray

        self._ray, self._share, self._at_most = ray, share, at_most
        self._tasks: dict[Any, Experiment] = {}  # reference to the task's answer -> its run
        self._stopping, self._last_room = False, time.monotonic()
        if not self.size:
            raise ConfigError(f"no node of the cluster has {share[0]:g} CPUs and {share[1]:g} GPUs; see `ray status`")
        self._token = results.resolve() / f".launched-{secrets.token_hex(8)}"
        try:
            results.mkdir(parents=True, exist_ok=True)
            self._token.touch()
        except OSError as error:
            raise cannot_write(results, error) from None
        # Ray hides all other GPUs from a task.
        self._orders = (self._token, commit(), os.environ.get("FSSL_DATA", ""), "cuda:0" if share[1] else CPU, mirror)
        self._train = ray.remote(max_retries=0, num_cpus=share[0], num_gpus=share[1])(train)

    @property
    def size(self) -> int:
        nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return min(self._at_most, sum(fit_in(node, *self._share) for node in nodes))

    def start(self, run: Experiment) -> None:
        self._tasks[self._train.remote(to_json(run), *self._orders)] = run

    def ended(self, timeout: float) -> Iterator[tuple[Experiment, FsslError | None]]:
        """Yield the runs that ended, with their errors. Raise the error of a node, and Stopped if no node is left."""
        if self.size:
            self._last_room = time.monotonic()
        elif time.monotonic() - self._last_room > SECONDS_WITHOUT_NODES:
            raise Stopped("no node of the cluster has room for a run any more; with nodes, the same command goes on")
        if not self._tasks:
            time.sleep(timeout)
            return
        for task in self._ray.wait(list(self._tasks), timeout=timeout)[0]:
            run = self._tasks.pop(task)
            yield run, self._error_of(task, run)

    def _error_of(self, task: Any, run: Experiment) -> FsslError | None:
        failures = self._ray.exceptions
        try:
            error: FsslError | None = self._ray.get(task)
        except (failures.TaskCancelledError, failures.NodeDiedError) as lost:  # cancelled before the run began
            error = Stopped(str(lost))
        except failures.RayTaskError as failed:
            if isinstance(failed.cause, FsslError):
                raise failed.cause from None
            return RunFailed(f"{named(run)}: {failed.cause!r}")
        except failures.RayError as failed:  # its process was killed, by Ray itself for want of memory
            return RunDied(f"Ray's {type(failed).__name__}")
        node_is_gone = isinstance(error, Stopped) and not self._stopping
        return RunningElsewhere(str(error)) if node_is_gone else error

    def stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            self._ray.cancel(task, force=False)

    def close(self) -> None:
        try:
            if self._tasks:
                self._ray.wait(list(self._tasks), num_returns=len(self._tasks))
        finally:
            for task in self._tasks:  # where the wait was broken off; nothing is done to tasks that have ended
                self._ray.cancel(task, force=True)
            self._token.unlink(missing_ok=True)


def fit_in(node: dict[str, float], cpus: float, gpus: float) -> int:
    """Return how many runs with this share fit on a node at a time; shares of a tenth give ten in spite of rounding."""
    return min(int(node.get(name, 0.0) / share + 1e-6) for name, share in (("CPU", cpus), ("GPU", gpus)) if share)
