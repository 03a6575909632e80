"""The arena: methods under one environment, compared at equal rounds and at equal bytes, with what a run of each costs.

A column of the arena holds the cells that differ in nothing but their method (untuned, or alpha = 0.1).
All its means are over the seeds that every compared method has. A method without a finished run, or with a diverged
one, is listed apart and never averaged.

Methods are sorted by mean at equal rounds. Equal bytes are what the cheapest method hands over in a whole run: others
are scored at the last evaluation that these pay for, before their learning rate's schedule ends. Whether a difference
is more than chance, claims alone say. A method that learned nothing from unlabelled images comes last and is not
ranked: it kept no pseudo-label in the last round of any run, or its typical run ends no better than labels alone on the
same seeds.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any

from benchmark.papers.bounds import is_bound
from benchmark.papers.item import ACCURACY, Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import Summary, summary
from reports.costs_and_curves import costs_of
from reports.entries import end_entry, item_rows, mean_entry, method_of, notes_of
from reports.formatting import cell_address, count, megabytes, percent, points, sentence, thousands
from reports.reported import KEPT, Reported
from reports.tables import Column, Table, TableEntry, row_of, table_of

KEPT_NONE, NO_BETTER = "kept no pseudo-label in the last round", "typically end no better than labels alone"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A method that is compared with the others of its column."""

    result: CellResult
    runs: Sequence[RunRecord]  # of the common seeds
    values: Mapping[int, float]  # their accuracies, by seed
    at_bytes: Sequence[float] = ()  # as `values` at equal bytes; empty where these pay for no evaluation
    not_ranked: str = ""  # why: KEPT_NONE or NO_BETTER

    @property
    def seen(self) -> Summary:
        return summary(self.values.values())

    @property
    def seen_at_bytes(self) -> Summary | None:
        return summary(self.at_bytes) if self.at_bytes else None

    @property
    def costs(self) -> dict[str, float]:
        """Of a whole run, mean over the seeds."""
        known = costs_of(self.runs)
        return {"steps": known.get("local_steps", 0.0), "bytes": known.get("bytes_up", 0) + known.get("bytes_down", 0)}


@dataclass(frozen=True, kw_only=True)
class Arena:
    """The methods of one value of the setting that varies."""

    key: str  # "hyperparameters"
    value: str | int | float | None  # "untuned"; None: the methods are all that varies
    seeds: tuple[int, ...]  # common to all compared methods; empty: they are not compared
    budget: float | None  # equal bytes; None where no method hands over any
    compared: tuple[Compared, ...]  # those that are ranked first, best first
    apart: tuple[CellResult, ...]  # without a finished run, or with a diverged one
    waiting: tuple[Choice, ...]
    bounds: tuple[CellResult, ...]  # not in the ranking

    @property
    def title(self) -> str:
        """ "untuned hyperparameters", "alpha = 0.1"."""
        if self.value is None:
            return "all methods"
        return f"{self.value} {self.key}" if isinstance(self.value, str) else f"{self.key} = {self.value:g}"

    def to_best(self, method: Compared) -> float | None:
        """Its mean less the best one's, a fraction. None for the best, for what is not ranked, and without seeds."""
        best = self.compared[0]
        return None if method is best or method.not_ranked or not self.seeds else method.seen.mean - best.seen.mean


@functools.cache
def arenas(reported: Reported) -> tuple[Arena, ...]:
    """One for each value of the setting that varies, in the item's order."""
    entries: list[Cell | Choice] = [cell for cell in reported.item.cells if cell.role != "ladder"]
    entries += reported.item.choices
    key = next((key for entry in entries for key in entry.setting if key != "method"), "")
    ranked = [entry for entry in entries if entry.role != "bound"] or entries
    return tuple(_arena(reported, key, value) for value in dict.fromkeys(entry.setting.get(key) for entry in ranked))


def _arena(reported: Reported, key: str, value: str | int | float | None) -> Arena:
    bounds = [result for result in reported.results.values() if result.cell.role == "bound"]
    own = [r for r in reported.results.values() if r.cell.setting.get(key) == value]
    own = [result for result in own if result.cell.role not in ("bound", "ladder")]
    finished = [result for result in own if result.values and not result.diverged]
    common = set.intersection(*(set(result.values) for result in finished)) if finished else set()
    # The column's own bounds, and those that the item has only once, which are in every column.
    times = Counter(method_of(result.cell) for result in bounds)
    bounds = [r for r in bounds if r.cell.setting.get(key) == value or times[method_of(r.cell)] == 1]
    labels_alone = next((result.values for result in bounds if is_bound(result.cell)), {})
    runs_of = {r.cell.label: [run for run in r.runs if run.seed in (common or r.values)] for r in finished}
    budget = min((total for runs in runs_of.values() for run in runs if (total := sum(_bytes(run)))), default=None)
    compared = []
    for result in finished:
        runs = runs_of[result.cell.label]
        values = {run.seed: result.values[run.seed] for run in runs}
        reached = [at for run in runs if budget and (at := _accuracy_at(run, budget)) is not None]
        at_bytes = reached if len(reached) == len(runs) else []  # all means are of the same seeds
        why = _why_not_ranked(runs, values, labels_alone)
        compared.append(Compared(result=result, runs=runs, values=values, at_bytes=at_bytes, not_ranked=why))
    return Arena(
        key=key,
        value=value,
        seeds=tuple(sorted(common)),
        budget=budget,
        compared=tuple(sorted(compared, key=lambda method: (bool(method.not_ranked), -method.seen.mean))),
        apart=tuple(result for result in own if not result.values or result.diverged),
        waiting=tuple(choice for choice in reported.item.choices if choice.setting.get(key, value) == value),
        bounds=tuple(bounds),
    )


def _why_not_ranked(runs: Sequence[RunRecord], values: Mapping[int, float], labels_alone: Mapping[int, float]) -> str:
    """Why the method learned nothing from unlabelled images. Empty where it did, and where nothing says so."""
    if all(run.last(KEPT) == 0 for run in runs):
        return KEPT_NONE
    shared = values.keys() & labels_alone.keys()
    if shared and median(values[seed] for seed in shared) <= median(labels_alone[seed] for seed in shared):
        return NO_BETTER
    return ""


def _bytes(run: RunRecord) -> list[float]:
    """Up and down, in each round."""
    return [line.get("comm/bytes_up", 0.0) + line.get("comm/bytes_down", 0.0) for line in run.rounds]


def _accuracy_at(run: RunRecord, budget: float) -> float | None:
    """At the last evaluation that so many bytes pay for; the best until then where the run's rule is the best round."""
    pairs = zip(run.rounds, accumulate(_bytes(run)), strict=True)
    seen: list[float] = [line[ACCURACY] for line, spent in pairs if spent <= budget and ACCURACY in line]
    return (max(seen) if run.selected_on_test else seen[-1]) if seen else None


def order_text(arena: Arena, n_wanted: int) -> str:
    """How the methods are sorted, over how many seeds, and which learned from labels alone."""
    if not arena.compared:
        return "No finished run yet."
    if not arena.seeds:
        text = "Sorted by mean; no seed is common to all methods, so that they are not compared."
    elif all(method.not_ranked for method in arena.compared):
        text = "Sorted by mean; no method learned from unlabelled images, so none is ranked."
    else:
        n = len(arena.seeds)
        seeds = count(n, "common seed") + (f" of {n_wanted} wanted" if n < n_wanted else "")
        text = f"Sorted by mean over {seeds}; the order may be chance."
    for why in (KEPT_NONE, NO_BETTER):
        if names := [method_of(method.result.cell) for method in arena.compared if method.not_ranked == why]:
            text += f" Not ranked: {len(names)} of {len(arena.compared)} methods {why}: {'; '.join(names)}."
    return text


def arena_tables(reported: Reported) -> list[Table]:
    """A table for each value of the setting that varies, with the data and the notes of all."""
    every, data, notes = arenas(reported), arena_rows(reported), notes_of(reported)
    return [_table(reported.item, arena, data=data, notes=notes) for arena in every]


def _table(item: Item, arena: Arena, **more: Any) -> Table:
    remark = order_text(arena, item.seeds) + (" Last rows: bounds, not in the ranking." if arena.bounds else "")
    lengths = {len(run.rounds) for method in arena.compared for run in method.runs}
    heads = (
        Column(name="Method", left=True),
        Column(name="Equal rounds", below=f"{lengths.pop():,} rounds" if len(lengths) == 1 else "last round"),
        Column(name="To the best", below="points"),
        Column(name="Equal bytes", below="" if arena.budget is None else f"{megabytes(arena.budget)} MB"),
        Column(name="Local steps", below="a run"),
        Column(name="MB up + down", below="a run"),
    )

    def named(entry: Cell | Choice, href: str = "") -> TableEntry:
        text, other = method_of(entry), entry.setting.get(arena.key, arena.value)
        return TableEntry(text=text if other == arena.value else f"{text} ({other})", href=href)

    apart = []
    for section, results in (("apart", arena.apart), ("bounds", arena.bounds)):
        apart += [((named(r.cell, cell_address(r)), end_entry(r), "", "", "", ""), section) for r in results]
        waits = TableEntry(text="waits for trials", look="missing")
        choices = [choice for choice in arena.waiting if (choice.role == "bound") == (section == "bounds")]
        apart += [((named(choice), waits, "", "", "", ""), section) for choice in choices]
    compared: list[tuple[tuple[TableEntry | str, ...], str]] = []
    for method in arena.compared:
        gap, costs = arena.to_best(method), method.costs
        seeds = [percent(value, 1) for _, value in sorted(method.values.items())]
        to_best = TableEntry()
        if gap is not None:
            to_best = TableEntry(text=points(gap), below=(f"n={len(arena.seeds)}",), sort=gap)
        entries = (
            named(method.result.cell, cell_address(method.result)),
            mean_entry(method.seen, detail=(" ".join(seeds),) if seeds[1:] else ()),
            TableEntry(text="best") if method is arena.compared[0] else to_best,
            mean_entry(method.seen_at_bytes) if method.at_bytes else "",
            TableEntry(text=thousands(costs["steps"]), sort=costs["steps"]),
            TableEntry(text=megabytes(costs["bytes"]), sort=costs["bytes"]),
        )
        compared.append((entries, "unranked" if method.not_ranked else "compared"))
    rows = [row_of(entries, section) for entries, section in (*compared, *apart)]
    about = f"{item.name}, profile {item.profile}; test accuracy in percent"
    return table_of("table", f"{item.title}, {arena.title} ({about}). {remark}", heads, rows, title=arena.title, **more)


def compared_table(every: Sequence[Reported]) -> Table:
    """All arenas: a row a method, a column an environment. Links from the site's root."""
    columns, sections = dict[Column, dict[str, TableEntry]](), dict[str, str]()
    for reported in (reported for reported in every if reported.paper == "arena"):
        group = reported.item.title.removeprefix("All methods ").removeprefix("on ").removeprefix("over ")
        for arena in arenas(reported):
            entries = [(result, end_entry(result)) for result in (*arena.apart, *arena.bounds)]
            for method in arena.compared:
                below = (f"n={len(method.values)}", *(["not ranked"] if method.not_ranked else []))
                entries.append((method.result, mean_entry(method.seen, below=below)))
            value = arena.title.removesuffix(" hyperparameters")
            columns[Column(name=value, group=sentence(group).rstrip("."), below=reported.item.profile)] = {
                method_of(result.cell): replace(entry, href=cell_address(result)) for result, entry in entries
            }
            ranked = (*(method.result for method in arena.compared), *arena.apart)
            sections |= {method_of(result.cell): "compared" for result in ranked}
            sections |= {method_of(result.cell): "bounds" for result in arena.bounds}
    rows = [
        row_of((name, *(column.get(name, TableEntry()) for column in columns.values())), section)
        for name, section in sorted(sections.items(), key=lambda pair: pair[1] == "bounds")
    ]
    caption = "Test accuracy in percent at equal rounds, mean ± standard deviation over seeds"
    return table_of("compared", caption, ("Method", *columns), rows)


def arena_rows(reported: Reported) -> list[dict[str, Any]]:
    """A row a cell: the fields of every table's CSV, its mean over the common seeds, and costs of a whole run.

    All accuracies are fractions; None where there is no such value.
    """
    compared = {method.result.cell.label: (arena, method) for arena in arenas(reported) for method in arena.compared}
    names = ("rounds_mean", "rounds_std", "rounds_n", "rounds_to_best", "bytes_mean", "run_steps", "run_bytes")
    rows = []
    for row in item_rows(reported):
        values: Sequence[float | None] = [None] * len(names)
        if row["label"] in compared:
            arena, method = compared[row["label"]]
            seen, at_bytes = method.seen, method.seen_at_bytes
            bytes_mean = at_bytes.mean if at_bytes else None
            values = (seen.mean, seen.std, seen.n, arena.to_best(method), bytes_mean, *method.costs.values())
        rows.append(row | dict(zip(names, values, strict=True)))
    return rows
