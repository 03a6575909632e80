"""The arena: methods under one environment, compared at equal rounds, equal local steps and equal bytes.

A column of the arena holds the cells that differ in nothing but their method (untuned, or alpha = 0.1).
All its means are over the seeds that every compared method has. A method without a finished run, or with a diverged
one, is listed apart and never averaged. The budget of local steps (and of bytes) is the least that a compared method
spends in a whole run; others are scored at the last evaluation that this budget pays for.

Methods are sorted by mean. Whether a difference is more than chance, claims alone say. A method that learned nothing
from unlabelled images comes last and is not ranked: it kept no pseudo-label in the last round of any run, or its
typical run ends no better than labels alone on the same seeds.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal, TypeAlias

from benchmark.papers.bounds import is_bound
from benchmark.papers.item import Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import ACCURACY, CellResult
from benchmark.verdicts.statistics import Summary, summary
from reports.formatting import cell_address, count, megabytes, percent, points, sentence, thousands
from reports.paper_table import is_printed, item_rows, mean_entry, method_of, notes_of
from reports.reported import KEPT, Reported
from reports.tables import Column, Entry, Row, Table, pivoted

Basis: TypeAlias = Literal["rounds", "steps", "bytes"]
BASES: tuple[Basis, ...] = ("rounds", "steps", "bytes")
COSTS: Mapping[Basis, tuple[str, ...]] = {"steps": ("local_steps",), "bytes": ("comm/bytes_up", "comm/bytes_down")}
COSTS_AS_TEXT: Mapping[Basis, Callable[[float], str]] = {"steps": thousands, "bytes": megabytes}
SECTIONS = ("compared", "unranked", "apart", "bounds")  # of a table, in this order
NAMES: Mapping[Basis, str] = {"rounds": "Equal rounds", "steps": "Equal local steps", "bytes": "Equal bytes"}
KEPT_NONE, NO_BETTER = "kept no pseudo-label in the last round", "typically end no better than labels alone"
BUDGET = (
    "The budget is what the cheapest method spends. Costlier methods are scored at the round where they reach it, "
    "before their learning-rate schedule ends."
)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A method that is compared with the others of its column."""

    result: CellResult
    scores: Mapping[Basis, Mapping[int, float]]  # seed -> accuracy; no basis where a seed had no evaluation in budget
    costs: Mapping[Basis, float]  # "steps" and "bytes" of a whole run, mean over the seeds
    not_ranked: str = ""  # why: KEPT_NONE or NO_BETTER

    @property
    def mean(self) -> float:
        return summary(self.scores["rounds"].values()).mean

    def summary(self, basis: Basis) -> Summary | None:
        """Over the common seeds; None where the budget paid for no evaluation."""
        return summary(self.scores[basis].values()) if basis in self.scores else None


@dataclass(frozen=True, kw_only=True)
class Arena:
    """The methods of one value of the setting that varies."""

    key: str  # "hyperparameters"
    value: str | int | float | None  # "untuned"; None: the methods are all that varies
    seeds: tuple[int, ...]  # common to all compared methods; empty: they are not compared
    rounds: int | None  # of every compared run; None where they differ
    budget: Mapping[Basis, float]
    compared: tuple[Compared, ...]  # best at equal rounds first
    apart: tuple[CellResult, ...]  # without a finished run, or with a diverged one
    waiting: tuple[Choice, ...]
    bounds: tuple[CellResult, ...]  # not in the ranking, at equal rounds only

    @property
    def title(self) -> str:
        """ "untuned hyperparameters", "alpha = 0.1"."""
        if self.value is None:
            return "all methods"
        return f"{self.value} {self.key}" if isinstance(self.value, str) else f"{self.key} = {self.value:g}"

    def to_best(self, method: Compared, basis: Basis) -> float | None:
        """Its mean less the best one's, a fraction. None for the best, for what is not ranked, and without seeds."""
        means = {m.result.cell.label: s.mean for m in self.compared if not m.not_ranked and (s := m.summary(basis))}
        label = method.result.cell.label
        if not self.seeds or label not in means or label == max(means, key=means.__getitem__):
            return None
        return means[label] - max(means.values())


def is_arena(item: Item) -> bool:
    """A table with methods as rows, and nothing published: what is compared is methods among each other."""
    return item.methods_are_rows and item.drawing is None and not is_printed(item)


def entries_of(item: Item) -> list[Cell | Choice]:
    """Cells and choices, without the ladder."""
    entries: list[Cell | Choice] = [*item.cells, *item.choices]
    return [entry for entry in entries if entry.role != "ladder"]


def methods(item: Item) -> tuple[str, ...]:
    """Every ranked method once, in the item's order."""
    entries = [entry for entry in entries_of(item) if entry.role != "bound"]
    return tuple(dict.fromkeys(map(method_of, entries)))


def arenas(reported: Reported) -> tuple[Arena, ...]:
    """One for each value of the setting that varies, in the item's order."""
    item = reported.item
    results = [result for result in reported.results.values() if result.cell.role != "ladder"]
    entries = entries_of(item)
    key = next((key for entry in entries for key in entry.setting if key != "method"), "")
    ranked = [entry for entry in entries if entry.role != "bound"] or entries
    values = list(dict.fromkeys(entry.setting.get(key) for entry in ranked))
    return tuple(_arena(key, value, results, item.choices) for value in values)


def _arena(
    key: str,
    value: str | int | float | None,
    results: Sequence[CellResult],
    choices: Iterable[Choice],
) -> Arena:
    own = [r for r in results if r.cell.setting.get(key) == value and r.cell.role != "bound"]
    finished = [result for result in own if result.values and not result.diverged]
    common = set.intersection(*(set(result.values) for result in finished)) if finished else set()
    runs = {r.cell.label: [run for run in r.runs if run.seed in (common or r.values)] for r in finished}
    all_runs = [run for some in runs.values() for run in some]
    totals = {basis: [total for run in all_runs if (total := sum(spent(run, basis)))] for basis in COSTS}
    budget = {basis: min(costs) for basis, costs in totals.items() if costs}  # who spends nothing is within any
    # The column's own bounds, and those that the item has only once, which are in every column.
    times = Counter(method_of(result.cell) for result in results if result.cell.role == "bound")
    bounds = [r for r in results if r.cell.role == "bound"]
    bounds = [r for r in bounds if r.cell.setting.get(key) == value or times[method_of(r.cell)] == 1]
    labels_alone = next((r.values for r in bounds if is_bound(r.cell)), {})
    compared = [_compared(r, runs[r.cell.label], budget, labels_alone) for r in finished]
    lengths = {len(run.rounds) for run in all_runs}
    return Arena(
        key=key,
        value=value,
        seeds=tuple(sorted(common)),
        rounds=lengths.pop() if len(lengths) == 1 else None,
        budget=budget,
        compared=tuple(sorted(compared, key=lambda method: (bool(method.not_ranked), -method.mean))),
        apart=tuple(result for result in own if result not in finished),
        waiting=tuple(c for c in choices if c.setting.get(key, value) == value),
        bounds=tuple(bounds),
    )


def _compared(
    result: CellResult,
    runs: Sequence[RunRecord],
    budget: Mapping[Basis, float],
    labels_alone: Mapping[int, float],
) -> Compared:
    """`runs`: those of the common seeds. `labels_alone`: seed -> accuracy of the bound."""
    scores: dict[Basis, Mapping[int, float]] = {"rounds": {run.seed: result.values[run.seed] for run in runs}}
    for basis, most in budget.items():
        reached = {run.seed: score for run in runs if (score := at_budget(run, basis, most)) is not None}
        if len(reached) == len(runs):  # so that all means are of the same seeds
            scores[basis] = reached
    return Compared(
        result=result,
        scores=scores,
        costs={basis: summary(sum(spent(run, basis)) for run in runs).mean for basis in COSTS},
        not_ranked=_why_not_ranked(result, runs, labels_alone),
    )


def _why_not_ranked(result: CellResult, runs: Sequence[RunRecord], labels_alone: Mapping[int, float]) -> str:
    """Why the method learned nothing from unlabelled images. Empty where it did, and where nothing says so."""
    kept = [run.last(KEPT) for run in runs]
    if kept and all(value == 0 for value in kept):
        return KEPT_NONE
    shared = [run.seed for run in runs if run.seed in labels_alone]
    if shared and median(result.values[s] for s in shared) <= median(labels_alone[s] for s in shared):
        return NO_BETTER
    return ""


def spent(record: RunRecord, basis: Basis) -> list[float]:
    """What each round of the run spent: local steps, or bytes up + down."""
    return [sum(float(line.get(name, 0)) for name in COSTS[basis]) for line in record.rounds]


def at_budget(record: RunRecord, basis: Basis, budget: float) -> float | None:
    """The test accuracy of the last evaluation that the budget pays for.

    Of the best one where the run's selection rule is the best round; None where even the first costs more.
    """
    value, total = None, 0.0
    for line, cost in zip(record.rounds, spent(record, basis), strict=True):
        total += cost
        if total > budget:
            break
        accuracy = line.get(ACCURACY)
        if accuracy is not None and math.isfinite(accuracy):
            value = float(accuracy) if value is None or not record.selected_on_test else max(value, float(accuracy))
    return value


def order_text(arena: Arena, n_wanted: int) -> str:
    """How the methods are sorted, and over how many seeds."""
    if not arena.compared:
        return "No finished run yet."
    if not arena.seeds:
        return "Sorted by mean; no seed is common to all methods, so that they are not compared."
    if all(method.not_ranked for method in arena.compared):
        return "Sorted by mean; no method learned from unlabelled images, so none is ranked."
    n = len(arena.seeds)
    seeds = count(n, "common seed") + (f" of {n_wanted} wanted" if n < n_wanted else "")
    return f"Sorted by mean over {seeds}; the order may be chance."


def not_ranked_text(arena: Arena) -> str:
    """Names the methods that learned from labels alone; empty without one."""
    names = {
        why: [method_of(method.result.cell) for method in arena.compared if method.not_ranked == why]
        for why in (KEPT_NONE, NO_BETTER)
    }
    of = len(arena.compared)
    return " ".join(f"Not ranked: {len(n)} of {of} methods {why}: {'; '.join(n)}." for why, n in names.items() if n)


def arena_tables(reported: Reported) -> list[Table]:
    """A table for each value of the setting that varies, with the data and the notes of all."""
    rows, notes = arena_rows(reported), notes_of(reported)
    return [_table(reported.item, arena, rows, notes) for arena in arenas(reported)]


def _table(item: Item, arena: Arena, data: Sequence[Mapping[str, Any]], notes: tuple[str, ...]) -> Table:
    at = {
        "rounds": "last round" if arena.rounds is None else f"{arena.rounds:,} rounds",
        "steps": f"{thousands(arena.budget['steps'])} steps" if "steps" in arena.budget else "",
        "bytes": f"{megabytes(arena.budget['bytes'])} MB" if "bytes" in arena.budget else "",
    }
    columns = [Column(name="Method", left=True), *(Column(name=NAMES[basis], below=at[basis]) for basis in BASES)]
    columns += [
        Column(name="To the best", below="points"),
        Column(name="Local steps", below="a run"),
        Column(name="MB up + down", below="a run"),
    ]

    def named(entry: Cell | Choice, href: str = "") -> Entry:
        text, other = method_of(entry), entry.setting.get(arena.key, arena.value)
        return Entry(text=text if other == arena.value else f"{text} ({other})", href=href)

    waiting = Entry(text="waits for trials", look="missing")
    lines: list[tuple[str, list[Entry]]] = []
    for method in arena.compared:
        name = named(method.result.cell, cell_address(method.result))
        costs = [Entry(text=unit(method.costs[b]), sort=method.costs[b]) for b, unit in COSTS_AS_TEXT.items()]
        scores = [_score_entry(method, basis) for basis in BASES]
        section = "unranked" if method.not_ranked else "compared"
        gap = arena.to_best(method, "rounds")
        to_best = Entry() if gap is None else Entry(text=points(gap), below=(f"n={len(arena.seeds)}",), sort=gap)
        if method is arena.compared[0]:
            to_best = Entry(text="best")
        lines.append((section, [name, *scores, to_best, *costs]))
    for result in arena.apart:
        entry = Entry(text=result.counts, look=result.status)
        lines.append(("apart", [named(result.cell, cell_address(result)), entry]))
    lines += [("bounds" if c.role == "bound" else "apart", [named(c), waiting]) for c in arena.waiting]
    lines += [("bounds", [named(r.cell, cell_address(r)), _end_entry(r)]) for r in arena.bounds]
    blank = [Entry(text="")] * len(columns)
    rows = [
        Row(section=section, entries=tuple([*entries, *blank][: len(columns)]))
        for section, entries in sorted(lines, key=lambda line: SECTIONS.index(line[0]))
    ]
    remarks = [order_text(arena, item.seeds), not_ranked_text(arena), BUDGET]
    remarks += ["Last rows: bounds, not in the ranking."] if arena.bounds else []
    return Table(
        name="table",
        title=arena.title,
        caption=f"{item.title}, {arena.title} ({item.name}, profile {item.profile}; test accuracy in percent). "
        + " ".join(remark for remark in remarks if remark),
        columns=tuple(columns),
        rows=tuple(rows),
        notes=notes,
        data=data,
    )


def compared_table(every: Sequence[Reported]) -> Table:
    """All arenas at equal rounds: a row a method, a column an environment. Links from the site's root."""
    columns, sections = dict[Column, dict[str, Entry]](), dict[str, str]()
    for reported in (reported for reported in every if reported.paper == "arena"):
        group = reported.item.title.removeprefix("All methods ").removeprefix("on ").removeprefix("over ")
        for arena in arenas(reported):
            value = arena.title.removesuffix(" hyperparameters")
            entries = []
            for method in arena.compared:
                below = (f"n={len(method.scores['rounds'])}", *(["not ranked"] if method.not_ranked else []))
                entries.append((method.result, replace(_score_entry(method, "rounds"), detail=(), below=below)))
            entries += [(result, _end_entry(result)) for result in (*arena.apart, *arena.bounds)]
            columns[Column(name=value, group=sentence(group).rstrip("."), below=reported.item.profile)] = {
                method_of(result.cell): replace(entry, href=cell_address(result)) for result, entry in entries
            }
            sections |= {method_of(result.cell): "compared" for result, _ in entries if result.cell.role != "bound"}
            sections |= {method_of(result.cell): "bounds" for result in arena.bounds}
    names = sorted(sections, key=lambda name: sections[name] == "bounds")
    first = {Column(name="Method", left=True): {name: Entry(text=name) for name in names}}
    return Table(
        name="compared",
        caption="Test accuracy in percent at equal rounds, mean ± standard deviation over seeds",
        **pivoted({name: Row(section=sections[name]) for name in names}, first | columns),
    )


def _score_entry(method: Compared, basis: Basis) -> Entry:
    """Mean and spread; at equal rounds every seed's accuracy as well."""
    results = method.summary(basis)
    if results is None:
        return Entry(sort=-1.0)
    seeds = [percent(value, 1) for _, value in sorted(method.scores[basis].items())]
    return mean_entry(results, detail=(" ".join(seeds),) if basis == "rounds" and seeds[1:] else ())


def _end_entry(result: CellResult) -> Entry:
    """Of what is not compared."""
    if result.diverged or result.summary is None:
        return Entry(text=result.counts, look=result.status)
    return mean_entry(result.summary, below=(f"n={result.n}",))


def arena_rows(reported: Reported) -> list[dict[str, Any]]:
    """A row a cell: the fields of every table's CSV, its score on each basis, and costs of a whole run.

    All accuracies are fractions; None where there is no such value.
    """
    compared = {method.result.cell.label: (arena, method) for arena in arenas(reported) for method in arena.compared}
    return [row | _scores(*compared.get(row["label"], (None, None))) for row in item_rows(reported)]


def _scores(arena: Arena | None, method: Compared | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for basis in BASES:
        results = method.summary(basis) if method else None
        values[f"{basis}_mean"] = results.mean if results else None
        values[f"{basis}_std"] = results.std if results else None
        values[f"{basis}_n"] = results.n if results else None
        values[f"{basis}_to_best"] = arena.to_best(method, basis) if arena and method else None
    for basis in COSTS:
        values[f"run_{basis}"] = method.costs[basis] if method else None
        values[f"budget_{basis}"] = arena.budget.get(basis) if arena else None
    return values
