"""The arena's table as numbers: methods under one environment, compared at equal rounds, local steps and bytes sent.

A column holds the cells that differ in nothing but their method (hyperparameters "own", or alpha = 0.1). All means of
a column are over the same seeds, those that every compared method has; a method without a finished run, or with a
diverged one, is listed beside the others and never averaged.

The budget of local steps (and of bytes up + down) is the least that a compared method spends in a whole run; what a
method reached at it is its last evaluation that the budget still paid for. Costs are running sums over the record's
rounds, the same sums as in its result.json.

Order is by mean. With RANK_SEEDS common seeds or more a column has ranks, and the t interval of each method's
difference to the best, paired by seed. With fewer it has groups of ties: down the order, a method starts a new group
where the interval of its difference to the group's first method excludes zero. Either way each method but the first is
compared once, and the level is 1 - 0.05 / (methods - 1) (Bonferroni).
"""

import math
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmark.papers.item import Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.judge import FAMILY_ERROR
from benchmark.verdicts.results import ACCURACY, CellResult, Records, collect, seeds_of
from benchmark.verdicts.statistics import Paired, Summary, paired, summary

Basis: TypeAlias = Literal["rounds", "steps", "bytes"]
BASES: tuple[Basis, ...] = ("rounds", "steps", "bytes")
COSTS: Mapping[Basis, tuple[str, ...]] = {"steps": ("local_steps",), "bytes": ("comm/bytes_up", "comm/bytes_down")}
RANK_SEEDS = 5


@dataclass(frozen=True, kw_only=True)
class Placing:
    """A method's place in a column on one basis. Exactly one of rank and group is set where seeds are common."""

    values: Mapping[int, float]  # seed -> accuracy, a fraction
    summary: Summary
    rank: int | None = None  # 1 is best; equal means share a rank
    group: str | None = None  # "a" is the group of the best
    difference: Paired | None = None  # to the best, at the corrected level; None for the best and without ranks


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A compared method."""

    result: CellResult
    places: Mapping[Basis, Placing]  # a basis is absent where a seed had no evaluation within the budget
    costs: Mapping[Basis, float]  # "steps" and "bytes" of a whole run, mean over the column's seeds

    @property
    def cell(self) -> Cell:
        return self.result.cell


@dataclass(frozen=True, kw_only=True)
class Column:
    """The methods of one value of the setting that varies."""

    key: str  # "hyperparameters"
    value: str | int | float | None  # "own"; None: the methods are all that varies
    seeds: tuple[int, ...]  # common to all compared methods; empty: none is, and nothing is ranked or grouped
    rounds: int | None  # of every compared run; None where they differ, and "equal rounds" means each one's last
    budget: Mapping[Basis, float]  # "steps" and "bytes"; absent without a finished run
    entries: tuple[Entry, ...]  # compared methods, best at equal rounds first
    apart: tuple[CellResult, ...]  # without a finished run, or with a diverged one
    waiting: tuple[Choice, ...]  # chosen when their trials are done
    bounds: tuple[CellResult, ...]  # beside the ranking, at equal rounds only

    @property
    def name(self) -> str:
        value = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return "all" if value is None else f"{self.key} = {value}"

    @property
    def ranked(self) -> bool:
        return len(self.seeds) >= RANK_SEEDS


def columns(item: Item, records: Records) -> tuple[Column, ...]:
    """The item's columns, in the order in which its cells name them. Cells of role "ladder" belong to none."""
    results = [result for result in collect(item, records).values() if result.cell.role != "ladder"]
    key = varying(item)
    ranked = [setting for setting, role in _settings(item) if role != "bound"]
    values = list(dict.fromkeys(setting.get(key) for setting in ranked or (s for s, _ in _settings(item))))
    return tuple(_column(key, value, results, item.choices, records) for value in values)


def varying(item: Item) -> str:
    """The one key of the settings beside "method", "hyperparameters" or "alpha"; empty where there is none."""
    keys = dict.fromkeys(key for setting, _ in _settings(item) for key in setting if key != "method")
    return next(iter(keys), "")


def method_of(entry: Cell | Choice) -> str:
    return str(entry.setting.get("method", entry.label))


def methods(item: Item) -> tuple[str, ...]:
    """Every ranked method once, in the item's order: what fixes its colour in all figures."""
    found = [entry for entry in all_of(item) if entry.role not in ("bound", "ladder")]
    return tuple(dict.fromkeys(method_of(entry) for entry in found))


def remarks(note: str) -> list[str]:
    """A cell's note in its parts: `Choice.cell` puts what was chosen before the choice's own note, with a semicolon."""
    return [part for part in note.split("; ") if part]


def footnotes(item: Item) -> dict[str, int]:
    """The remarks on cells and waiting choices, numbered from 1 in the item's order, the same remark once."""
    found = dict.fromkeys(part for entry in all_of(item) for part in remarks(entry.note))
    return {remark: number for number, remark in enumerate(found, start=1)}


def spent(record: RunRecord, basis: Basis) -> float:
    """What a whole run spent: local steps, or bytes up + down."""
    return sum(_costs(record, basis))


def at_budget(record: RunRecord, basis: Basis, budget: float) -> float | None:
    """The test accuracy of the last evaluation that the budget paid for, or of the best one where the run's selection
    rule is the best round; None where even the first cost more."""
    value, total = None, 0.0
    for line, cost in zip(record.rounds, _costs(record, basis), strict=True):
        total += cost
        if total > budget:
            break
        found = line.get(ACCURACY)
        if found is not None and math.isfinite(found):
            value = float(found) if value is None or not record.selected_on_test else max(value, float(found))
    return value


def place(values: Mapping[str, Mapping[int, float]], seeds: Sequence[int]) -> dict[str, Placing]:
    """Label -> its place, best mean first; `values` is label -> seed -> accuracy, each with every one of `seeds`.
    Without common seeds (`seeds` empty) the means are of other seeds each, so there is neither rank nor group."""
    known = {label: {s: found[s] for s in seeds} if seeds else dict(found) for label, found in values.items() if found}
    means = {label: summary(found.values()) for label, found in known.items()}
    order = sorted(known, key=lambda label: -means[label].mean)
    level = 1 - FAMILY_ERROR / max(1, len(order) - 1)
    groups = _groups([known[label] for label in order], level) if 0 < len(seeds) < RANK_SEEDS else []
    ranked = len(seeds) >= RANK_SEEDS
    return {
        label: Placing(
            values=known[label],
            summary=means[label],
            rank=1 + sum(means[other].mean > means[label].mean for other in order) if ranked else None,
            group=groups[position] if groups else None,
            difference=paired(known[label], known[order[0]], level) if ranked and position else None,
        )
        for position, label in enumerate(order)
    }


def _groups(ordered: Sequence[Mapping[int, float]], level: float) -> list[str]:
    """A letter each. One seed, or seeds that all give the same difference, have no interval that could part them."""
    letters: list[str] = []
    first, number = ordered[0] if ordered else {}, 0
    for values in ordered:
        seen = paired(first, values, level)
        if seen is not None and seen.interval is not None and seen.has_spread and seen.interval[0] > 0:
            first, number = values, number + 1
        letters.append(string.ascii_lowercase[number % 26] * (number // 26 + 1))
    return letters


def _settings(item: Item) -> list[tuple[Mapping[str, str | int | float], str]]:
    return [(entry.setting, entry.role) for entry in all_of(item) if entry.role != "ladder"]


def all_of(item: Item) -> tuple[Cell | Choice, ...]:
    return (*item.cells, *item.choices)


def _column(
    key: str,
    value: str | int | float | None,
    results: Sequence[CellResult],
    choices: Iterable[Choice],
    records: Records,
) -> Column:
    mine = [r for r in results if r.cell.setting.get(key) == value and r.cell.role != "bound"]
    compared = [result for result in mine if result.values and not result.diverged]
    common = set.intersection(*(set(result.values) for result in compared)) if compared else set()
    seeds = tuple(sorted(common))
    runs = {r.cell.label: _runs(r, records, seeds) for r in compared}
    every = [run for found in runs.values() for run in found]
    budget, lengths = _budget(every), {len(run.rounds) for run in every}
    return Column(
        key=key,
        value=value,
        seeds=seeds,
        rounds=lengths.pop() if len(lengths) == 1 else None,
        budget=budget,
        entries=_entries(compared, runs, seeds, budget),
        apart=tuple(result for result in mine if result not in compared),
        waiting=tuple(c for c in choices if c.setting.get(key, value) == value),
        bounds=_bounds(key, value, results),
    )


def _bounds(key: str, value: str | int | float | None, results: Sequence[CellResult]) -> tuple[CellResult, ...]:
    """The column's own bounds, and those that the item has only once, which stand beside every column."""
    found = [result for result in results if result.cell.role == "bound"]
    times = Counter(method_of(result.cell) for result in found)
    return tuple(r for r in found if r.cell.setting.get(key) == value or times[method_of(r.cell)] == 1)


def _entries(
    compared: Sequence[CellResult],
    runs: Mapping[str, Sequence[RunRecord]],
    seeds: Sequence[int],
    budget: Mapping[Basis, float],
) -> tuple[Entry, ...]:
    reached: dict[Basis, dict[str, Mapping[int, float]]] = {"rounds": {r.cell.label: r.values for r in compared}}
    for basis, most in budget.items():
        reached[basis] = {label: _within(found, basis, most) for label, found in runs.items()}
    places = {basis: place(values, seeds) for basis, values in reached.items()}
    position = {label: number for number, label in enumerate(places["rounds"])}
    return tuple(
        Entry(
            result=result,
            places={basis: found[result.cell.label] for basis, found in places.items() if result.cell.label in found},
            costs={basis: summary(spent(run, basis) for run in runs[result.cell.label]).mean for basis in COSTS},
        )
        for result in sorted(compared, key=lambda result: position[result.cell.label])
    )


def _within(runs: Sequence[RunRecord], basis: Basis, budget: float) -> Mapping[int, float]:
    """Seed -> value; empty where any run has none, so that a mean is never of other seeds than its neighbours'."""
    found = {run.seed: at_budget(run, basis, budget) for run in runs}
    known = {seed: value for seed, value in found.items() if value is not None}
    return known if len(known) == len(found) else {}


def _runs(result: CellResult, records: Records, seeds: Sequence[int]) -> list[RunRecord]:
    wanted = seeds or result.values
    return [record for record in seeds_of(records, result.cell) if record.seed in wanted]


def _budget(runs: Sequence[RunRecord]) -> dict[Basis, float]:
    """The least of each cost over these runs. A method that spends none of it sets no budget: it stays within any."""
    totals: dict[Basis, list[float]] = {basis: [t for run in runs if (t := spent(run, basis)) > 0] for basis in COSTS}
    return {basis: min(found) for basis, found in totals.items() if found}


def _costs(record: RunRecord, basis: Basis) -> list[float]:
    return [sum(float(line.get(name, 0)) for name in COSTS[basis]) for line in record.rounds]
