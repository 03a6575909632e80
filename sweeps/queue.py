"""Read the queue of runs for short slots on a GPU and for idle hours, and decide which of its units fit.

A unit consists of all runs of an entry with one seed. One machine trains all of them, because a verdict compares the
arms of a seed. A unit begins only if all of its runs can end in time.
"""

import heapq
import os
import time
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmark.config import Checked, from_plain, nearest, quoted
from benchmark.errors import ConfigError, DataError, FsslError, one_line
from benchmark.experiment import NUMERICS, Experiment
from benchmark.federated.processes import CPU
from benchmark.files import write_atomically
from benchmark.papers.item import CONFIRMING, PILOTS, Item
from benchmark.papers.items import items
from benchmark.records.collect import runs_in
from benchmark.records.copies import copied, copy_path, read_copy, reference_folders
from benchmark.records.identity import changed_inputs
from benchmark.records.record import FINISHED, RunRecord, read_run, run_folder
from benchmark.records.run_lock import is_held
from benchmark.verdicts.families import first_seed_of
from benchmark.verdicts.uniform import STRICT_SINCE
from sweeps.launcher import Launch
from sweeps.plan import plan
from sweeps.status import in_words

QUEUE = Path(__file__).with_name("queue.toml")
CUDA = "cuda"
SHARE_TO_SAVE = 0.02  # unfinished runs are stopped, so that they save, this share of the time before its end
# Runs that one card trains at the speed of a single run, as measured on an H200 (reports/performance.md).
RUNS_IN_TURN, RUNS_UNDER_MPS = 3.0, 8.0
LONGER = 0.1  # a run that is slower than expected is expected to need a further tenth of its time so far


@dataclass(frozen=True, kw_only=True)
class QueueEntry(Checked):
    """An entry of the queue: its name, the arms and seeds that judge it, and the planned cost."""

    name: str
    item: str
    profile: str
    labels: tuple[str, ...]  # labels of the cells that are the arms
    seeds: tuple[int, ...]
    device: str  # "cpu" or "cuda"
    card: str = ""  # the only kind of card that trains it, such as "NVIDIA H200"; empty for any card
    local_steps: int  # planned steps of all its runs, whether they are done or not
    core_hours: float | None = None  # planned hours on a CPU
    card_minutes: float | None = None  # planned minutes on a card
    comment: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device not in (CPU, CUDA):
            raise ConfigError(f"device is {self.device!r}; write {CPU!r} or {CUDA!r}")
        if self.card and self.device != CUDA:
            raise ConfigError(f"card is {self.card!r}, but device is {self.device!r}; write device = {CUDA!r}")
        cost, other = ("core_hours", "card_minutes") if self.device == CPU else ("card_minutes", "core_hours")
        if getattr(self, cost) is None or getattr(self, other) is not None:
            raise ConfigError(f"device is {self.device!r}, so {cost} is needed and {other} is not allowed")
        for name in ("labels", "seeds"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ConfigError(f"{name} is empty or contains a value twice: {quoted(list(values))}")
        outside = [seed for seed in self.seeds if seed not in PILOTS and seed not in CONFIRMING]
        if outside:
            last = CONFIRMING.stop - 1
            raise ConfigError(f"seeds contains {outside[0]}, but only seeds 0 to {last} belong to a seed block")
        if len({first_seed_of(seed) for seed in self.seeds}) > 1:
            blocks = sorted({first_seed_of(seed) for seed in self.seeds})
            raise ConfigError(f"seeds belong to the blocks from {blocks}; write one entry for each block")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The runs of an entry with one seed, in the order of its labels."""

    entry: QueueEntry
    seed: int
    runs: tuple[Experiment, ...]


def read_queue(path: Path) -> list[QueueEntry]:
    """Read the entries of a queue file in order. Raise ConfigError for a file that is not one."""
    try:
        data = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({one_line(error)}); name a queue file with --file") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not a TOML file ({one_line(error)}); correct it") from None
    tables = data.get("entries")
    if set(data) != {"entries"} or not isinstance(tables, list):
        raise ConfigError(f"{path} contains {quoted(sorted(data))}; a queue file has only [[entries]]")
    return [_entry(table, f"{path}: entries[{index}]") for index, table in enumerate(tables)]


def _entry(table: Any, path: str) -> QueueEntry:
    if isinstance(table, Mapping) and isinstance(seeds := table.get("seeds"), Mapping):
        first, number = seeds.get("first"), seeds.get("number")
        if set(seeds) != {"first", "number"} or not isinstance(first, int) or not isinstance(number, int):
            raise ConfigError(
                f"{path}.seeds is {quoted(seeds)}, which is not understood; write {{first = 100, number = 16}}"
            )
        table = {**table, "seeds": list(range(first, first + number))}
    return from_plain(QueueEntry, table, path)


def units_of(entries: Sequence[QueueEntry], results: Path, path: Path) -> list[Unit]:
    """Return the units of the entries in order, seed by seed. Raise ConfigError for unknown names."""
    units = []
    for index, entry in enumerate(entries):
        where = f"{path}: entries[{index}] ({entry.name})"
        try:
            item = _item(entry, results)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        # An entry may also name a cell whose published number is cited from a different paper.
        cells = {cell.label: cell.experiment for cell in item.with_quoted().trained}
        for label in entry.labels:
            if label in {choice.label for choice in item.choices}:
                raise ConfigError(
                    f"{where}: trials choose the setting of {label!r}; run `fssl reproduce {entry.item}` first"
                )
            if label not in cells:
                raise ConfigError(f"{where}: unknown label {label!r} of {item.name}; {nearest(label, cells)}")
        for seed in entry.seeds:
            runs = tuple(cells[label].with_seed(seed) for label in entry.labels)
            units.append(Unit(entry=entry, seed=seed, runs=runs))
    return units


def _item(entry: QueueEntry, results: Path) -> Item:
    """Return the entry's table or figure, with the cells that its trials have chosen."""
    found = items([entry.item], entry.profile)
    if len(found) != 1:
        raise ConfigError(f"{entry.item!r} names {len(found)} items; name one, such as {found[0].name!r}")
    return plan(found, results, tell=False).items[0] if found[0].choices else found[0]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The properties of a machine that the arms of one seed must share."""

    device: str  # "cpu", or the name of the card
    processor: str
    torch: str  # the first two numbers of torch's version

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> "Machine":
        """Return the machine that a run record's manifest names."""
        device = manifest.get("engine", {}).get("device", CPU)
        processor = str(manifest.get("hardware", {}).get("processor", ""))
        version = str(manifest.get("packages", {}).get("torch", ""))
        return cls(device=str(device), processor=processor, torch=".".join(version.split(".")[:2]))

    def trains(self, entry: QueueEntry) -> bool:
        """Return whether the entry is for this kind of device."""
        kind = CPU if self.device == CPU else CUDA
        return entry.device == kind and entry.card in ("", self.device)


class Shelf:
    """The finished run records from one kind of device and with the current numerics.

    `folders` contain copies, in addition to the folders of the checkout and of the results folder.
    """

    def __init__(self, results: Path, device: str, folders: Iterable[Path] = ()) -> None:
        self._results, self._device = results, device
        self._copies = list(dict.fromkeys([*reference_folders(results), *folders]))

    def finished(self, run: Experiment) -> RunRecord | None:
        """Return the finished run record, or None. A record in the results folder overrides a copy."""
        record = self.here(run)
        if record is not None and record.status in FINISHED and self._counts(record):
            return record
        return next((copy for copy in self._all_copies(run) if self._counts(copy)), None)

    def here(self, run: Experiment) -> RunRecord | None:
        """Return the run record in the results folder, whatever its state and device, or None if it is unreadable."""
        try:
            return read_run(run_folder(self._results, run))
        except (FsslError, OSError):  # the launch reports it
            return None

    def _all_copies(self, run: Experiment) -> Iterator[RunRecord]:
        for folder in self._copies:
            for path in runs_in(folder / run.cell_key, []):
                if path.name.split(".")[0].split("@")[0] == f"seed={run.seed}":
                    try:
                        yield read_copy(path)
                    except (FsslError, OSError):  # `fssl verify` reports it
                        continue

    def _counts(self, record: RunRecord) -> bool:
        same = Machine.of(record.manifest).device == self._device and record.result.get("numerics") == NUMERICS
        return same and not changed_inputs(record.experiment, record.manifest, finished=True)


def write_copy(folder: Path, record: RunRecord, known: Iterable[Path] = ()) -> Path | None:
    """Write the compact copy of a finished run into the folder. Return its path, or None if it exists already.

    `known` are further folders with copies, which decide whether it is a second copy (`copy_path`). Raise DataError for
    a run record that must not be committed.
    """
    if "@" in record.path.name:
        raise DataError(
            f"{record.path} was computed from different data or code than its seed's first run; it is not copied"
        )
    path = copy_path(folder, record, known)
    if path.exists():
        return None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, copied(record))
    return path


class Pace:
    """The expected seconds of a run: as planned at first, then corrected by the runs that ended in this call."""

    def __init__(self, planned: Callable[[Experiment], float]) -> None:
        self._planned = planned  # maps a run to its seconds on this machine while the other runs train
        self._taken: dict[str, list[float]] = defaultdict(list)  # ratios of measured to planned seconds by cell

    def note(self, run: Experiment, seconds: float, share: float = 1.0) -> None:
        """Record the seconds of a run that has ended. This call trained the fraction `share` of the run."""
        self._taken[run.cell_key].append(seconds / (share * self._planned(run)))

    def seconds(self, run: Experiment) -> float:
        """Return the expected seconds of the whole run."""
        every = (ratio for ratios in self._taken.values() for ratio in ratios)
        ratios = self._taken.get(run.cell_key) or list(every) or [1.0]
        return self._planned(run) * sum(ratios) / len(ratios)


def crowding(side_by_side: int, devices: Sequence[str], cores: int) -> float:
    """Estimate the factor that slows a run if other runs train at the same time."""
    if devices[0] == CPU:
        return max(1.0, side_by_side / cores)
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    at_once = RUNS_UNDER_MPS if Path(pipe, "control").exists() else RUNS_IN_TURN
    return max(1.0, side_by_side / len(set(devices)) / at_once)


@dataclass(kw_only=True)
class Timetable:
    """Decides which runs may begin, and has the state of each unit. `launch` calls `fits` and `watch`."""

    units: Sequence[Unit]
    shelf: Shelf
    results: Path
    side_by_side: int
    until: float  # the time for stopping unfinished runs, on the clock `now`
    pace: Pace
    # The share of its rounds that a run has left; it is smaller than 1 if the run began before this call.
    share_left: Callable[[Experiment], float] = lambda run: 1.0
    when_complete: Callable[[Unit], None] = lambda unit: None
    now: Callable[[], float] = time.monotonic
    admitted: list[Unit] = field(default_factory=list)
    complete: list[Unit] = field(default_factory=list)  # units with finished runs only
    before: list[Unit] = field(default_factory=list)  # complete units that were complete before this call
    trained: list[Experiment] = field(default_factory=list)
    refused: dict[Unit, str] = field(default_factory=dict)  # units that cannot begin in this call, with the reason
    too_long: dict[Unit, str] = field(default_factory=dict)  # units that do not fit at the moment, with the reason

    def __post_init__(self) -> None:
        self._begun: dict[Experiment, float] = {}
        self._finished: set[Experiment] = set()
        self._of = defaultdict[Experiment, list[Unit]](list)
        for unit in self.units:
            for run in unit.runs:
                self._of[run].append(unit)

    def prepare(self, here: Machine) -> list[Experiment]:
        """Return the runs to train, unit by unit and the longest first. Refuse units that would be split by machine."""
        for unit in self.units:
            records = {run: self.shelf.finished(run) for run in unit.runs}
            self._finished |= {run for run, record in records.items() if record is not None}
            missing = [run for run, record in records.items() if record is None]
            if not missing:
                self.before.append(unit)
                self._complete(unit)
                continue
            for record in filter(None, records.values()):
                there = Machine.of(record.manifest)
                since = int(record.manifest.get("rule", {}).get("version", 0))
                if there != here and since >= STRICT_SINCE:
                    was = f"{there.processor}, torch {there.torch}"
                    self.refused[unit] = f"some of its runs are from a different machine ({was})"
            for record in filter(None, map(self.shelf.here, missing)):
                device = Machine.of(record.manifest).device
                if record.status in FINISHED or device != here.device:
                    self.refused[unit] = f"{record.path} does not count here (made on {device}); name other --results"
        open_units = [unit for unit in self.units if unit not in self.complete and unit not in self.refused]
        ordered = (run for unit in open_units for run in sorted(unit.runs, key=self._left, reverse=True))
        return [run for run in dict.fromkeys(ordered) if run not in self._finished]

    def fits(self, run: Experiment, state: Launch) -> bool:
        """Return whether the run may begin now, because all runs of one of its units can end in time."""
        self._see(state)
        for unit in self._of[run]:
            if unit in self.refused or unit in self.complete:
                continue
            if unit not in self.admitted and not self._admits(unit):
                continue
            if self.now() + self._left(run) <= self.until:
                return True
            self.too_long[unit] = self._why(self.now() + self._left(run))
        return False

    def watch(self, state: Launch) -> None:
        """Record the runs that have ended, and raise TimeIsUp if it is time to stop."""
        self._see(state)
        if self.now() >= self.until and state.at_work:
            raise TimeIsUp

    def close(self) -> None:
        """Update all units once more, because some runs end while the others are stopped."""
        for run in [run for run in self._begun if self.shelf.finished(run) is not None]:
            del self._begun[run]
            self.trained.append(run)
        for unit in self.units:
            if unit not in self.complete and all(self.shelf.finished(run) is not None for run in unit.runs):
                self._complete(unit)

    @property
    def stopped(self) -> list[Experiment]:
        """Return the runs that were training when the call ended."""
        return list(self._begun)

    def _complete(self, unit: Unit) -> None:
        self.complete.append(unit)
        self.when_complete(unit)

    def _see(self, state: Launch) -> None:
        now = self.now()
        for run in state.at_work - self._begun.keys():
            self._begun[run] = now
        for run in [run for run in self._begun if run not in state.at_work]:
            began = self._begun.pop(run)
            if self.shelf.finished(run) is not None:
                self.pace.note(run, now - began, self.share_left(run))
                self.trained.append(run)
                self._finished.add(run)
        for unit in self.admitted:
            if unit not in self.complete and self._finished.issuperset(unit.runs):
                self._complete(unit)

    def _left(self, run: Experiment) -> float:
        """Return the seconds that a run needs from its last save to its end."""
        return self.pace.seconds(run) * self.share_left(run)

    def _admits(self, unit: Unit) -> bool:
        end = self._end_of(unit)
        if end > self.until:
            self.too_long[unit] = self._why(end)
            return False
        others = [run for run in self._missing(unit) if run not in self._begun]
        if any(is_held(run_folder(self.results, run)) for run in others):
            self.refused[unit] = "another process trains one of its runs"
            return False
        self.too_long.pop(unit, None)
        self.admitted.append(unit)
        return True

    def _why(self, end: float) -> str:
        now = self.now()
        return f"needs about {in_words(end - now)}, and {in_words(max(0.0, self.until - now))} are left"

    def _missing(self, unit: Unit) -> list[Experiment]:
        return [run for run in unit.runs if run not in self._finished]

    def _end_of(self, unit: Unit) -> float:
        """Return when the unit's last run would end if it waits for all runs of the units that are already admitted."""
        now = self.now()
        free = [now] * self.side_by_side
        for index, (run, began) in enumerate(self._begun.items()):
            left = max(began + self._left(run) - now, LONGER * (now - began))
            free[index % self.side_by_side] = now + left
        heapq.heapify(free)
        before = (run for other in self.admitted for run in self._missing(other))
        own = sorted(self._missing(unit), key=self._left, reverse=True)
        ends = [now]
        for run in dict.fromkeys((*before, *own)):
            if run not in self._begun:
                ends.append(free[0] + self._left(run))
                heapq.heapreplace(free, ends[-1])
        return max(ends)


class TimeIsUp(Exception):
    """Signals that the time of the queue is over and that unfinished runs are saved."""
