"""The arena's table: methods under one environment, compared at equal rounds, equal local steps and equal bytes.

A column of the arena holds the cells that differ in nothing but their method (untuned, or alpha = 0.1).
All its means are over the seeds that every compared method has; a method without a finished run, or with a diverged
one, is listed beside the others and never averaged. The budget of local steps (and of bytes) is the least that a
compared method spends in a whole run; others are scored at the last evaluation that this budget pays for.

Methods are sorted by mean, with their mean difference to the best one; whether it is more than chance, no table says.
A method that learned nothing from unlabelled images comes last, and is not compared with the best: it kept no
pseudo-label in the last round of any run, or its typical run ends no better than labels alone on the same seeds.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal, TypeAlias

from benchmark.papers.bounds import is_bound
from benchmark.papers.item import Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import ACCURACY, CellResult
from benchmark.verdicts.statistics import Summary, paired, summary
from reports.formatting import cell_address, count, megabytes, percent, sentence, thousands
from reports.paper_table import difference_entry, entry_values, is_printed, mean_entry, method_of, notes_of
from reports.properties import item_properties
from reports.reported import KEPT, Reported
from reports.tables import Column, Entry, Row, Table

Basis: TypeAlias = Literal["rounds", "steps", "bytes"]
BASES: tuple[Basis, ...] = ("rounds", "steps", "bytes")
COSTS: Mapping[Basis, tuple[str, ...]] = {"steps": ("local_steps",), "bytes": ("comm/bytes_up", "comm/bytes_down")}
UNITS = (thousands, megabytes)  # of COSTS
NAMES: Mapping[Basis, str] = {"rounds": "Equal rounds", "steps": "Equal local steps", "bytes": "Equal bytes"}
KEPT_NONE, NO_BETTER = "kept no pseudo-label in the last round", "typically end no better than labels alone"
BUDGET = (
    "The budget is what the cheapest method spends. Costlier methods are scored at the round where they reach it, "
    "before their learning-rate schedule ends."
)


@dataclass(frozen=True, kw_only=True)
class Placing:
    """A method's place on one basis."""

    values: Mapping[int, float]  # seed -> accuracy, a fraction
    summary: Summary
    difference: Summary | None = None  # to the best; None for the best, and without common seeds


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A compared method."""

    result: CellResult
    places: Mapping[Basis, Placing]  # a basis is absent where a seed had no evaluation within the budget
    costs: Mapping[Basis, float]  # "steps" and "bytes" of a whole run, mean over the seeds
    nothing: str = ""  # why it is not ranked: KEPT_NONE or NO_BETTER


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
    bounds: tuple[CellResult, ...]  # beside the ranking, at equal rounds only

    @property
    def title(self) -> str:
        """ "untuned hyperparameters", "alpha = 0.1"."""
        if self.value is None:
            return "all methods"
        return f"{self.value} {self.key}" if isinstance(self.value, str) else f"{self.key} = {self.value:g}"


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


def arenas(one: Reported) -> tuple[Arena, ...]:
    """One for each value of the setting that varies, in the item's order."""
    item, results = one.item, [result for result in one.results.values() if result.cell.role != "ladder"]
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
    mine = [r for r in results if r.cell.setting.get(key) == value and r.cell.role != "bound"]
    compared = [result for result in mine if result.values and not result.diverged]
    common = set.intersection(*(set(result.values) for result in compared)) if compared else set()
    runs = {r.cell.label: [run for run in r.runs if run.seed in (common or r.values)] for r in compared}
    every = [run for found in runs.values() for run in found]
    budget, lengths = _budget(every), {len(run.rounds) for run in every}
    bounds = [result for result in results if result.cell.role == "bound"]
    times = Counter(method_of(result.cell) for result in bounds)
    # its own bounds, and those that the item has only once, which stand beside every column
    bounds = [r for r in bounds if r.cell.setting.get(key) == value or times[method_of(r.cell)] == 1]
    alone = next((r.values for r in bounds if is_bound(r.cell)), {})
    nothing = {r.cell.label: _nothing(r, runs[r.cell.label], alone) for r in compared}
    return Arena(
        key=key,
        value=value,
        seeds=tuple(sorted(common)),
        rounds=lengths.pop() if len(lengths) == 1 else None,
        budget=budget,
        compared=_compared(compared, runs, sorted(common), budget, nothing),
        apart=tuple(result for result in mine if result not in compared),
        waiting=tuple(c for c in choices if c.setting.get(key, value) == value),
        bounds=tuple(bounds),
    )


def _nothing(result: CellResult, runs: Sequence[RunRecord], alone: Mapping[int, float]) -> str:
    """Why the method learned nothing from unlabelled images; empty where it did, and where nothing says so."""
    kept = [run.last(KEPT) for run in runs]
    if kept and all(value == 0 for value in kept):
        return KEPT_NONE
    shared = [run.seed for run in runs if run.seed in alone]
    if shared and median(result.values[s] for s in shared) <= median(alone[s] for s in shared):
        return NO_BETTER
    return ""


def _compared(
    results: Sequence[CellResult],
    runs: Mapping[str, Sequence[RunRecord]],
    seeds: Sequence[int],
    budget: Mapping[Basis, float],
    nothing: Mapping[str, str],
) -> tuple[Compared, ...]:
    reached: dict[Basis, dict[str, Mapping[int, float]]] = {"rounds": {r.cell.label: r.values for r in results}}
    for basis, most in budget.items():
        reached[basis] = {label: _within(found, basis, most) for label, found in runs.items()}
    unranked = {label for label, why in nothing.items() if why}
    places = {basis: place(values, seeds, unranked) for basis, values in reached.items()}
    order = list(places["rounds"])
    return tuple(
        Compared(
            result=result,
            places={basis: found[result.cell.label] for basis, found in places.items() if result.cell.label in found},
            costs={basis: summary(sum(spent(r, basis)) for r in runs[result.cell.label]).mean for basis in COSTS},
            nothing=nothing[result.cell.label],
        )
        for result in sorted(results, key=lambda result: order.index(result.cell.label))
    )


def spent(record: RunRecord, basis: Basis) -> list[float]:
    """What each round of the run spent: local steps, or bytes up + down."""
    return [sum(float(line.get(name, 0)) for name in COSTS[basis]) for line in record.rounds]


def at_budget(record: RunRecord, basis: Basis, budget: float) -> float | None:
    """The test accuracy of the last evaluation that the budget pays for, or of the best one where the run's selection
    rule is the best round; None where even the first costs more."""
    value, total = None, 0.0
    for line, cost in zip(record.rounds, spent(record, basis), strict=True):
        total += cost
        if total > budget:
            break
        found = line.get(ACCURACY)
        if found is not None and math.isfinite(found):
            value = float(found) if value is None or not record.selected_on_test else max(value, float(found))
    return value


def _within(runs: Sequence[RunRecord], basis: Basis, budget: float) -> Mapping[int, float]:
    """Seed -> value; empty where any run has none, so that all means are of the same seeds."""
    found = {run.seed: at_budget(run, basis, budget) for run in runs}
    known = {seed: value for seed, value in found.items() if value is not None}
    return known if len(known) == len(found) else {}


def _budget(runs: Sequence[RunRecord]) -> dict[Basis, float]:
    """The least of each cost. A method that spends nothing sets no budget: it stays within any."""
    totals = {basis: [total for run in runs if (total := sum(spent(run, basis))) > 0] for basis in COSTS}
    return {basis: min(found) for basis, found in totals.items() if found}


def place(
    values: Mapping[str, Mapping[int, float]], seeds: Sequence[int], unranked: Collection[str] = ()
) -> dict[str, Placing]:
    """Label -> its place, best mean first; `values` is label -> seed -> accuracy, each with every one of `seeds`.
    `unranked`: labels that are not compared, after the others."""
    known = {label: {s: found[s] for s in seeds} if seeds else dict(found) for label, found in values.items() if found}
    means = {label: summary(found.values()) for label, found in known.items()}
    order = sorted(known, key=lambda label: (label in unranked, -means[label].mean))
    others = [label for label in order[1:] if seeds and label not in unranked]
    to_best = {label: paired(known[label], known[order[0]]) for label in others}
    return {label: Placing(values=known[label], summary=means[label], difference=to_best.get(label)) for label in order}


def standing(arena: Arena, n_wanted: int) -> str:
    """How the methods are sorted, and over how many seeds."""
    if not arena.compared:
        return "No finished run yet."
    if not arena.seeds:
        return "Sorted by mean; no seed is common to all methods, so that they are not compared."
    if all(one.nothing for one in arena.compared):
        return "Sorted by mean; no method learned from unlabelled images, so none is ranked."
    n = len(arena.seeds)
    seeds = count(n, "common seed") + (f" of {n_wanted} wanted" if n < n_wanted else "")
    return f"Sorted by mean over {seeds}; the order may be chance."


def learned_nothing(arena: Arena) -> str:
    """Said where methods learned from labels alone."""
    names = {
        why: [method_of(one.result.cell) for one in arena.compared if one.nothing == why]
        for why in (KEPT_NONE, NO_BETTER)
    }
    of = len(arena.compared)
    return " ".join(f"Not ranked: {len(n)} of {of} methods {why}: {'; '.join(n)}." for why, n in names.items() if n)


def arena_tables(one: Reported) -> list[Table]:
    """A table for each value of the setting that varies, with the data and the notes of all."""
    rows, notes = arena_rows(one), notes_of(one)
    return [_table(one.item, arena, rows, notes) for arena in arenas(one)]


def _table(item: Item, arena: Arena, data: Sequence[Mapping[str, Any]], notes: tuple[str, ...]) -> Table:
    steps, sent = arena.budget.get("steps"), arena.budget.get("bytes")
    at = {
        "rounds": "last round" if arena.rounds is None else f"{arena.rounds:,} rounds",
        "steps": "" if steps is None else f"{thousands(steps)} steps",
        "bytes": "" if sent is None else f"{megabytes(sent)} MB",
    }
    columns = [Column(name="Method", left=True), *(Column(name=NAMES[basis], below=at[basis]) for basis in BASES)]
    columns += [
        Column(name="To the best", below="points"),
        Column(name="Local steps", below="a run"),
        Column(name="MB up + down", below="a run"),
    ]

    def named(entry: Cell | Choice, runs: Sequence[RunRecord] = ()) -> Entry:
        text = method_of(entry)
        other = entry.setting.get(arena.key, arena.value)
        text = text if other == arena.value else f"{text} ({other})"
        return Entry(text=text, href=cell_address(entry, bool(runs)) if isinstance(entry, Cell) else "")

    rows = []
    for one in arena.compared:
        entries = [
            named(one.result.cell, one.result.runs),
            *(_placed(one.places.get(basis), basis == "rounds") for basis in BASES),
        ]
        entries += [_to_best(one.places["rounds"], best=one is arena.compared[0])]
        entries += [Entry(text=cost(one.costs[b]), sort=one.costs[b]) for b, cost in zip(COSTS, UNITS, strict=True)]
        rows.append(Row(section="unranked" if one.nothing else "compared", entries=tuple(entries)))
    unranked: list[tuple[str, Entry, Entry]] = [
        *(("apart", named(r.cell, r.runs), Entry(text=r.counts, look=r.status)) for r in arena.apart),
        *(
            ("bounds" if c.role == "bound" else "apart", named(c), Entry(text="waits for trials", look="missing"))
            for c in arena.waiting
        ),
        *(("bounds", named(r.cell, r.runs), _bound(r)) for r in arena.bounds),
    ]
    for section, name, result in sorted(unranked, key=lambda line: line[0]):
        rows.append(Row(section=section, entries=(name, result, *[Entry(text="")] * (len(columns) - 2))))
    remarks = [standing(arena, item.seeds), learned_nothing(arena), BUDGET]
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
    """All arenas in one table, for the page that compares methods: a row a method, a column an environment, at equal
    rounds. Links from the site's root."""
    columns, rows = [Column(name="Method", left=True)], dict[str, dict[int, Entry]]()
    bounds = set[str]()
    for one in (one for one in every if one.paper == "arena"):
        for arena in arenas(one):
            place = len(columns)
            value = arena.title.removesuffix(" hyperparameters")
            group = one.item.title.removeprefix("All methods ").removeprefix("on ").removeprefix("over ")
            columns.append(Column(name=value, group=sentence(group).rstrip("."), below=one.item.profile))
            found = [
                (other.result, _counted(other.places["rounds"].summary, *(["not ranked"] if other.nothing else [])))
                for other in arena.compared
            ]
            bounds |= {method_of(result.cell) for result in arena.bounds}
            for result, entry in (*found, *((r, _bound(r)) for r in (*arena.apart, *arena.bounds))):
                href = cell_address(result.cell, bool(result.runs))
                rows.setdefault(method_of(result.cell), {})[place] = replace(entry, href=href, detail=())
    return Table(
        name="compared",
        caption="Test accuracy in percent at equal rounds, mean ± standard deviation over seeds",
        columns=tuple(columns),
        rows=tuple(
            Row(
                section="bounds" if name in bounds else "compared",
                entries=(Entry(text=name), *(found.get(place, Entry()) for place in range(1, len(columns)))),
            )
            for name, found in sorted(rows.items(), key=lambda row: row[0] in bounds)
        ),
    )


def _placed(placing: Placing | None, with_seeds: bool) -> Entry:
    if placing is None:
        return Entry(sort=-1.0)
    seen = placing.summary
    seeds: tuple[str, ...] = ()
    if with_seeds and seen.n > 1:
        seeds = (" ".join(percent(value, 1) for _, value in sorted(placing.values.items())),)
    return mean_entry(seen, detail=seeds)


def _to_best(placing: Placing, best: bool) -> Entry:
    return Entry(text="best") if best else difference_entry(placing.difference)


def _bound(result: CellResult) -> Entry:
    if result.diverged or result.summary is None:
        return Entry(text=result.counts, look=result.status)
    return _counted(result.summary)


def _counted(seen: Summary, *below: str) -> Entry:
    return mean_entry(seen, below=(f"n={seen.n}", *below))


def arena_rows(one: Reported) -> list[dict[str, Any]]:
    """A row a cell: the fields of every table's CSV, its place on each basis, and costs; all accuracies fractions."""
    item = one.item
    placed = {method.result.cell.label: (arena, method) for arena in arenas(one) for method in arena.compared}
    rows = []
    for label, result in one.results.items():
        values = entry_values(one, result.cell, ACCURACY)
        arena, compared = placed.get(label, (None, None))
        for basis in BASES:
            placed_at = _place_values(compared.places.get(basis) if compared else None)
            values |= {f"{basis}_{name}": value for name, value in placed_at.items()}
        for name in COSTS:
            values[f"run_{name}"] = compared.costs[name] if compared else None
            values[f"budget_{name}"] = arena.budget.get(name) if arena else None
        rows.append(values)
    for choice in item.choices:
        known = {"item": item.name, "profile": item.profile, **choice.setting, "label": choice.label}
        rows.append({**known, "role": choice.role, "status": "waits for trials", "note": choice.note})
    return rows


def _place_values(placing: Placing | None) -> dict[str, Any]:
    if placing is None:
        return dict.fromkeys(("mean", "std", "n", "to_best"))
    seen, to_best = placing.summary, placing.difference
    return {"mean": seen.mean, "std": seen.std, "n": seen.n, "to_best": to_best.mean if to_best else None}


def arena_object(one: Reported) -> dict[str, Any]:
    """What `fssl reproduce --json` says under "arena": the rows of the table's CSV, and what methods hand over.

    Accuracies are fractions, costs those of a whole run; null where there is no such value.
    """
    found, rows = arenas(one), arena_rows(one)
    names = dict.fromkeys(name for row in rows for name in row)
    properties = {
        method: {name: entry.line for name, entry in seen.items()} for method, seen in item_properties(one).items()
    }
    return {
        "varies": found[0].key if found else "",
        "columns": [{"value": a.value, "seeds": list(a.seeds), "rounds": a.rounds, **a.budget} for a in found],
        "methods": [{name: row.get(name) for name in names} for row in rows],
        "properties": properties,
    }
