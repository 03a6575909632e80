"""Read the queue of runs for short slots on a GPU and for idle hours: its entries, and the runs of each seed."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.config import Checked, from_plain, nearest, quoted
from benchmark.errors import ConfigError, one_line
from benchmark.experiment import Experiment
from benchmark.federated.processes import CPU
from benchmark.papers.item import CONFIRMING, PILOTS, Item
from benchmark.papers.items import items
from benchmark.verdicts.families import first_seed_of
from sweeps.plan import plan

QUEUE = Path(__file__).with_name("queue.toml")
CUDA = "cuda"


@dataclass(frozen=True, kw_only=True)
class QueueEntry(Checked):
    """An entry of the queue: its name, the arms and seeds that judge it, and the planned cost."""

    name: str
    item: str
    profile: str
    labels: tuple[str, ...]  # labels of the cells that are the arms
    seeds: tuple[int, ...]
    device: str  # "cpu" or "cuda"
    card: str = ""  # the only model of GPU that trains it, such as "NVIDIA H200"; empty for any
    local_steps: int  # planned steps of all its runs, whether they are done or not
    core_hours: float | None = None  # planned hours on a CPU
    card_minutes: float | None = None  # planned minutes on a GPU
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
            allowed = "only seeds 0 to 99 (exploratory) and 100 to 999 (confirmatory) are allowed"
            raise ConfigError(f"seeds contains {outside[0]}, but {allowed}")
        if len({first_seed_of(seed) for seed in self.seeds}) > 1:
            first = " and ".join(map(str, sorted({first_seed_of(seed) for seed in self.seeds})))
            raise ConfigError(f"seeds are from the hundreds that begin at {first}; write one entry for each hundred")


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
        raise ConfigError(f"{entry.item!r} names {len(found)} tables and figures; name one, such as {found[0].name!r}")
    return plan(found, results, tell=False).items[0] if found[0].choices else found[0]
