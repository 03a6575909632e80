"""A crew of Ray tasks, one a run, wherever in the cluster there is room: beyond one machine.

Ray only says where a run is trained. What a run has done is on the folder of results that all nodes share, and a lease
there gives each run one process at a time, so that nothing depends on what Ray believes of a node that is gone: Ray
retries nothing, and the launcher, for which this crew stands in for that of one machine, decides.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite, Stopped
from benchmark.experiment import Experiment, to_json
from sweeps.crew import CPU, Ended, RunFailed
from sweeps.ray_cluster import Shares, able, checked
from sweeps.ray_node import Orders, trained

SECONDS_BETWEEN_COUNTS = 2.0  # of the nodes
SECONDS_WITHOUT_NODES = 120.0  # after which a launch ends: nodes may come back, or new ones


class RayCrew:
    """As many runs as the cluster's nodes take at a time, or `at_most`, each with its shares of one. A driver of the
    cluster makes it (`ray_cluster.joined`).

    Raises ConfigError and CannotWrite where a node cannot take part.
    """

    def __init__(
        self,
        results: Path,
        data_root: Path | None,
        patience: float,
        *,
        shares: Shares,
        at_most: int | None = None,
        seconds_without_nodes: float = SECONDS_WITHOUT_NODES,
    ) -> None:
        import ray

        self._shares, self._at_most, self._without = shares, at_most, seconds_without_nodes
        self._tasks: dict[Any, Experiment] = {}  # by what Ray calls their result
        self._stopping = False
        self._counted = self._last_able = time.monotonic()
        device = "cuda:0" if shares.gpus else CPU  # Ray shows a task its own GPU and no other
        self._orders = orders_of(results, data_root, patience, device)
        try:
            checked(shares, self._orders)
            self._room = self._count()
        except BaseException:
            self._end_orders()
            raise
        self._trained = ray.remote(max_retries=0, num_cpus=shares.cpus, num_gpus=shares.gpus)(trained)

    @property
    def size(self) -> int:
        """Runs side by side, by the nodes that are there now."""
        if time.monotonic() - self._counted > SECONDS_BETWEEN_COUNTS:
            self._room = self._count()
        return self._room

    def _count(self) -> int:
        self._counted = time.monotonic()
        room = sum(self._shares.fit_in(node["Resources"]) for node in able(self._shares))
        if room:
            self._last_able = self._counted
        return room if self._at_most is None else min(room, self._at_most)

    @property
    def running(self) -> set[Experiment]:
        return set(self._tasks.values())

    @property
    def has_room(self) -> bool:
        return len(self._tasks) < self.size

    def start(self, run: Experiment) -> None:
        self._tasks[self._trained.remote(to_json(run), self._orders)] = run

    def ended(self, timeout: float) -> Iterator[Ended]:
        """The runs that ended, after at most `timeout` seconds.

        Raises CannotWrite where a node that came later does not see the results, Stopped where no node is left.
        """
        import ray

        if not self.size and time.monotonic() - self._last_able > self._without:
            raise Stopped(
                f"no node of the cluster takes a run of {self._shares} any more; with nodes, the same command goes on"
            )
        if not self._tasks:
            time.sleep(timeout)
            return
        for reference in ray.wait(list(self._tasks), num_returns=1, timeout=timeout)[0]:
            yield self._end(reference)

    def _end(self, reference: Any) -> Ended:
        """What became of a task that has ended."""
        import ray
        from ray.exceptions import NodeDiedError, OutOfMemoryError, RayError, RayTaskError, TaskCancelledError

        run = self._tasks.pop(reference)
        try:
            here, error, unseen = ray.get(reference)
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
        if unseen is not None:
            raise CannotWrite(unseen)
        if isinstance(error, Stopped):
            return self._stopped(run)
        return Ended(run=run, here=here, error=error)

    def _stopped(self, run: Experiment) -> Ended:
        """Its process was asked to stop: by us, or by a node that is being taken away."""
        if self._stopping:
            return Ended(run=run, error=Stopped("stopped; the same command goes on from the checkpoints"))
        return Ended(run=run, moved=True)

    def stop(self) -> None:
        """Runs are kept up to their last finished round; those that wait for a node do not begin."""
        import ray

        self._stopping = True
        for reference in self._tasks:
            ray.cancel(reference, force=False)

    def close(self) -> None:
        """Wait for the tasks, which end when their run does. Being interrupted here ends them at once."""
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
            self._end_orders()

    def _end_orders(self) -> None:
        with contextlib.suppress(OSError):
            (self._orders.results / self._orders.token).unlink()


def orders_of(results: Path, data_root: Path | None, patience: float, device: str) -> Orders:
    """A launch's orders, with its token on disk. Raises CannotWrite."""
    from benchmark.records.provenance import commit

    orders = Orders(
        results=results.resolve(),
        token=f".launched-{secrets.token_hex(8)}",
        data_root=None if data_root is None else data_root.resolve(),
        usual_data=os.environ.get("FSSL_DATA"),
        patience=patience,
        device=device,
        code=commit(),
    )
    try:
        orders.results.mkdir(parents=True, exist_ok=True)
        (orders.results / orders.token).touch(exist_ok=False)
    except OSError as error:
        raise CannotWrite(f"{results}: cannot be written ({error.strerror}); --results FOLDER names another") from None
    return orders


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
