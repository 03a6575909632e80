"""Join records to the cells of an item, as input for verdicts and for every view of a result."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from benchmark.papers.item import ACCURACY as ACCURACY
from benchmark.papers.item import CONFIRMING, UNTRAINED, Cell, Item
from benchmark.records.record import FINISHED, CellRecords, RunRecord, select_seeds, stale_records
from benchmark.records.record import Records as Records
from benchmark.verdicts.metrics import value_at
from benchmark.verdicts.statistics import Summary, summary

Status: TypeAlias = Literal["done", "partial", "missing", "diverged"]


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The results of one cell. `values` contains only finished runs; diverged runs are listed and never averaged."""

    cell: Cell
    values: Mapping[int, float]  # seed -> the metric under the run's selection rule, usually after the last round
    diverged: tuple[int, ...]  # seeds
    n_wanted: int
    is_below_baseline: bool = False  # its median run ends below the supervised baseline: shown, not in averages
    selected_on_test: bool = False  # a value is from the round that was best on the test set
    runs: tuple[RunRecord, ...] = field(default=(), repr=False)  # all runs, ordered by seed
    stale: Mapping[int, float] = field(default_factory=dict)  # seed -> value, of finished runs that do not count
    stale_reason: str = ""  # why they do not count: "old code" or "different data"

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def n_finished(self) -> int:
        """Return the number of finished runs, including diverged ones."""
        return self.n + len(self.diverged)

    @property
    def measured(self) -> bool:
        """Return whether every finished run measured the metric."""
        known = {*self.values, *self.diverged}
        return all(run.seed in known for run in self.runs if run.status == "done")

    @property
    def summary(self) -> Summary | None:
        return summary(self.values.values()) if self.values else None

    @property
    def stale_summary(self) -> Summary | None:
        """Return the summary of the runs that do not count, for a cell without any finished run that does, and None for
        all other cells.
        """
        return summary(self.stale.values()) if self.stale and not self.n_finished else None

    @property
    def status(self) -> Status:
        """Return the status; it is "diverged" if any run diverged, so that a mean of the other runs
        never represents the cell.
        """
        if self.diverged:
            return "diverged"
        if not self.values:
            return "missing"
        return "done" if self.n >= self.n_wanted else "partial"

    @property
    def awaited(self) -> bool:
        """Return whether the item needs the cell's runs.

        A cited cell only has runs if somebody requested them, and a partition has none.
        """
        return self.cell.role not in UNTRAINED or bool(self.runs)

    @property
    def counts(self) -> str:
        """Return the counts for readers: "n=3", "n=2/5", "not run (0/5)", "n=2/5, 1 diverged"; or
        "quoted" if nobody requested it.
        """
        if not self.awaited:
            return self.cell.role
        if not self.values and not self.diverged:
            return f"not run (0/{self.n_wanted})"
        text = f"n={self.n}" if self.n >= self.n_wanted else f"n={self.n}/{self.n_wanted}"
        return f"{text}, {len(self.diverged)} diverged" if self.diverged else text


def cell_result(
    cell: Cell, records: Records, pilots: int, metric: str = ACCURACY, endpoint: str = "last"
) -> CellResult:
    """Return the values of the cell's finished runs, and the seeds of the runs that diverged.

    A finished run without a finite value counts as diverged, because NaN must not enter a mean.
    Finite values of runs that do not count are in `stale` only.
    """
    runs = records.get(cell.cell_key, {})
    n_wanted = len(seeds_awaited(runs, pilots))
    values: dict[int, float] = {}
    diverged: list[int] = []
    for seed, record in sorted(runs.items()):
        value = value_at(record, metric, endpoint)
        if record.status == "diverged" or (value is not None and not math.isfinite(value)):
            diverged.append(seed)
        elif record.status == "done" and value is not None:
            values[seed] = float(value)
    stale: dict[int, float] = {}
    reasons: set[str] = set()
    for seed, record in sorted(stale_records(runs).items()):
        value = value_at(record, metric, endpoint) if record.status == "done" else None
        if value is not None and math.isfinite(value):
            stale[seed] = float(value)
            reasons.add(record.stale)
    selected_on_test = metric.startswith("test/") and any(runs[seed].selected_on_test for seed in values)
    return CellResult(
        cell=cell,
        values=values,
        diverged=tuple(diverged),
        n_wanted=n_wanted,
        selected_on_test=selected_on_test,
        runs=tuple(run for _, run in sorted(runs.items())),
        stale=stale,
        stale_reason=" or ".join(sorted(reasons, reverse=True)),
    )


def without_trials(item: Item, records: Records) -> Records:
    """Return the records of the item's own seeds and of all confirmatory seeds.

    A trial may have the same cell key with a different seed. It must not count, because it was
    used to choose the setting.
    """
    selected: dict[str, CellRecords] = {}
    for key, runs in records.items():
        selected[key] = select_seeds(runs, lambda seed: seed < item.seeds or seed in CONFIRMING)
    return selected


def seeds_awaited(runs: Mapping[int, RunRecord], pilots: int) -> list[int]:
    """Return the seeds of a cell that a table expects by default, including the finished ones.

    There are `pilots` seeds, of whatever kind. If some are committed, no further ones are
    expected.
    """
    finished = [s for s, run in runs.items() if run.status in FINISHED and (s < pilots or s in CONFIRMING)]
    if any(runs[seed].committed for seed in finished):
        return finished
    absent = [seed for seed in range(pilots) if seed not in finished]
    return sorted([*finished, *absent[: max(0, pilots - len(finished))]])
