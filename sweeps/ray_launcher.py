"""The launcher's workers beyond one machine: Ray tasks, one a run, wherever in the cluster there is room.

Ray only says where a run is trained. What a run has done is in the folder of results that all nodes share, and a claim
there gives each run one process at a time: Ray retries nothing, and the launcher decides. Ray is an extra
(`pip install fssl-bench[ray]`) and imported here only.
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

from benchmark.errors import CannotWrite, ConfigError, FsslError, Stopped
from benchmark.experiment import Experiment, from_json, to_json
from benchmark.records.provenance import commit
from sweeps.launcher import CPU, Ended, RunFailed, attempted

LOCAL = "local"  # the address of a cluster that is started for the launch
STORE = 80 * 2**20  # bytes: the least that Ray takes; runs go through the folder of results, not through Ray
SECONDS_TO_MEET = 30.0  # a cluster; Ray itself takes two minutes, and ends the process
SECONDS_TO_SEE = 5.0  # for a file that another machine has just written: network folders may show it late
SECONDS_WITHOUT_NODES = 120.0  # after which a launch ends: nodes may come back, or new ones

_MEET = """
import logging, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except BaseException as error:
    print(" ".join(str(error).split()) or type(error).__name__)
    sys.exit(1)
"""


@contextlib.contextmanager
def joined(address: str, *, seconds: float = SECONDS_TO_MEET) -> Iterator[None]:
    """Be a driver of the cluster at `address` ("auto", "HOST:PORT"), or of one on this machine ("local").

    Raises ConfigError where Ray is not installed, or nothing answers within `seconds`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to Ray's makers
    try:
        import ray
    except ImportError:
        raise ConfigError("--launcher: ray is not installed; pip install 'fssl-bench[ray]'") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        ray.init(address=LOCAL, include_dashboard=False, object_store_memory=STORE, **quiet)
    else:
        _meet(address, seconds)
        ray.init(address=address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _meet(address: str, seconds: float) -> None:
    """Raises ConfigError where no cluster takes a driver: tried in another process, which Ray may keep or end."""
    try:
        met = subprocess.run(
            [sys.executable, "-c", _MEET, address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--address: {address!r}: no Ray cluster answers within {seconds:g} seconds") from None
    if met.returncode:
        said = met.stdout.strip() or f"Ray ended with {met.returncode}"
        raise ConfigError(f"--address: {address!r}: {said}; {LOCAL} starts a cluster on this machine")


@dataclass(frozen=True, kw_only=True)
class Orders:
    """The same for all runs of a launch."""

    results: Path  # absolute
    token: str  # name of a file in it, there as long as the launcher is
    data_root: Path | None
    usual_data: str | None  # the launcher's $FSSL_DATA, for nodes that have none
    patience: float  # see `records.run`
    device: str
    code: dict[str, Any]  # the launcher's `provenance.commit()`


def trained(data: dict[str, Any], orders: Orders) -> tuple[bool, FsslError | None, FsslError | None]:
    """Train one run, given as JSON, on a node: whether it was trained here, its error, and why this node cannot.

    A cancelled task is interrupted as if by Ctrl-C: the run saves its last round and comes back as Stopped.
    """
    if (why := unfit(orders)) is not None:
        return False, None, why
    if orders.usual_data is not None:
        os.environ.setdefault("FSSL_DATA", orders.usual_data)
    here, error = attempted(from_json(data), orders.results, orders.data_root, orders.patience, orders.device)
    return here, error, None


def unfit(orders: Orders) -> FsslError | None:
    """Why this node can write no record, or not the launcher's; None: it can."""
    node, deadline = f"node {socket.gethostname()}", time.monotonic() + SECONDS_TO_SEE
    while not (orders.results / orders.token).exists():
        if time.monotonic() > deadline:
            return CannotWrite(f"{node} does not see {orders.results}: all nodes have to share the folder of results")
        time.sleep(0.2)
    if not os.access(orders.results, os.W_OK):
        return CannotWrite(f"{node} cannot write to {orders.results}: all nodes have to share the folder of results")
    if (here := commit()) != orders.code:
        return ConfigError(f"{node} has other code (commit {_short(here)}); check out {_short(orders.code)} there")
    return None


def _short(code: dict[str, Any]) -> str:
    return str(code["commit"])[:10] + (" with changes" if code["changes"] else "")


class RayWorkers:
    """As many runs as the cluster takes at a time, or `at_most`, each with its share of a node. A driver of the cluster
    makes it (`joined`).

    Raises ConfigError where no node takes a run, CannotWrite where the results take no file.
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

        self._cpus, self._gpus, self._at_most, self._without = cpus, gpus, at_most, seconds_without_nodes
        self._tasks: dict[Any, Experiment] = {}  # by what Ray calls their result
        self._stopping = False
        self._last_able = time.monotonic()
        if not self.size:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            there = "; ".join(", ".join(f"{n.get(name, 0):g} {name}s" for name in ("CPU", "GPU")) for n in nodes)
            raise ConfigError(f"no node of the cluster takes a run of {self._share} (nodes: {there})")
        self._orders = Orders(
            results=results.resolve(),
            token=f".launched-{secrets.token_hex(8)}",
            data_root=None if data_root is None else data_root.resolve(),
            usual_data=os.environ.get("FSSL_DATA"),
            patience=patience,
            device="cuda:0" if gpus else CPU,  # Ray shows a task its own GPU and no other
            code=commit(),
        )
        try:
            results.mkdir(parents=True, exist_ok=True)
            (self._orders.results / self._orders.token).touch(exist_ok=False)
        except OSError as error:
            raise CannotWrite(
                f"{results}: cannot be written ({error.strerror}); --results FOLDER names another"
            ) from None
        self._trained = ray.remote(max_retries=0, num_cpus=cpus, num_gpus=gpus)(trained)

    @property
    def _share(self) -> str:
        return f"{self._cpus:g} CPUs" + (f" and {self._gpus:g} GPUs" if self._gpus else "")

    @property
    def size(self) -> int:
        """Runs side by side, by the nodes that are there now."""
        import ray

        room = sum(fit_in(node["Resources"], self._cpus, self._gpus) for node in ray.nodes() if node["Alive"])
        if room:
            self._last_able = time.monotonic()
        return room if self._at_most is None else min(room, self._at_most)

    @property
    def running(self) -> set[Experiment]:
        return set(self._tasks.values())

    def start(self, run: Experiment) -> None:
        self._tasks[self._trained.remote(to_json(run), self._orders)] = run

    def ended(self, timeout: float) -> Iterator[Ended]:
        """Raises CannotWrite and ConfigError where a node cannot take part, Stopped where none is left."""
        import ray

        if not self.size and time.monotonic() - self._last_able > self._without:
            raise Stopped(
                f"no node of the cluster takes a run of {self._share} any more; with nodes, the same command goes on"
            )
        if not self._tasks:
            time.sleep(timeout)
            return
        for reference in ray.wait(list(self._tasks), num_returns=1, timeout=timeout)[0]:
            yield self._end(reference)

    def _end(self, reference: Any) -> Ended:
        import ray
        from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, TaskCancelledError

        run = self._tasks.pop(reference)
        try:
            here, error, unfit_node = ray.get(reference)
        except TaskCancelledError:  # before its run had begun
            return self._stopped(run)
        except NodeDiedError:
            return Ended(run=run, moved=True)
        except OutOfMemoryError:
            return Ended(run=run, died="Ray, for want of memory on its node")
        except RayTaskError as failed:
            return Ended(run=run, error=RunFailed(f"cell {run.cell_key}, seed {run.seed}: {_last_line(failed)}"))
        except RayError as failed:
            return Ended(run=run, died=f"the end of its Ray worker ({_last_line(failed)})")
        if unfit_node is not None:
            raise unfit_node
        return self._stopped(run) if isinstance(error, Stopped) else Ended(run=run, here=here, error=error)

    def _stopped(self, run: Experiment) -> Ended:
        """Its process was asked to stop: by us, or by a node that is being taken away."""
        if self._stopping:
            return Ended(run=run, error=Stopped("stopped; the same command goes on from the last saves"))
        return Ended(run=run, moved=True)

    def stop(self) -> None:
        import ray

        self._stopping = True
        for reference in self._tasks:
            ray.cancel(reference, force=False)

    def close(self) -> None:
        import ray

        try:
            while self._tasks:
                for reference in ray.wait(list(self._tasks), num_returns=1, timeout=1.0)[0]:
                    del self._tasks[reference]
        except BaseException:
            for reference in self._tasks:
                ray.cancel(reference, force=True)
            raise
        finally:
            with contextlib.suppress(OSError):
                (self._orders.results / self._orders.token).unlink()


def fit_in(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """How many runs of that share a node takes at a time."""
    wanted = {"CPU": cpus, "GPU": gpus}
    # A millionth more: ten shares of a tenth are one.
    return min(int(resources.get(name, 0.0) / share + 1e-6) for name, share in wanted.items() if share > 0)


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
