"""Compose a cell's page: its result, the tables that have it, its curves, and each number and file of its runs.

Several items may have the same cell. It has one page, with all its runs.
"""

import gzip
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmark.experiment import published, to_json
from benchmark.fractions import is_fraction
from benchmark.methods.registry import method_name
from benchmark.papers.item import Cell
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import ACCURACY, CellResult, cell_result, seeds_awaited
from benchmark.verdicts.statistics import summary
from reports.costs_and_curves import costs_of, series_of
from reports.entries import SELECTED_ON_TEST, method_of, setting_text
from reports.figures import Picture, canvas, looks, styled
from reports.formatting import (
    NONE,
    WORDS,
    axis_title,
    count,
    data_name,
    megabytes,
    metric_name,
    number,
    shown,
    slug,
    thousands,
)
from reports.item_figures import DIVERSITY, curves, joins
from reports.item_results import KEPT, KEPT_ACCURACY, ItemResults, Places
from reports.methods import exchange_table, method_page
from reports.provenance import commit_of, facts, files_of_run, flat, marks_of, started, warnings
from reports.tables import Table, TableEntry, csv_of, table_of
from sweeps.status import in_words

PANELS = (  # the metric, a title for the y axis if it differs from the metric's, and the lines by name
    (ACCURACY, "", {"": ACCURACY}),
    (KEPT, "Pseudo-labels (%)", {"selected": KEPT, "right among selected": KEPT_ACCURACY}),
    (DIVERSITY, "", {"": DIVERSITY}),
)
CURVE_POINTS = 160
COSTS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "local_steps": ("local steps", thousands),
    "bytes_up": ("MB up", megabytes),
    "bytes_down": ("MB down", megabytes),
    "wall_seconds": ("on its machine", in_words),
    "server_seconds": ("at the server", lambda seconds: in_words(seconds) if seconds >= 10 else f"{seconds:.2g} s"),
}


def places_of(every: Sequence[ItemResults]) -> dict[str, Places]:
    """Return the items that have each cell, by its key, with the cell's result there; the first item names the cell."""
    places: dict[str, list[tuple[ItemResults, CellResult]]] = {}
    for reported in every:
        for result in reported.results.values():
            places.setdefault(result.cell.cell_key, []).append((reported, result))
    return dict(places)


def runs_of(places: Places) -> list[RunRecord]:
    """Return the runs by seed; items may ask for different seeds."""
    runs = {run.seed: run for _, result in places for run in result.runs}
    return [run for _, run in sorted(runs.items())]


def cell_values(places: Places) -> dict[str, Any]:
    """Return the values of the cell's template."""
    first, first_result = places[0]
    cell = first_result.cell
    profile = first.item.profile
    runs = runs_of(places)
    pilots = max(reported.item.seeds for reported, _ in places)
    result = cell_result(cell, {cell.cell_key: {run.seed: run for run in runs}}, pilots)
    profiles = list(dict.fromkeys(reported.item.profile for reported, _ in places))
    items = list(dict.fromkeys(reported.item.name for reported, _ in places))
    cost = [(COSTS[name][0], COSTS[name][1](value)) for name, value in costs_of(runs).items()]
    settings = {run.seed: flat({**published(run.experiment), "seed": "the run's"}) for run in runs}
    files = {run.seed: files_of_run(run) for run in runs}
    return {
        "cell": cell,
        "name": slug(cell.cell_key),
        "profiles": profiles,
        "items": items,
        "setting": cell_setting(cell),
        "places": _places_table(places),
        "result": result,
        "is_below_baseline": any(result.is_below_baseline for _, result in places),
        "method": method_page(method_name(cell.experiment.method)),
        "notes": _notes(places),
        "pictures": cell_pictures(result),
        "runs": _runs_table(runs, profile, pilots),
        "numbers": _numbers_table(runs),
        "cost": cost,
        "measures": measures_table(runs),
        "exchange": exchange_table(runs),
        "settings": facts(settings),
        "warnings": warnings(runs, profile),
        "provenance": facts(files),
    }


def cell_setting(cell: Cell) -> str:
    """Write data, network and sizes of the cell's runs: "MNIST, small CNN; K = 10, C = 2, T = 16, 200 rounds"."""
    experiment = cell.experiment
    network = WORDS["networks"].get(experiment.model.network, experiment.model.network)
    sizes = experiment.federation
    names = f"{data_name(experiment.data.name)}, {network}"
    return f"{names}; K = {sizes.K}, C = {sizes.C}, T = {sizes.T}, {count(sizes.rounds, 'round')}"


def config_json(cell: Cell, runs: Sequence[RunRecord]) -> bytes:
    """Return the cell's experiment with seed 0: as its first run recorded it, or without a run as the item has it."""
    experiment = {**published(runs[0].experiment if runs else to_json(cell.experiment)), "seed": 0}
    return (json.dumps(experiment, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


def measures_table(runs: Sequence[RunRecord]) -> Table:
    """Return a row per own measure of the method, as last measured: mean over the finished runs, and each run."""
    finished = [run for run in runs if run.status == "done" and run.measures]
    rows = []
    for name in sorted({name for run in finished for name in run.measures}):
        measured = {run.seed: run.measures.get(name, {}) for run in finished}
        last = {seed: values[max(values)] for seed, values in measured.items() if values}
        seen = summary(last.values())
        spread = "" if seen.std is None else f" ±{number(seen.std)}"
        mean = TableEntry(text=f"{number(seen.mean)}{spread}", below=(f"n={seen.n}",), sort=seen.mean)
        each = [TableEntry(text=number(last[run.seed]) if run.seed in last else NONE) for run in finished]
        rows.append((name, mean, *each))
    heads = ("Measure", "Mean", *(f"seed {run.seed}" for run in finished))
    return table_of("measures", "The method's own measures on test images, as last measured", heads, rows)


def rounds_csv(runs: Sequence[RunRecord]) -> bytes:
    """Return all numbers of each round, compressed: a row per seed and round, a column per metric."""
    rows = []
    for run in runs:
        for line in run.rounds:
            known = {name: value for name, value in line.items() if name != "cell_key"}
            own = {name: values[line["round"]] for name, values in run.measures.items() if line["round"] in values}
            rows.append({**own, **known, "seed": run.seed})
    return gzip.compress(csv_of(rows, ("seed", "round")), compresslevel=4, mtime=0)


@styled
def cell_pictures(result: CellResult) -> list[Picture]:
    """Draw a picture for each measured metric: the mean with its band, or the single runs of few seeds."""
    (look,) = looks([method_of(result.cell)]).values()
    pictures = []
    for metric, y_title, drawn in PANELS:
        lines = {name: series_of(result, of, CURVE_POINTS) for name, of in drawn.items()}
        has_runs = [not series.runs.empty for series in lines.values()]
        if any(has_runs):
            styles = {line: replace(look, dash=place) for place, line in enumerate(lines)}
            figure, [[ax]] = canvas(1, 1, styles, width=4.2, height=2.1, left=0.72)
            curves(ax, metric, lines, styles, y_title=y_title, joins=joins([result.cell]))
            pictures.append(Picture(figure=figure))
    return pictures


def _places_table(places: Places) -> Table:
    """Return one row per item that has the cell, with its label and setting in that item."""
    rows = []
    for reported, result in places:
        cell, item = result.cell, reported.item
        numbers = [f"{metric_name(name)} {number.value:g}" for name, number in cell.published.items()]
        text = ", ".join(numbers)
        entries = (
            TableEntry(text=f"{item.name}, {item.profile}", href=reported.page),
            TableEntry(text=cell.label, below=() if cell.role in ("published", "own") else (cell.role,)),
            setting_text(cell.setting),
            TableEntry(
                text=text or NONE,
                below=(setting_text(cell.published_setting),) if text else (),
                look="" if item.profile == "paper" else "published",
            ),
        )
        rows.append(entries)
    heads = ("Table or figure", "Cell", "Setting", "Published")
    return table_of("places", "Tables and figures that have the cell", heads, rows, words=4)


def _notes(places: Places) -> list[str]:
    """Return the cell's notes in its items, and a note if the round was selected on test data."""
    notes = [note for _, result in places for note in filter(None, result.cell.note.split("; "))]
    chosen = [SELECTED_ON_TEST] if any(result.selected_on_test for _, result in places) else []
    return list(dict.fromkeys([*notes, *chosen]))


def _runs_table(runs: Sequence[RunRecord], profile: str, pilots: int) -> Table:
    """Return one row per seed, including the seeds that are awaited."""
    heads = ("Seed", "Status", "Accuracy (%)", "Loss", "Selected (%)", "Accuracy of selected (%)", "Rounds", "Time")
    rows: list[list[Any]] = []
    for run in runs:
        look = run.status if run.status == "diverged" else ""
        texts = (
            run.status,
            shown(ACCURACY, run.selected(ACCURACY)),
            shown("test/loss", run.selected("test/loss")),
            shown(KEPT, run.last(KEPT)),
            shown(KEPT_ACCURACY, run.last(KEPT_ACCURACY)),
            str(run.result.get("rounds", len(run.rounds))),
            f"{run.result['wall_seconds'] / 60:.1f} min" if "wall_seconds" in run.result else "",
        )
        begun = TableEntry(text=started(run)[0], below=tuple(started(run)[1:]))
        entries = [TableEntry(text=text, look=look) for text in texts]
        name = TableEntry(text=f"seed {run.seed}", below=tuple(marks_of(run, profile)))
        rows.append([name, *entries, commit_of(run), begun])
    by_seed = {run.seed: run for run in runs}
    for seed in sorted({*seeds_awaited(by_seed, pilots)} - by_seed.keys()):
        rows.append([f"seed {seed}", TableEntry(text="not run", look="missing"), *[NONE] * 8])
    return table_of("runs", "Runs", (*heads, "Commit", "Started"), rows, words=2)


def _numbers_table(runs: Sequence[RunRecord]) -> Table:
    """Return one row per number of the results and one column per seed: after the last round, and in the best round."""
    numbers = [(run.result.get("last") or {}, run.result.get("best") or {}) for run in runs]
    rows = []
    names = {name for both in numbers for way in both for name in way}
    for name in sorted(names):
        title = axis_title(name)
        entries = []
        for of_last, of_best in numbers:
            last, best = of_last.get(name), of_best.get(name)
            below = () if best in (None, last) else (f"best: {_value(name, best)}",)
            entries.append(TableEntry(text=_value(name, last), below=below, sort=last))
        rows.append((TableEntry(text=title, below=(name,) if title != name else ()), *entries))
    heads = ("Number", *(f"seed {run.seed}" for run in runs))
    return table_of("numbers", "After the last round; below it, if different, in the best round", heads, rows)


def _value(metric: str, value: float | None) -> str:
    if value is not None and not is_fraction(metric) and math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return shown(metric, value)
