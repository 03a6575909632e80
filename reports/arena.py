"""Compare methods in one environment, at equal rounds and at equal bytes, with the cost of a run.

A column contains the cells that differ only in their method (untuned, or alpha = 0.1). All its means are over the
seeds that every compared method has. A method with fewer than `FEWEST_SEEDS` seeds is listed apart if other methods
have more, so that it does not shorten the comparison of the others. A method without a finished run, or with a
diverged one, is also listed apart and never averaged.

Methods are sorted by mean at equal rounds, and only over at least `FEWEST_SEEDS` common seeds: one seed ranks nothing.
Equal bytes are the bytes that the cheapest method transfers in a whole run: the others are scored at the last
evaluation that these bytes pay for, before their learning rate's schedule ends. Only claims decide whether a difference
is more than chance. A method that learned nothing from unlabelled images is last and not ranked: it selected no
pseudo-label in the last round of any run, or its median run ends no better than the supervised baseline on the same
seeds.
"""

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any

from benchmark.papers.bounds import is_bound
from benchmark.papers.item import ACCURACY, Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import Summary, paired, summary
from reports.costs_and_curves import costs_of
from reports.entries import end_entry, item_rows, mean_entry, method_of, notes_of
from reports.formatting import NONE, cell_address, count, megabytes, percent, points, sentence, thousands
from reports.item_results import KEPT, ItemResults
from reports.open_set import is_open, runs_by_address, unknown_means, with_unknown
from reports.tables import Column, Row, Table, TableEntry, row_of, table_of

FEWEST_SEEDS = 3  # common to all compared methods; with fewer, nothing is ranked
TIMES = (  # columns of the times of a run, on the machine of the runs
    Column(name="Wall time", below="min per run"),
    Column(name="Server time", below="s per run"),
)
KEPT_NONE = "selected no pseudo-label in the last round"
NO_BETTER = "end no better than the supervised baseline (labels only) in the median"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A method that is compared with the others of its column."""

    result: CellResult
    runs: Sequence[RunRecord]  # on the common seeds
    values: Mapping[int, float]  # their accuracies, by seed
    at_bytes: Sequence[float] = ()  # as `values` at equal bytes; empty if these pay for no evaluation
    not_ranked: str = ""  # the reason: KEPT_NONE or NO_BETTER

    @property
    def seen(self) -> Summary:
        """Return mean and spread of the accuracies at equal rounds."""
        return summary(self.values.values())

    @property
    def seen_at_bytes(self) -> Summary | None:
        """Return mean and spread of the accuracies at equal bytes, or None if these pay for no evaluation."""
        return summary(self.at_bytes) if self.at_bytes else None

    @property
    def costs(self) -> dict[str, float | None]:
        """Return the local steps, bytes and times of a whole run, as means over the seeds.

        Times are seconds on the machine of the runs: the wall time, and the part of it for training and averaging at
        the server, or None if no run has recorded them.
        """
        known = costs_of(self.runs)
        return {
            "steps": known.get("local_steps", 0.0),
            "bytes": known.get("bytes_up", 0) + known.get("bytes_down", 0),
            "wall_seconds": known.get("wall_seconds"),
            "server_seconds": known.get("server_seconds"),
        }


@dataclass(frozen=True, kw_only=True)
class Arena:
    """A method comparison at one value of the setting that varies."""

    key: str  # "hyperparameters"
    value: str | int | float | None  # "untuned"; None if only the methods vary
    seeds: tuple[int, ...]  # common to all compared methods; empty: they are not compared
    budget: float | None  # equal bytes, or None if no method transfers any
    compared: tuple[Compared, ...]  # ranked methods first, best first
    apart: tuple[CellResult, ...]  # without a finished run, with a diverged one, or with too few seeds
    waiting: tuple[Choice, ...]
    bounds: tuple[CellResult, ...]  # not in the ranking

    @property
    def title(self) -> str:
        """Return the name of the column: "untuned hyperparameters", "alpha = 0.1"."""
        if self.value is None:
            return "all methods"
        return f"{self.value} {self.key}" if isinstance(self.value, str) else f"{self.key} = {self.value:g}"

    @property
    def ranked(self) -> tuple[Compared, ...]:
        """Return the ranked methods, best first; none with fewer than `FEWEST_SEEDS` common seeds."""
        if len(self.seeds) < FEWEST_SEEDS:
            return ()
        return tuple(method for method in self.compared if not method.not_ranked)

    @property
    def clear_best(self) -> Compared | None:
        """Return the best method if the interval of its difference to the second lies above zero (paired, 95 %)."""
        if len(self.ranked) < 2:
            return None
        best, second = self.ranked[:2]
        difference = paired(best.values, second.values)
        interval = difference.interval if difference else None
        return best if interval and interval[0] > 0 else None

    def to_best(self, method: Compared) -> float | None:
        """Return its mean less the best one's, a fraction; return None for the best and for methods that are not
        ranked.
        """
        if method not in self.ranked[1:]:
            return None
        return method.seen.mean - self.ranked[0].seen.mean


@functools.cache
def arenas(reported: ItemResults) -> tuple[Arena, ...]:
    """Return one arena for each value of the setting that varies, in the item's order."""
    entries: list[Cell | Choice] = [cell for cell in reported.item.cells if cell.role != "ladder"]
    entries += reported.item.choices
    keys = [key for entry in entries for key in entry.setting if key != "method"]
    key = keys[0] if keys else ""
    ranked = [entry for entry in entries if entry.role != "bound"] or entries
    values = dict.fromkeys(entry.setting.get(key) for entry in ranked)
    return tuple(_arena(reported, key, value) for value in values)


def _arena(reported: ItemResults, key: str, value: str | int | float | None) -> Arena:
    every = list(reported.results.values())
    own = [r for r in every if r.cell.setting.get(key) == value and r.cell.role not in ("bound", "ladder")]
    finished = [result for result in own if result.values and not result.diverged]
    enough = [result for result in finished if len(result.values) >= FEWEST_SEEDS]
    chosen = enough if len(enough) > 1 else finished
    seeds_of = [set(result.values) for result in chosen]
    common = set.intersection(*seeds_of) if seeds_of else set()
    bounds = _bounds(every, key, value)
    labels_alone = next((result.values for result in bounds if is_bound(result.cell)), {})
    runs_of: dict[str, list[RunRecord]] = {}
    for result in chosen:
        runs_of[result.cell.label] = [run for run in result.runs if run.seed in (common or result.values)]
    totals = [sum(_bytes(run)) for runs in runs_of.values() for run in runs]
    budget = min((total for total in totals if total), default=None)
    compared = []
    for result in chosen:
        runs = runs_of[result.cell.label]
        values = {run.seed: result.values[run.seed] for run in runs}
        at_bytes = _accuracies_at(runs, budget) if budget else []
        why = _why_not_ranked(runs, values, labels_alone)
        compared.append(Compared(result=result, runs=runs, values=values, at_bytes=at_bytes, not_ranked=why))
    if len(common) >= FEWEST_SEEDS:
        compared.sort(key=lambda method: -method.seen.mean)
    compared.sort(key=lambda method: bool(method.not_ranked))
    waiting = [choice for choice in reported.item.choices if choice.setting.get(key, value) == value]
    return Arena(
        key=key,
        value=value,
        seeds=tuple(sorted(common)),
        budget=budget,
        compared=tuple(compared),
        apart=tuple(result for result in own if result.cell.label not in runs_of),
        waiting=tuple(waiting),
        bounds=tuple(bounds),
    )


def _bounds(every: Sequence[CellResult], key: str, value: object) -> list[CellResult]:
    """Return the baselines of this column, and the baselines that the item has only once, which every column shows."""
    bounds = [result for result in every if result.cell.role == "bound"]
    times = Counter(method_of(result.cell) for result in bounds)
    return [r for r in bounds if r.cell.setting.get(key) == value or times[method_of(r.cell)] == 1]


def _why_not_ranked(runs: Sequence[RunRecord], values: Mapping[int, float], labels_alone: Mapping[int, float]) -> str:
    """Return why the method learned nothing from unlabelled images; "" if it did, or if this is not known."""
    if all(run.last(KEPT) == 0 for run in runs):
        return KEPT_NONE
    shared = values.keys() & labels_alone.keys()
    if not shared:
        return ""
    own = median(values[seed] for seed in shared)
    baseline = median(labels_alone[seed] for seed in shared)
    return NO_BETTER if own <= baseline else ""


def _bytes(run: RunRecord) -> list[float]:
    """Return the bytes up and down of each round."""
    return [line.get("comm/bytes_up", 0.0) + line.get("comm/bytes_down", 0.0) for line in run.rounds]


def _accuracies_at(runs: Sequence[RunRecord], budget: float) -> list[float]:
    """Return the runs' accuracies at the budget; none if it pays for no evaluation of one of them."""
    accuracies = [_accuracy_at(run, budget) for run in runs]
    reached = [accuracy for accuracy in accuracies if accuracy is not None]
    return reached if len(reached) == len(runs) else []  # all means are over the same seeds


def _accuracy_at(run: RunRecord, budget: float) -> float | None:
    """Return the accuracy at the last evaluation within `budget` bytes, or None without such an evaluation.

    If the run's rule selects the best round, return the best accuracy until then.
    """
    pairs = zip(run.rounds, accumulate(_bytes(run)), strict=True)
    seen: list[float] = [line[ACCURACY] for line, spent in pairs if spent <= budget and ACCURACY in line]
    if not seen:
        return None
    return max(seen) if run.selected_on_test else seen[-1]


def order_text(arena: Arena, n_wanted: int) -> str:
    """Say how the methods are sorted, over how many seeds, and which learned nothing from unlabelled images."""
    n = len(arena.seeds)
    if not arena.compared:
        return "No finished run yet."
    if not arena.seeds:
        text = "Not compared: no seed is common to all methods."
    elif n < FEWEST_SEEDS:
        text = f"Not ranked: the methods have only {count(n, 'common seed')}, and a ranking needs {FEWEST_SEEDS}."
    elif not arena.ranked:
        text = "Sorted by mean; no method learned from unlabelled images, so none is ranked."
    else:
        wanted = f" of {n_wanted} wanted" if n < n_wanted else ""
        chance = "the difference of the best to the second is more than chance" if arena.clear_best else ""
        text = f"Sorted by mean over {count(n, 'common seed')}{wanted}; {chance or 'the order may be chance'}."
    for why in (KEPT_NONE, NO_BETTER):
        names = [method_of(method.result.cell) for method in arena.compared if method.not_ranked == why]
        if names:
            text += f" Not ranked: {len(names)} of {len(arena.compared)} methods {why}: {'; '.join(names)}."
    few = [method_of(result.cell) for result in arena.apart if result.values and not result.diverged]
    if few:
        text += f" Too few seeds: {'; '.join(few)}."
    return text


def arena_tables(reported: ItemResults) -> list[Table]:
    """Return a table for each value of the setting that varies, with the data and the notes of all."""
    every, data, notes = arenas(reported), arena_rows(reported), notes_of(reported)
    tables = [_table(reported.item, arena, data=data, notes=notes) for arena in every]
    results = list(reported.results.values())
    if not is_open(results):
        return tables
    pairs = zip(tables, every, strict=True)
    return [with_unknown(table, runs_by_address(results, _compared_runs(arena))) for table, arena in pairs]


def _compared_runs(arena: Arena) -> dict[str, Sequence[RunRecord]]:
    """Return the runs on the common seeds of each compared cell, by its label."""
    return {method.result.cell.label: method.runs for method in arena.compared}


def _table(item: Item, arena: Arena, **more: Any) -> Table:
    remark = order_text(arena, item.seeds) + (" Last rows: bounds, not in the ranking." if arena.bounds else "")
    lengths = {len(run.rounds) for method in arena.compared for run in method.runs}
    heads = (
        Column(name="Method", left=True),
        Column(name="Equal rounds", below=f"{lengths.pop():,} rounds" if len(lengths) == 1 else "last round"),
        Column(name="To the best", below="points"),
        Column(name="Equal bytes", below="" if arena.budget is None else f"{megabytes(arena.budget)} MB"),
        Column(name="Local steps", below="per run"),
        Column(name="MB up + down", below="per run"),
        *TIMES,
        Column(name="Trials", below="to tune it"),
    )
    none = [""] * (len(heads) - 2)

    def named(entry: Cell | Choice, href: str = "") -> TableEntry:
        text, other = method_of(entry), entry.setting.get(arena.key, arena.value)
        return TableEntry(text=text if other == arena.value else f"{text} ({other})", href=href)

    rows = [_compared_row(arena, method, named) for method in arena.compared]
    for section, results in (("apart", arena.apart), ("bounds", arena.bounds)):
        rows += [row_of((named(r.cell, cell_address(r)), end_entry(r), *none), section) for r in results]
        waits = TableEntry(text="waits for trials", look="missing")
        choices = [choice for choice in arena.waiting if (choice.role == "bound") == (section == "bounds")]
        rows += [row_of((named(choice), waits, *none), section) for choice in choices]
    about = f"{item.name}, profile {item.profile}; test accuracy in percent"
    return table_of("table", f"{item.title}, {arena.title} ({about}). {remark}", heads, rows, title=arena.title, **more)


def _compared_row(arena: Arena, method: Compared, named: Callable[[Cell, str], TableEntry]) -> Row:
    """Return the row of a compared method: its mean, its distance to the best one, and its costs."""
    gap, costs = arena.to_best(method), method.costs
    seeds = [percent(value, 1) for _, value in sorted(method.values.items())]
    to_best = TableEntry()
    if gap is not None:
        to_best = TableEntry(text=points(gap), below=(f"n={len(arena.seeds)}",), sort=gap)
    elif method in arena.ranked:
        to_best = TableEntry(text="best")
    entries = (
        named(method.result.cell, cell_address(method.result)),
        mean_entry(method.seen, detail=(" ".join(seeds),) if seeds[1:] else (), look=_look(arena, method)),
        to_best,
        mean_entry(method.seen_at_bytes) if method.at_bytes else "",
        *_cost_entries(costs),
        str(method.result.cell.trials),
    )
    return row_of(entries, "unranked" if method.not_ranked else "compared")


def _look(arena: Arena, method: Compared) -> str:
    """Return "best" for the best method if it is so by more than chance."""
    return "best" if method is arena.clear_best else ""


def _cost_entries(costs: Mapping[str, float | None]) -> tuple[TableEntry, ...]:
    """Return the entries of local steps, of bytes, of wall time and of server time; "" for an unknown time."""
    forms = (("steps", thousands), ("bytes", megabytes), ("wall_seconds", _minutes), ("server_seconds", _short))
    entries = []
    for name, form in forms:
        value = costs[name]
        entries.append(TableEntry(text=NONE) if value is None else TableEntry(text=form(value), sort=value))
    return tuple(entries)


def _minutes(seconds: float) -> str:
    return _short(seconds / 60)


def _short(value: float) -> str:
    """Write a time with two digits, or all digits before the point: 0.021, 6.2, 9.0, 1,230."""
    return f"{value:,.0f}" if value >= 10 else f"{value:#.2g}"


def reference_arena(every: Sequence[ItemResults]) -> tuple[ItemResults, Arena] | None:
    """Return the environment that gives other lists their order of methods. Return None if nothing has been compared.

    This is the one on MNIST if its methods can be ranked, and if not, the one with the most common seeds. Accuracies on
    known classes (arena/open) are in no list of all methods.
    """
    closed = [one for one in every if one.paper == "arena" and not is_open(list(one.results.values()))]
    found = [(reported, arena) for reported in closed for arena in arenas(reported)]
    return max((pair for pair in found if pair[1].compared), key=_extent, default=None)


def _extent(pair: tuple[ItemResults, Arena]) -> tuple[bool, int, int]:
    reported, arena = pair
    data = {method.result.cell.experiment.data.name for method in arena.compared}
    n = len(arena.seeds)
    return data == {"mnist"} and n >= FEWEST_SEEDS, n, len(arena.compared)


def methods_overview(every: Sequence[ItemResults]) -> Table | None:
    """Return one row per method in the reference environment: accuracy over common seeds, n, bytes and local steps.

    Methods that learned nothing from unlabelled images and methods with too few seeds are last and not ranked.
    Return None without a finished run.
    """
    chosen = reference_arena(every)
    if chosen is None:
        return None
    reported, arena = chosen
    rows = []
    for method in arena.compared:
        name = TableEntry(text=method_of(method.result.cell), href=cell_address(method.result))
        accuracy = mean_entry(method.seen, look=_look(arena, method))
        steps, megabytes_entry, *times = _cost_entries(method.costs)
        rank = "not ranked: learned nothing from unlabelled images" if method.not_ranked else ""
        named = replace(name, below=(rank,)) if rank else name
        section = "unranked" if method.not_ranked else "compared"
        rows.append(row_of((named, accuracy, str(method.seen.n), megabytes_entry, steps, *times), section))
    for result in arena.apart:
        below = ("not ranked: too few seeds",) if result.values else ()
        name = TableEntry(text=method_of(result.cell), href=cell_address(result), below=below)
        rows.append(row_of((name, replace(end_entry(result), below=()), str(result.n), *[NONE] * 4), "apart"))
    heads = (
        Column(name="Method", left=True),
        Column(name="Accuracy (%)"),
        Column(name="Seeds"),
        Column(name="MB up + down"),
        Column(name="Local steps"),
        *TIMES,
    )
    title = reported.item.title.removeprefix("All methods ")
    caption = f"Methods {title}, {arena.title}, profile {reported.item.profile}. {ranking_text(arena)}"
    return table_of("methods", caption, heads, rows, title=reported.page)


def ranking_text(arena: Arena) -> str:
    """Say whether the table is a ranking, in one sentence."""
    n = count(len(arena.seeds), "common seed")
    if len(arena.seeds) < FEWEST_SEEDS:
        return f"Not a ranking: {n}."
    if not arena.ranked:
        return "No method learned from unlabelled images."
    if arena.clear_best:
        return f"Sorted by the mean over {n}. The best one (bold) is better than the second by more than chance."
    return f"Sorted by the mean over {n}. The order may be chance: the best is not clearly better than the second."


def compared_table(every: Sequence[ItemResults]) -> Table:
    """Return all arenas as one table: a row for each method, a column for each environment; links from the root.

    Rows are in the order of the reference environment; methods that it does not have follow.
    """
    columns, sections = dict[Column, dict[str, TableEntry]](), dict[str, str]()
    chosen = reference_arena(every)
    if chosen is not None:
        sections |= {method_of(method.result.cell): "compared" for method in chosen[1].compared}
    for reported in every:
        if reported.paper != "arena":
            continue
        group = reported.item.title.removeprefix("All methods ").removeprefix("on ").removeprefix("over ")
        for arena in arenas(reported):
            value = arena.title.removesuffix(" hyperparameters")
            below = f"{reported.item.profile}, {count(len(arena.seeds), 'seed')}"
            column = Column(name=value, group=sentence(group).rstrip("."), below=below)
            columns[column] = _column_entries(arena)
            ranked = (*(method.result for method in arena.compared), *arena.apart)
            for result in ranked:
                sections.setdefault(method_of(result.cell), "compared")
            sections |= {method_of(result.cell): "bounds" for result in arena.bounds}
    rows = []
    for name, section in sorted(sections.items(), key=lambda pair: pair[1] == "bounds"):
        entries = [column.get(name, TableEntry()) for column in columns.values()]
        rows.append(row_of((name, *entries), section))
    caption = "Test accuracy in percent at equal rounds, mean ± standard deviation over the common seeds"
    return table_of("compared", caption, ("Method", *columns), rows)


def _column_entries(arena: Arena) -> dict[str, TableEntry]:
    """Return the entry of each method in this environment, by the method's name."""
    entries: dict[str, TableEntry] = {}
    for result in (*arena.apart, *arena.bounds):
        entries[method_of(result.cell)] = replace(end_entry(result), href=cell_address(result))
    for method in arena.compared:
        below = ("not ranked",) if method.not_ranked else ()
        entry = mean_entry(method.seen, below=below, look=_look(arena, method), href=cell_address(method.result))
        entries[method_of(method.result.cell)] = entry
    return entries


def arena_rows(reported: ItemResults) -> list[dict[str, Any]]:
    """Return a row for each cell: the fields of every table's CSV, its mean over the common seeds, and its costs.

    All accuracies are fractions; a value that does not exist is None.
    """
    compared = {method.result.cell.label: (arena, method) for arena in arenas(reported) for method in arena.compared}
    ends = ("rounds_mean", "rounds_std", "rounds_n", "rounds_to_best", "bytes_mean")
    names = (*ends, "run_steps", "run_bytes", "run_wall_seconds", "run_server_seconds")
    trials = {cell.label: cell.trials for cell in reported.item.cells}
    trials |= {choice.label: len(choice.trials) for choice in reported.item.choices}
    shows_unknown, rows = is_open(list(reported.results.values())), []
    for row in item_rows(reported):
        values: Sequence[float | None] = [None] * len(names)
        if row["label"] in compared:
            arena, method = compared[row["label"]]
            seen, at_bytes = method.seen, method.seen_at_bytes
            bytes_mean = at_bytes.mean if at_bytes else None
            values = (seen.mean, seen.std, seen.n, arena.to_best(method), bytes_mean, *method.costs.values())
        added = dict(zip(names, values, strict=True))
        if shows_unknown:
            runs = compared[row["label"]][1].runs if row["label"] in compared else ()
            added |= unknown_means(runs)
        rows.append({**row, **added, "trials": trials.get(row["label"], 0)})
    return rows
