"""The workers of a launch on a Ray cluster: one Ray task per run, on any node with free CPUs and GPUs.

Ray only chooses the node. The run records are in a folder that all nodes share, where a run lock restricts each run to
one process. The launch decides which runs are tried again, and Ray retries nothing. Ray is an extra: `fssl[ray]`.
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

LOCAL = "local"  # the address of a cluster on this machine that ends with the launch
STORE = 80 * 2**20  # bytes of Ray's object store, the smallest size that Ray accepts; nothing large goes through it
SECONDS_TO_SEE = 5.0  # until a new file of a different machine appears in a network folder
SECONDS_WITHOUT_NODES = 120.0  # until the launch ends; before that, nodes may return and new ones may join


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """Join the cluster at `address` as a driver. Raise ConfigError if there is no such cluster.

    `address` is "auto", "HOST:PORT", or "local" for a new cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # if not, Ray reports its use to its authors
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "--launcher needs ray, which is not installed; type make setup-dev, or pip install ray"
        ) from None
    store: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE} if address == LOCAL else {}
    try:
        if ":" in address:  # if nothing listens, Ray tries for two minutes and ends this process
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=30).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **store)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(
            f"--address {address!r} is not a Ray cluster ({text}); {LOCAL} starts one on this machine"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def train(
    data: dict[str, Any], token: Path, code: dict[str, Any], fssl_data: str, device: str, mirror: Mirror | None
) -> FsslError | None:
    """Train one run, given as JSON, as a Ray task. Return the run's error.

    `token` is a file in the launch's results folder, `code` the launch's commit, and `fssl_data` its $FSSL_DATA, which
    is used on nodes without one. Raise CannotWrite if this node has a different results folder. Raise ConfigError if it
    has different code or lacks a custom method.
    """
    node = socket.gethostname()
    deadline = time.monotonic() + SECONDS_TO_SEE
    while not token.exists():
        if time.monotonic() > deadline:
            where = f"node {node} does not see {token.parent}"
            raise CannotWrite(f"{where}; all nodes must share the results folder, so name a shared one with --results")
        time.sleep(0.2)
    if (here := commit()) != code:
        names = [f"commit {c['commit']:.10}{' with changes' if c['changes'] else ''}" for c in (here, code)]
        raise ConfigError(f"node {node} has different code ({names[0]}); check out {names[1]} there")
    os.environ.setdefault("FSSL_DATA", fssl_data)
    return attempt(from_json(data), token.parent, device, mirror=mirror)


class RayWorkers:
    """Tasks on the cluster that this process has joined.

    `share` are the CPUs and GPUs of a node that a run uses. Raise ConfigError if no node has enough of them for a run,
    and CannotWrite if `results` cannot be written.
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
        self._tasks: dict[Any, Experiment] = {}  # reference to the task's result -> its run
        self._stopping = False
        self._last_room = time.monotonic()
        if not self.size:
            raise ConfigError(f"no node of the cluster has {share[0]:g} CPUs and {share[1]:g} GPUs; see `ray status`")
        self._token = results.resolve() / f".launched-{secrets.token_hex(8)}"
        try:
            results.mkdir(parents=True, exist_ok=True)
            self._token.touch()
        except OSError as error:
            raise cannot_write(results, error) from None
        # Ray shows a task only the GPUs of this task.
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
            raise Stopped(
                "no node of the cluster has room for a run any more; the same command resumes when there are nodes"
            )
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
        except (failures.TaskCancelledError, failures.NodeDiedError) as lost:  # cancelled before the run started
            error = Stopped(str(lost))
        except failures.RayTaskError as failed:
            if isinstance(failed.cause, FsslError):
                raise failed.cause from None
            return RunFailed(f"{named(run)}: {failed.cause!r}")
        except failures.RayError as failed:  # its process was killed, for example by Ray if memory was short
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
            for task in self._tasks:  # if the wait was interrupted; cancelling a finished task has no effect
                self._ray.cancel(task, force=True)
            self._token.unlink(missing_ok=True)


def fit_in(node: dict[str, float], cpus: float, gpus: float) -> int:
    """Return how many runs with this share fit on a node at a time. Ten shares of 0.1 fit in spite of rounding."""
    return min(int(node.get(name, 0.0) / share + 1e-6) for name, share in (("CPU", cpus), ("GPU", gpus)) if share)
