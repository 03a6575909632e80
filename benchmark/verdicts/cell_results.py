"""Records joined to the cells of an item: what verdicts and every view of a result start from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from benchmark.papers.item import ACCURACY as ACCURACY
from benchmark.papers.item import CONFIRMING, UNTRAINED, Cell, Item
from benchmark.records.record import FINISHED, RunRecord
from benchmark.records.record import Records as Records
from benchmark.verdicts.metrics import value_at
from benchmark.verdicts.statistics import Summary, summary

Status: TypeAlias = Literal["done", "partial", "missing", "diverged"]


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """What is known of one cell. Only finished runs are in `values`; diverged ones are listed, never averaged."""

    cell: Cell
    values: Mapping[int, float]  # seed -> the metric under the run's selection rule, in general after the last round
    diverged: tuple[int, ...]  # seeds
    n_wanted: int
    collapsed: bool = False  # its typical run ends below labels alone: shown, and kept out of averages
    selected_on_test: bool = False  # some value is that of the round that was best on the test set
    runs: tuple[RunRecord, ...] = field(default=(), repr=False)  # all of them, by seed

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def n_finished(self) -> int:
        """With those that diverged."""
        return self.n + len(self.diverged)

    @property
    def measured(self) -> bool:
        """Whether every finished run measured the metric."""
        known = {*self.values, *self.diverged}
        return all(run.seed in known for run in self.runs if run.status == "done")

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
        """Whether the item counts on its runs; a quoted cell's are there only where somebody asked for them, and a
        partition has none."""
        return self.cell.role not in UNTRAINED or bool(self.runs)

    @property
    def counts(self) -> str:
        """For people: "n=3", "n=2/5", "not run (0/5)", "n=2/5, 1 diverged"; "quoted": nobody asked to run it."""
        if not self.awaited:
            return self.cell.role
        if not self.values and not self.diverged:
            return f"not run (0/{self.n_wanted})"
        text = f"n={self.n}" if self.n >= self.n_wanted else f"n={self.n}/{self.n_wanted}"
        return f"{text}, {len(self.diverged)} diverged" if self.diverged else text


def cell_result(
    cell: Cell, records: Records, pilots: int, metric: str = ACCURACY, endpoint: str = "last"
) -> CellResult:
    """Read the values of the cell's finished runs, and which runs diverged.

    A finished run whose value is not finite counts as diverged: NaN must not reach a mean.
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
    selected_on_test = metric.startswith("test/") and any(runs[seed].selected_on_test for seed in values)
    return CellResult(
        cell=cell,
        values=values,
        diverged=tuple(diverged),
        n_wanted=n_wanted,
        selected_on_test=selected_on_test,
        runs=tuple(run for _, run in sorted(runs.items())),
    )


def counted(item: Item, records: Records) -> Records:
    """Select the records of the item's own seeds and of all seeds that confirm.

    A trial may share a cell's key, under a seed of its own: what chose a setting must not count for it.
    """
    selected: dict[str, dict[int, RunRecord]] = {}
    for key, runs in records.items():
        selected[key] = {seed: run for seed, run in runs.items() if seed < item.seeds or seed in CONFIRMING}
    return selected


def seeds_awaited(runs: Mapping[int, RunRecord], pilots: int) -> list[int]:
    """The seeds of a cell that a table counts on where no other number is asked for, those that are there included.

    As many as there are to be pilots, of whatever kind; no further ones where some are committed.
    """
    finished = [s for s, run in runs.items() if run.status in FINISHED and (s < pilots or s in CONFIRMING)]
    if any(runs[seed].committed for seed in finished):
        return finished
    absent = [seed for seed in range(pilots) if seed not in finished]
    return sorted([*finished, *absent[: max(0, pilots - len(finished))]])
