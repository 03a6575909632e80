"""Rounds by the clock: wall seconds, and CPU seconds of a whole tree of processes; the line a driver prints."""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError
from tests.performance.peers.work import Setup, Weights, Work, network_of, relative_difference, serial_round, weights_of

DROPPED = 2  # rounds in which caches fill, processes start and memory grows
TICK = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int) -> float:
    """User and system seconds of process `root` and all its descendants, the ended ones as far as they were waited for.

    Linux only (/proc). A process that leaves the tree takes its seconds with it.
    """
    parents, seconds = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        parents[int(folder.name)] = int(fields[1])
        seconds[int(folder.name)] = sum(map(int, fields[11:15])) / TICK  # utime, stime, cutime, cstime
    return sum(seconds[pid] for pid in descendants(root, parents) if pid in seconds)


def descendants(root: int, parents: Mapping[int, int]) -> set[int]:
    """`root` and every process whose line of parents leads to it."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = set(), [root]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting += [child for child in children.get(pid, []) if child not in found]
    return found


class Laps:
    """Notes the end of every round."""

    def __init__(self, root: int | None = None) -> None:
        self._root = os.getpid() if root is None else root
        self._wall: list[float] = []
        self._cpu: list[float] = []
        self._machine: list[float] = []

    def lap(self) -> None:
        """A round ends here, or (the first call) the first one begins."""
        self._wall.append(time.perf_counter())
        self._cpu.append(tree_cpu_seconds(self._root))
        self._machine.append(machine_cpu_seconds())

    @property
    def others(self) -> float:
        """CPUs that programs outside the tree used meanwhile: what the figures may have suffered from."""
        wall, cpu, machine = (times[-1] - times[DROPPED] for times in (self._wall, self._cpu, self._machine))
        return round((machine - cpu) / wall, 2)

    def figures(self) -> dict[str, list[float]]:
        """Seconds of each round after the dropped ones."""
        return {
            "wall_seconds": differences(self._wall)[DROPPED:],
            "cpu_seconds": differences(self._cpu)[DROPPED:],
        }


def machine_cpu_seconds() -> float:
    """Seconds that all cores together were busy since the machine started (proc(5), stat)."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def differences(times: Sequence[float]) -> list[float]:
    return [round(after - before, 4) for before, after in zip(times, times[1:], strict=False)]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": round(statistics.median(seconds), 3), "min": min(seconds), "max": max(seconds)}


def check_rounds(rounds: int) -> None:
    """Raises ConfigError where no round would be counted."""
    if rounds <= DROPPED:
        raise ConfigError(f"rounds: {rounds}; more than the {DROPPED} that are not counted would be right")


def arguments(description: str | None, words: Sequence[str] | None = None) -> argparse.Namespace:
    """What every driver takes: `work`, `setup`, `processes` and `rounds`. Ends the program where they cannot be."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in asdict(Work()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=DROPPED + 5, help=f"the first {DROPPED} are not counted")
    parser.add_argument("--threads", type=int, default=1, help="of each process that trains")
    parser.add_argument("--processes", type=int, default=1, help="that train at the same time")
    parser.add_argument("--channels-last", action="store_true")
    found = parser.parse_args(words)
    try:
        check_rounds(found.rounds)
        found.work = Work(**{name: getattr(found, name) for name in asdict(Work())})
        found.setup = Setup(threads=found.threads, channels_last=found.channels_last)
    except ConfigError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    return found


def report(options: argparse.Namespace, laps: Laps, after_first: Weights, packages: Sequence[str]) -> dict[str, Any]:
    """What a driver found. Trains one round once more, plainly, and says how far `after_first` is from its mean."""
    start = weights_of(network_of(options.work))
    plain = serial_round(options.work, start, 1, options.setup.channels_last)
    figures = laps.figures()
    return {
        "versions": {name: metadata.version(name) for name in ("torch", "numpy", *packages)},
        "work": asdict(options.work),
        "setup": {**asdict(options.setup), "processes": options.processes},
        "rounds": len(figures["wall_seconds"]),
        **{name: {**spread(seconds), "each": seconds} for name, seconds in figures.items()},
        "others": laps.others,
        "difference": relative_difference(after_first, plain, start),
    }


def say(found: Mapping[str, Any]) -> None:
    """One line of JSON on standard output, after whatever the framework printed there."""
    print(json.dumps(found), flush=True)
