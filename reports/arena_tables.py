"""Write the tables of method comparisons: one for each comparison, and two of all methods for the overview pages."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmark.papers.item import Cell, Choice, Item
from benchmark.records.record import RunRecord
from reports.arena import FEWEST_SEEDS, KEPT_NONE, NO_BETTER, Arena, Compared, arenas, reference_arena
from reports.entries import end_entry, item_rows, mean_entry, method_of, notes_of
from reports.formatting import NONE, cell_address, count, megabytes, percent, points, sentence, thousands
from reports.item_results import ItemResults
from reports.open_set import is_open, runs_by_address, unknown_means, with_unknown
from reports.tables import Column, Row, Table, TableEntry, row_of, table_of

REFERENCES = (  # below a ranking; a comparison has one or several of them
    " The last rows are references and are not ranked: training on the labels only, centralised training, or training "
    "on all labels."
)
TIMES = (  # columns of the times of a run, on the machine of the runs
    Column(name="Wall time", below="min per run"),
    Column(name="Server time", below="s per run"),
)


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
    every = arenas(reported)
    data = arena_rows(reported)
    notes = notes_of(reported)
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
    remark = order_text(arena, item.seeds) + (REFERENCES if arena.bounds else "")
    lengths: set[int] = set()
    for method in arena.compared:
        lengths |= {len(run.rounds) for run in method.runs}
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
        text = method_of(entry)
        other = entry.setting.get(arena.key, arena.value)
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
    gap = arena.to_best(method)
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
        *_cost_entries(method.costs),
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
    columns: dict[Column, dict[str, TableEntry]] = {}
    sections: dict[str, str] = {}
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
    compared: dict[str, tuple[Arena, Compared]] = {}
    for arena in arenas(reported):
        compared |= {method.result.cell.label: (arena, method) for method in arena.compared}
    ends = ("rounds_mean", "rounds_std", "rounds_n", "rounds_to_best", "bytes_mean")
    names = (*ends, "run_steps", "run_bytes", "run_wall_seconds", "run_server_seconds")
    trials = {cell.label: cell.trials for cell in reported.item.cells}
    trials |= {choice.label: len(choice.trials) for choice in reported.item.choices}
    shows_unknown = is_open(list(reported.results.values()))
    rows = []
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
