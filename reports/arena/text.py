"""The arena's table in words: what every view of it says of a column, and its rows in the order in which they stand."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult
from benchmark.verdicts.statistics import LEVEL
from reports.arena.table import BASES, RANK_SEEDS, Basis, Column, Entry, Placing, footnotes, method_of, remarks
from reports.words import mean_spread, percent, points, points_interval

Kind: TypeAlias = Literal["compared", "apart", "waiting", "bound"]
BASIS_NAMES: Mapping[Basis, str] = {"rounds": "equal rounds", "steps": "equal local steps", "bytes": "equal bytes"}
NO_VALUE = "-"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row: a compared method, or one that has no place in the ranking and says why, or a bound."""

    method: str
    kind: Kind
    marks: tuple[int, ...]  # numbers of its footnotes
    status: str  # "n=3", "n=4/5, 1 diverged", "not run (0/5)", "waits for trials"
    result: CellResult | None = None  # None: waiting
    entry: Entry | None = None  # of a compared method

    def place(self, basis: Basis) -> Placing | None:
        return None if self.entry is None else self.entry.places.get(basis)

    @property
    def bound(self) -> CellResult | None:
        """A bound that has a value to show: as for methods, none where a run diverged."""
        known = self.kind == "bound" and self.result is not None and self.result.n and not self.result.diverged
        return self.result if known else None

    @property
    def named(self) -> str:
        """ "RSCFed [1, 4]": the method and its footnotes."""
        return f"{self.method} [{', '.join(map(str, self.marks))}]" if self.marks else self.method


def lines(item: Item, column: Column) -> tuple[Line, ...]:
    """Compared methods in their order, then those apart, those that wait, and the bounds."""
    numbers = footnotes(item)

    def marks(note: str) -> tuple[int, ...]:
        return tuple(sorted(numbers[part] for part in remarks(note)))

    def line(result: CellResult, kind: Kind, entry: Entry | None = None) -> Line:
        cell = result.cell
        other = cell.setting.get(column.key, column.value)
        return Line(
            method=method_of(cell) if other == column.value else f"{method_of(cell)} ({other})",
            kind=kind,
            marks=marks(cell.note),
            status=result.counts,
            result=result,
            entry=entry,
        )

    return (
        *(line(entry.result, "compared", entry) for entry in column.entries),
        *(line(result, "apart") for result in column.apart),
        *(
            Line(
                method=method_of(choice),
                kind="bound" if choice.role == "bound" else "waiting",
                marks=marks(choice.note),
                status="waits for trials",
            )
            for choice in sorted(column.waiting, key=lambda choice: choice.role == "bound")
        ),
        *(line(result, "bound") for result in column.bounds),
    )


def title(column: Column) -> str:
    """ "own hyperparameters", "alpha = 0.1"; "all methods" where nothing else varies."""
    if column.value is None:
        return "all methods"
    return f"{column.value} {column.key}" if isinstance(column.value, str) else column.name


def budgets(column: Column) -> dict[Basis, str]:
    """What the methods are compared at: "100 rounds", "3,200 local steps", "12.4 MB"; "-" while no run sets it."""
    steps, sent = column.budget.get("steps"), column.budget.get("bytes")
    return {
        "rounds": "the last round" if column.rounds is None else f"{column.rounds:,} rounds",
        "steps": NO_VALUE if steps is None else f"{thousands(steps)} local steps",
        "bytes": NO_VALUE if sent is None else f"{megabytes(sent)} MB",
    }


def budget_text(column: Column) -> str:
    """ "compared at 100 rounds; 3,200 local steps; 12.4 MB up + down"."""
    return f"compared at {'; '.join(budgets(column).values())} up + down"


def standing(column: Column, n_wanted: int) -> str:
    """How the column is ordered, and how sure that order is."""
    if not column.entries:
        return "no finished run yet"
    if not column.seeds:
        return "no seed is common to all methods: neither ranks nor groups"
    n, comparisons = len(column.seeds), len(column.entries) - 1
    seeds = f"{n} common seed{'s' * (n > 1)}{f' of {n_wanted} wanted' if n < n_wanted else ''}"
    if n == 1:
        return f"{seeds}: no interval, so all methods are one group of ties"
    among = f"{comparisons} comparison{'s' * (comparisons != 1)}"
    interval = f"{100 * LEVEL:.0f} % interval (paired by seed, Bonferroni over {among})"
    if column.ranked:
        return f"{seeds}: ranks by mean, and differences to the best with their {interval}"
    return (
        f"{seeds}, below the {RANK_SEEDS} that ranks need. Letters are groups of ties: a new one begins where the "
        f"difference to the group's first method has a {interval} without zero"
    )


def accuracy(placing: Placing | None, plus_minus: str | None = "±") -> str:
    """ "97.10 ±0.32 a", "1. 97.10 ±0.32" with ranks, "-" where the budget bought no evaluation. Without a sign for the
    spread (`plus_minus` None) the mean alone."""
    if placing is None:
        return NO_VALUE
    text = percent(placing.summary.mean) if plus_minus is None else mean_spread(placing.summary, plus_minus)
    if placing.rank is not None:
        return f"{placing.rank}. {text}"
    return f"{text} {placing.group}" if placing.group else text


def to_best(placing: Placing | None) -> str:
    """ "-1.23 [-2.1, -0.3]", the difference to the best in points; "best"; empty without ranks."""
    if placing is None or placing.rank is None:
        return ""
    if placing.difference is None:
        return "best"
    seen = placing.difference
    return f"{points(seen.mean)} {points_interval(seen.interval) if seen.has_spread else 'no spread'}"


def every_seed(values: Mapping[int, float]) -> str:
    """All values in the order of their seeds, percent: "96.8 97.1 97.4"."""
    return " ".join(percent(value, 1) for _, value in sorted(values.items()))


def thousands(value: float) -> str:
    return f"{value:,.0f}"


def megabytes(value: float) -> str:
    """Bytes in MB (10^6), three digits where it is small: 12400000 -> "12.4"."""
    found = value / 1e6
    return f"{found:,.0f}" if found >= 1000 else f"{found:.3g}"


def costs(line: Line) -> tuple[str, str]:
    """Local steps and MB of a whole run; "-" where it is in no comparison."""
    if line.entry is None:
        return NO_VALUE, NO_VALUE
    return thousands(line.entry.costs["steps"]), megabytes(line.entry.costs["bytes"])


def caption() -> str:
    return f"test accuracy in percent at {', at '.join(BASIS_NAMES[basis] for basis in BASES)}"
