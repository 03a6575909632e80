"""Write the names, means and notes of a table's entries, and the rows of numbers behind its tables.

An entry is a cell, or a published number that has no cell.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmark.data.datasets import DATASETS
from benchmark.fractions import is_fraction
from benchmark.papers.item import Cell, Item, ItemEntry
from benchmark.records.versions import numerics_caveat
from benchmark.verdicts.cell_results import ACCURACY, CellResult
from benchmark.verdicts.statistics import Summary
from reports.formatting import WORDS, shown, unit_of
from reports.item_results import KEPT, ItemResults
from reports.tables import TableEntry

SELECTED_ON_TEST = "selection: best round on the test set, as the paper did"
AT_CHANCE = "at chance"
LABELS = WORDS["labels"]
PUBLISHED_COLUMNS = ("published", "published_spread", "published_runs", "published_setting", "published_metric")
RUN_COLUMNS = ("mean", "std", "interval_low", "interval_high", "n", "n_wanted", "n_diverged", "status")


def is_arena(item: Item) -> bool:
    """Return whether each row of the table is a method, and no number of it is published."""
    return item.rows == ("method",) and item.drawing is None and not is_published(item)


def is_published(item: Item) -> bool:
    """Return whether any of its numbers is published."""
    entries = (*item.cells, *item.shown, *(item.publication.entries if item.publication else ()))
    return any(entry.published for entry in entries)


def at_chance(result: CellResult) -> bool:
    """Return whether the cell's mean accuracy is at most 1.5 times that of guessing; False for unknown data sets."""
    data = result.cell.experiment.data
    listed = DATASETS.get(data.name)
    if listed is None or result.summary is None:
        return False
    unknown = len(data.unknown_classes) if data.label_setting == "open" else 0
    return result.summary.mean <= 1.5 / (listed.num_classes - unknown)


def method_of(entry: ItemEntry) -> str:
    return str(entry.setting.get("method", entry.label))


def metrics_of(item: Item) -> tuple[str, ...]:
    """Return the metrics that have a block of columns: the item's metrics and the metrics that its figure draws."""
    return tuple(dict.fromkeys((*item.metrics, *(item.drawing.metrics if item.drawing else ()))))


def setting_text(setting: Mapping[str, object], keys: Iterable[str] | None = None) -> str:
    """Write a setting: "full, C = 47, mixup = yes". Numbers, yes and no need their key, and other words do not.

    `keys`: the keys to write; all by default.
    """
    setting = setting if keys is None else {key: setting[key] for key in keys if key in setting}
    alone = {key for key, value in setting.items() if isinstance(value, str) and value not in ("yes", "no")}
    return ", ".join(str(value) if key in alone else f"{key} = {value}" for key, value in setting.items())


def end_entry(result: CellResult) -> TableEntry:
    """Return the mean of a cell that is not compared, or its status if a run diverged or none has finished.

    A cell whose only finished runs do not count has `stale_entry`.
    """
    stale = stale_entry(result)
    if stale is not None:
        return stale
    if result.diverged or result.summary is None:
        return TableEntry(text=result.counts, look=result.status)
    return mean_entry(result.summary, below=(f"n={result.n}",))


def stale_entry(result: CellResult, metric: str = ACCURACY, **more: Any) -> TableEntry | None:
    """Return "old code: 87.04", with the number of runs, for a cell whose only finished runs do not count.

    Return None for all other cells. `more`: the entry's other fields.
    """
    seen = result.stale_summary
    if seen is None:
        return None
    spread = "" if seen.std is None else f"±{shown(metric, seen.std)}"
    text = f"{result.stale_reason}: {shown(metric, seen.mean)}"
    return TableEntry(text=text, spread=spread, below=(f"n={seen.n}, not counted",), look="stale", sort=-1.0, **more)


def mean_entry(seen: Summary | None, metric: str = ACCURACY, **more: Any) -> TableEntry:
    """Return mean and standard deviation over seeds, a dash without a run. `more`: the entry's other fields."""
    if seen is None:
        return TableEntry(**more)
    spread = "" if seen.std is None else f"±{shown(metric, seen.std)}"
    return TableEntry(text=shown(metric, seen.mean), spread=spread, sort=seen.mean, **more)


def item_rows(reported: ItemResults) -> list[dict[str, Any]]:
    """Return the numbers behind the table of the item's own runs, a row for each cell and metric.

    All values are in the unit that the row names: fractions, not percent. Published numbers have separate rows
    (`published_rows`). Only under profile `paper`, which has the published data and sizes, a cell's row also
    contains its published number.
    """
    item = reported.item
    rows = []
    for metric in metrics_of(item):
        rows += [entry_values(reported, cell, metric) for cell in item.cells]
    for choice in item.choices:
        known = {"item": item.name, "profile": item.profile, **choice.setting, "label": choice.label}
        rows.append({**known, "role": choice.role, "status": "waits for trials", "note": choice.note})
    return rows


def entry_values(reported: ItemResults, entry: ItemEntry, metric: str) -> dict[str, Any]:
    """Return one row of `item_rows`. All rows have the same columns in the same order."""
    item = reported.item
    result = reported.of(metric).get(entry.label)
    agreement = reported.agreements.get(entry.label)
    unit = "fraction" if is_fraction(metric) else unit_of(metric)
    row: dict[str, Any] = {
        "item": item.name,
        "profile": item.profile,
        **entry.setting,
        "label": entry.label,
        "role": entry.role if isinstance(entry, Cell) else "shown",
        "cell_key": entry.cell_key if isinstance(entry, Cell) else None,
        "metric": metric,
        "unit": unit or "none",
    }
    is_compared = item.profile == "paper" and not (agreement and agreement.other_data)
    row |= dict.fromkeys(PUBLISHED_COLUMNS)
    if is_compared and metric in entry.published:
        row |= _published_values(entry, metric)
    row |= _run_values(result)
    row |= {"difference": None, "agreement": None}
    if agreement and metric == ACCURACY:
        row |= {"difference": agreement.difference, "agreement": agreement.text}
    row |= entry.computed
    row["note"] = entry.note
    row["selection"] = SELECTED_ON_TEST if result and result.selected_on_test else ""
    return row


def _published_values(entry: ItemEntry, metric: str) -> dict[str, Any]:
    """Return the published number of an entry and its setting, by `PUBLISHED_COLUMNS`."""
    number = entry.published[metric]
    scale = 0.01 if is_fraction(metric) else 1.0
    return {
        "published": round(number.value * scale, 10),
        "published_spread": None if number.spread is None else round(number.spread * scale, 10),
        "published_runs": number.runs,
        "published_setting": setting_text(entry.published_setting),
        "published_metric": number.metric or metric,
    }


def _run_values(result: CellResult | None) -> dict[str, Any]:
    """Return the mean over the runs of a cell, their numbers and their status, by `RUN_COLUMNS`.

    Without a cell, all values are None and the status is "shown".
    """
    row: dict[str, Any] = dict.fromkeys(RUN_COLUMNS)
    if result is None:
        return row | {"status": "shown"}
    seen = result.summary
    if seen is not None:
        row |= {"mean": seen.mean, "std": seen.std}
        if seen.interval is not None:
            row["interval_low"], row["interval_high"] = seen.interval
    row |= {"n": result.n, "n_wanted": result.n_wanted, "n_diverged": len(result.diverged), "status": result.status}
    return row


def notes_of(reported: ItemResults) -> tuple[str, ...]:
    """Return the notes of the table and of its values.

    The latter are the cells' own notes, who has labels if cells differ in it, which values were selected on test
    data, which cells wait for trials, and which selected no pseudo-label at the end.
    """
    item = reported.item
    results = list(reported.of(item.metrics[0]).values())
    chosen = [result.cell.label for result in results if result.selected_on_test]
    where = "" if len(chosen) == sum(result.n > 0 for result in results) else f" ({', '.join(chosen)})"
    waiting = ", ".join(choice.label for choice in item.choices)
    return (
        *item.notes,
        *_own_notes(item),
        *_who_has_labels(item),
        *([f"{SELECTED_ON_TEST}{where}"] if chosen else []),
        *([f"waits for trials: {waiting}"] if waiting else []),
        *_without_pseudo_labels(results),
        *filter(None, [numerics_caveat(reported.runs)]),
    )


def _without_pseudo_labels(results: Iterable[CellResult]) -> list[str]:
    """Return a note on the cells whose runs all selected no pseudo-label in the last round."""
    labels = []
    for result in results:
        kept = [run.last(KEPT) for run in result.runs if run.result]
        if kept and not any(kept) and None not in kept:
            labels.append(result.cell.label)
    if not labels:
        return []
    named = f"{', '.join(labels[:4])}{' and others' if labels[4:] else ''}"
    return [f"{named}: no pseudo-label was selected in the last round"]


def _own_notes(item: Item) -> list[str]:
    """Return each remark of the entries' notes once, with the entries that have it."""
    labels_of: dict[str, list[str]] = {}
    entries: list[ItemEntry] = [*item.cells, *item.shown, *item.choices]
    for entry in entries:
        for remark in filter(None, entry.note.split("; ")):
            labels_of.setdefault(remark, []).append(entry.label)
    return [
        f"{', '.join(labels[:4])}{' and others' if labels[4:] else ''}: {note}" for note, labels in labels_of.items()
    ]


def _who_has_labels(item: Item) -> list[str]:
    """Say who has labels if methods of the table differ in it, because a comparison is then unfair.

    Return nothing if a method occurs with several label settings, which are then rows or columns of the table.
    """
    holders: dict[str, dict[str, None]] = {}
    for cell in item.cells:
        if cell.role in ("published", "own", "control", "quoted"):
            holders.setdefault(cell.experiment.data.label_setting, {})[method_of(cell)] = None
    methods = [name for names in holders.values() for name in names]
    if len(holders) < 2 or len(set(methods)) < len(methods):
        return []
    least, *_ = sorted(holders, key=lambda setting: len(holders[setting]))
    names = ", ".join(list(holders[least])[:6])
    rest = " or ".join(LABELS.get(setting, setting) for setting in holders if setting != least)
    return [f"{names}: {LABELS.get(least, least)}; otherwise {rest}"]
