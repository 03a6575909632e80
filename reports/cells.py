"""Records joined to the cells of an item, and cells arranged as a table: what every view of a result starts from."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmark.papers.item import Cell, Item
from benchmark.tracking.record import RunRecord
from reports.statistics import Paired, Summary, paired, summary

Records: TypeAlias = Mapping[str, Mapping[int, RunRecord]]  # cell_key -> seed -> record
Status: TypeAlias = Literal["done", "partial", "missing", "diverged"]
ACCURACY = "test/accuracy"
SELECTED_ON_TEST = "selection: best round on the test set, as the paper did"


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What is known of one cell. Only finished runs are in `values`; diverged ones are listed, never averaged."""

    cell: Cell
    values: Mapping[int, float]  # seed -> the metric under the run's selection rule, in general after the last round
    diverged: tuple[int, ...]  # seeds
    unfinished: tuple[int, ...]  # seeds that were started, and failed or have not ended
    n_wanted: int
    selected_on_test: bool = False  # some value is that of the round that was best on the test set

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def summary(self) -> Summary | None:
        return summary(self.values.values()) if self.values else None

    @property
    def status(self) -> Status:
        """diverged where any run diverged, so that a mean of the survivors never passes for the whole cell."""
        if self.diverged:
            return "diverged"
        if not self.values:
            return "missing"
        return "done" if self.n >= self.n_wanted else "partial"

    @property
    def awaited(self) -> bool:
        """Whether the item counts on its runs; a quoted cell's are there only where somebody asked for them."""
        return self.cell.role != "quoted" or bool(self.values or self.diverged or self.unfinished)

    @property
    def counts(self) -> str:
        """For people: "n=3", "n=2/5", "not run (0/5)", "n=2/5, 1 diverged"; "quoted": nobody asked to run it."""
        if not self.awaited:
            return "quoted"
        if not self.values and not self.diverged:
            return f"not run (0/{self.n_wanted})"
        text = f"n={self.n}" if self.n >= self.n_wanted else f"n={self.n}/{self.n_wanted}"
        return f"{text}, {len(self.diverged)} diverged" if self.diverged else text


def cell_result(cell: Cell, records: Records, n_wanted: int, metric: str = ACCURACY) -> CellResult:
    """The cell's runs sorted into finished, diverged and unfinished. A finished run whose value is not finite
    counts as diverged: NaN must not reach a mean."""
    values: dict[int, float] = {}
    diverged: list[int] = []
    unfinished: list[int] = []
    runs = records.get(cell.cell_key, {})
    for seed, record in sorted(runs.items()):
        value = record.selected(metric)
        if record.status == "diverged" or (value is not None and not math.isfinite(value)):
            diverged.append(seed)
        elif record.status != "done":
            unfinished.append(seed)
        elif value is not None:
            values[seed] = float(value)
    return CellResult(
        cell=cell,
        values=values,
        diverged=tuple(diverged),
        unfinished=tuple(unfinished),
        n_wanted=n_wanted,
        selected_on_test=metric.startswith("test/") and any(runs[seed].selected_on_test for seed in values),
    )


def collect(item: Item, records: Records, metric: str = ACCURACY) -> dict[str, CellResult]:
    """Every cell of the item by label, in the item's order; none is left out."""
    return {cell.label: cell_result(cell, records, item.seeds, metric) for cell in item.cells}


def counted(item: Item, records: Records) -> Records:
    """The records of the item's own seeds. A trial may share a cell's key, under a seed of its own: what chose a
    setting must not count for it."""
    return {key: {seed: record for seed, record in runs.items() if seed < item.seeds} for key, runs in records.items()}


def notes_of(item: Item, results: Iterable[CellResult]) -> tuple[str, ...]:
    """The item's notes, and what has to be said beside its values: which of them test data chose, and what waits."""
    results = list(results)
    found = [result.cell.label for result in results if result.selected_on_test]
    where = "" if len(found) == sum(result.n > 0 for result in results) else f" ({', '.join(found)})"
    waiting = ", ".join(choice.label for choice in item.choices)
    return (
        *item.notes,
        *([f"{SELECTED_ON_TEST}{where}"] if found else []),
        *([f"waits for trials: {waiting}"] if waiting and item.rows == "settings" else []),
    )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a grid: the cells that differ only in their method."""

    setting: Mapping[str, object]  # what this row says, the keys that vary: {"cohort": "full", "C": 47}
    results: Mapping[str, CellResult]  # method -> cell; a method may be absent

    @property
    def name(self) -> str:
        return setting_text(self.setting)

    def difference(self, method: str, baseline: str) -> Paired | None:
        """method - baseline, paired by seed, at 95 %. None where either is absent or no seed is common."""
        if method not in self.results or baseline not in self.results:
            return None
        return paired(self.results[method].values, self.results[baseline].values)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Methods as columns, the other settings as rows. The first method is the one others are compared with."""

    methods: tuple[str, ...]
    rows: tuple[Row, ...]
    corner: str  # what the rows vary, "C"
    constant: str  # what all rows share, "K = 47"

    @property
    def baseline(self) -> str:
        return self.methods[0]

    @property
    def published_methods(self) -> tuple[str, ...]:
        """The methods for which the paper prints at least one number."""
        seen = [row.results for row in self.rows]
        return tuple(m for m in self.methods if any(m in r and r[m].cell.published is not None for r in seen))


def setting_text(setting: Mapping[str, object], separator: str = ", ") -> str:
    """ "full, C = 47": words speak for themselves, numbers need their symbol."""
    return separator.join(str(v) if isinstance(v, str) else f"{k} = {v}" for k, v in setting.items())


def ladder(results: Iterable[CellResult]) -> list[CellResult]:
    """The rungs of ours that show where a difference comes from; they stand below the table."""
    return [result for result in results if result.cell.role == "ladder"]


def grid(results: Iterable[CellResult]) -> Grid | None:
    """Cells (without the ladder) with `setting["method"]` as columns and the remaining keys as rows.
    None where a cell has no method or two cells fall on one place: such an item is shown as a list."""
    cells = [result for result in results if result.cell.role != "ladder"]
    if not cells or any("method" not in result.cell.setting for result in cells):
        return None
    others = [{k: v for k, v in result.cell.setting.items() if k != "method"} for result in cells]
    keys = list(dict.fromkeys(key for other in others for key in other))
    first = others[0]
    shared = {k: first[k] for k in keys if k in first and all(k in o and o[k] == first[k] for o in others)}
    varying = [key for key in keys if key not in shared]
    rows: dict[tuple[tuple[str, object], ...], dict[str, CellResult]] = {}
    for result, other in zip(cells, others, strict=True):
        row = rows.setdefault(tuple((key, other[key]) for key in varying if key in other), {})
        method = str(result.cell.setting["method"])
        if method in row:
            return None
        row[method] = result
    return Grid(
        methods=tuple(dict.fromkeys(str(result.cell.setting["method"]) for result in cells)),
        rows=tuple(Row(setting=dict(place), results=row) for place, row in rows.items()),
        corner=", ".join(varying),
        constant=setting_text(shared),
    )


def seeds_of(records: Records, cell: Cell) -> Sequence[RunRecord]:
    """The cell's records by seed."""
    return [record for _, record in sorted(records.get(cell.cell_key, {}).items())]
