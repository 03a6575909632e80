"""A Ray cluster, met in bounded time: the one at an address, or one on this machine for the time of a launch.

Ray is an extra (`pip install fssl-bench[ray]`), and imported here only.
"""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.errors import CannotWrite, ConfigError
from sweeps.ray_node import Orders, looked

LOCAL = "local"  # the address of a cluster that is started for the launch
SECONDS_TO_MEET = 30.0  # a cluster; Ray itself takes two minutes, and ends the process
SECONDS_TO_LOOK = 120.0  # for all nodes to start a process each that has imported torch
STORE = 80 * 2**20  # bytes: the least that Ray takes; runs go through the folder of results, not through Ray

_MEET = """
import logging, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.CRITICAL)
except BaseException as error:
    print(" ".join(str(error).split()) or type(error).__name__)
    sys.exit(1)
"""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What a run takes of the node that it is on."""

    cpus: float = 1.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")

    def fit_in(self, resources: Mapping[str, float]) -> int:
        """How many runs a node of these resources takes at a time."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus}
        # A millionth more: ten shares of a tenth are one.
        fits = [int(resources.get(name, 0.0) / share + 1e-6) for name, share in wanted.items() if share > 0]
        return min(fits)


@contextlib.contextmanager
def joined(address: str, *, seconds: float = SECONDS_TO_MEET) -> Iterator[None]:
    """Be a driver of the cluster at `address` ("auto", "HOST:PORT"), or of one on this machine ("local").

    Raises ConfigError where Ray is not installed, or nothing answers within `seconds`.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to Ray's makers
    try:
        import ray
    except ImportError:
        raise ConfigError("--launcher: 'ray' without Ray; `pip install 'fssl-bench[ray]'` would be right") from None
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


def able(shares: Shares) -> list[dict[str, Any]]:
    """The nodes that take at least one run."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and shares.fit_in(node["Resources"]) > 0]


def checked(shares: Shares, orders: Orders) -> None:
    """Raises ConfigError where no node has room for a run, or one has other code; CannotWrite where one does not see
    the folder of results."""
    import ray

    nodes = able(shares)
    if not nodes:
        there = "; ".join(_said(node["Resources"]) for node in ray.nodes() if node["Alive"]) or "none"
        raise ConfigError(f"no node of the cluster takes a run of {shares} (nodes: {there})")
    for node, (unseen, other) in _on_each(nodes, looked, orders):
        if unseen is not None:
            raise CannotWrite(f"node {_name(node)} {unseen}")
        if other is not None:
            raise ConfigError(f"node {_name(node)} {other}")


def _on_each(
    nodes: Sequence[dict[str, Any]], task: Callable[..., Any], *arguments: Any
) -> list[tuple[dict[str, Any], Any]]:
    """Each node with what the task returns there, but for nodes that are gone and that the cluster has not missed yet.
    Raises ConfigError where the task cannot run."""
    import ray
    from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(max_retries=0, num_cpus=0)(task)
    there = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    waiting = [remote.options(scheduling_strategy=strategy).remote(*arguments) for strategy in there]
    found = []
    for node, reference in zip(nodes, waiting, strict=True):
        try:
            found.append((node, ray.get(reference, timeout=SECONDS_TO_LOOK)))
        except (NodeDiedError, TaskUnschedulableError):
            continue
        except RayError as error:
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise ConfigError(f"node {_name(node)} cannot run fssl: {said[-1]}") from None
    return found


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _said(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU"))
