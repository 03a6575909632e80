"""An item's results arranged as a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult
from benchmark.verdicts.statistics import Paired, paired

SELECTED_ON_TEST = "selection: best round on the test set, as the paper did"


def notes_of(item: Item, results: Iterable[CellResult]) -> tuple[str, ...]:
    """The item's notes, and what has to be said beside its values: which of them test data chose, and what waits."""
    results = list(results)
    found = [result.cell.label for result in results if result.selected_on_test]
    where = "" if len(found) == sum(result.n > 0 for result in results) else f" ({', '.join(found)})"
    waiting = ", ".join(choice.label for choice in item.choices)
    return (
        *item.notes,
        *([f"{SELECTED_ON_TEST}{where}"] if found else []),
        *([f"waits for trials: {waiting}"] if waiting and not item.methods_are_rows else []),
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
        return tuple(m for m in self.methods if any(m in r and r[m].cell.printed() is not None for r in seen))


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
