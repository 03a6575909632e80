"""An item's figure: which curves or points stand in which panel, as its `Drawing` says."""

from collections.abc import Iterable, Sequence

import pandas as pd

from benchmark.errors import FsslError
from benchmark.federated.environment import prepare
from benchmark.papers.bounds import bound_of
from benchmark.papers.item import Cell, Drawing, Item
from benchmark.verdicts.results import ACCURACY
from reports.figures import Panel, Picture, against, class_counts, curves
from reports.formatting import metric_name
from reports.paper_table import method_of, setting_text
from reports.reported import KEPT, Reported
from reports.results import CURVE_COLUMNS, curves_frame, measured, series_of
from reports.style import line_looks, series_looks

DIVERSITY = "diversity/delta/l2/squared/clients"
MOST_LINES = 16  # in a panel; more say nothing
PANEL_POINTS = 120
CAPTIONS = {
    "curves": "x axis: round. Line: mean over seeds; band: 95 % interval (five or more seeds); thin lines: single "
    "runs. A dotted line ending in a cross is a run that diverged. Click on a name to hide its line.",
    "against": "Mean over seeds with its 95 % interval (five or more seeds); every run is a dot. "
    "No line joins means of different seeds.",
    "class_counts": "Images of each class at each client, seed 0. From the data sets on this machine.",
}


def item_picture(one: Reported) -> Picture | None:
    """The item's figure, or for a table its curves; None where no run has begun or there are too many lines."""
    item = one.item
    drawing = item.drawing or Drawing(metrics=(ACCURACY, DIVERSITY))
    if drawing.kind == "class_counts":
        return _counts(item, drawing)
    if not one.runs:
        return None
    return _against(one, drawing) if drawing.kind == "against" else _curves(one, drawing)


def caption_of(item: Item) -> str:
    drawing = item.drawing or Drawing()
    named = ", ".join(dict.fromkeys(metric_name(metric) for metric in drawing.truth.values()))
    return CAPTIONS[drawing.kind] + (f" Dotted, in a line's colour: {named}, mean over seeds." if named else "")


def drawn_metrics(one: Reported) -> list[str]:
    """The drawing's metrics, and the share of pseudo-labels kept, without which accuracy does not tell whether clients
    learn; of a table, those that were measured."""
    item, runs = one.item, one.runs
    asked = item.drawing.metrics if item.drawing else (ACCURACY, *(() if item.methods_are_rows else (DIVERSITY,)))
    wanted = [metric for metric in asked if item.drawing or metric == ACCURACY or measured(runs, metric)]
    return [*wanted, KEPT] if measured(runs, KEPT) and KEPT not in wanted and not item.methods_are_rows else wanted


def panels_of(item: Item, drawing: Drawing) -> dict[str, dict[str, Cell]]:
    """Panel title -> line name -> cell. Without keys for panels: a panel for each value of the other keys where lines
    are methods; all cells in one where the item has one method."""
    cells = [cell for cell in item.cells if cell.role != "ladder"]
    keys = list(dict.fromkeys(key for cell in cells for key in cell.setting))
    varying = [key for key in keys if len({cell.setting.get(key) for cell in cells}) > 1]
    lines = [key for key in drawing.lines if key in varying]
    others = [key for key in varying if key not in lines]
    if not lines:
        lines, others = others, []
    if drawing.panels:
        others = list(drawing.panels)
        lines = [key for key in varying if key not in others]
    found: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        name = _said(cell, lines) or cell.label
        for title in dict.fromkeys(_said(one, others) for one in bounded(cell, cells, others) or [cell]):
            panel = found.setdefault(title, {})
            panel[name if name not in panel else cell.label] = cell
    return found


def bounded(cell: Cell, cells: Sequence[Cell], keys: Iterable[str]) -> list[Cell]:
    """The cells in whose places a bound is drawn that has none of its own, as it lacks one of the keys: those that have
    to beat it. Empty for all others."""
    if cell.role != "bound" or all(key in cell.setting for key in keys):
        return []
    return [one for one in cells if bound_of(one, cells) is cell]


def _curves(one: Reported, drawing: Drawing) -> Picture | None:
    item, results = one.item, one.results
    panels = panels_of(item, drawing)
    if len(panels) > 6:  # too many to stand side by side: one panel, all lines
        panels = {"": {cell.label: cell for lines in panels.values() for cell in lines.values()}}
    if not panels or max(map(len, panels.values())) > MOST_LINES:
        return None
    looks = line_looks((name for lines in panels.values() for name in lines), methods_of(item))
    rows = []
    for metric in drawn_metrics(one):
        truth = drawing.truth.get(metric)
        rows.append(
            [
                Panel(
                    title=title,
                    metric=metric,
                    lines={n: series_of(results[c.label], metric, PANEL_POINTS) for n, c in lines.items()},
                    truth={n: series_of(results[c.label], truth) for n, c in lines.items()} if truth else {},
                    joins=joins(lines.values()),
                )
                for title, lines in panels.items()
            ]
        )
    alone = len(panels) == 1
    return curves(rows, looks, width=5.6 if alone else 2.7, height=2.2 if alone else 1.8)


def joins(cells: Iterable[Cell]) -> int | None:
    """The round after which clients take part, where the server trains alone first; None where cells differ."""
    found = {getattr(cell.experiment.method, "warm_start_rounds", 0) for cell in cells if cell.role != "bound"}
    found.discard(0)
    return found.pop() if len(found) == 1 else None


def methods_of(item: Item) -> list[str]:
    return [method_of(cell) for cell in item.cells]


def _against(one: Reported, drawing: Drawing) -> Picture | None:
    """A panel a metric (and a value of the drawing's keys for panels), a line for each value of its keys for lines;
    level for a bound."""
    item = one.item
    cells = [cell for cell in item.cells if cell.role != "ladder"]
    panels: dict[str, dict[str, dict[object, pd.Series]]] = {}
    metrics: dict[str, str] = {}
    keys = [key for key in drawing.lines if key != drawing.x]
    for metric in drawn_metrics(one):
        results = one.by_metric[metric]
        for cell in cells:
            values, beside = results[cell.label].values, bounded(cell, cells, (*drawing.panels, drawing.x))
            for place in [cell] if not beside else beside if values else []:
                if drawing.x not in place.setting:
                    continue
                title = ": ".join(part for part in (_said(place, drawing.panels), metric_name(metric)) if part)
                metrics[title] = metric
                rows = panels.setdefault(title, {}).setdefault(cell.label if beside else _said(cell, keys), {})
                if values:
                    rows[place.setting[drawing.x]] = pd.Series(values, name=place.setting[drawing.x], dtype=float)
    if not panels:
        return None
    lines = {
        title: {name: _in_order(pd.DataFrame(list(rows.values()))) for name, rows in found.items()}
        for title, found in panels.items()
    }
    looks = line_looks((name for found in panels.values() for name in found), methods_of(item))
    return against(lines, metrics, looks, drawing.x, drawing.log_x)


def _in_order(runs: pd.DataFrame) -> pd.DataFrame:
    """Numbers by size, words as they come."""
    return runs if any(isinstance(x, str) for x in runs.index) else runs.sort_index()


def _said(cell: Cell, keys: Iterable[str]) -> str:
    """What the cell's setting says of these keys."""
    return setting_text({key: cell.setting[key] for key in keys if key in cell.setting})


def _counts(item: Item, drawing: Drawing) -> Picture | None:
    """None where a data set is not on this machine."""
    panels: dict[str, pd.DataFrame] = {}
    for cell in item.cells:
        counts = _class_counts(cell)
        if counts is None:
            return None
        panels[_said(cell, drawing.panels) or cell.label] = counts
    classes = list(dict.fromkeys(name for counts in panels.values() for name in counts.columns))
    return class_counts(panels, series_looks(classes)) if panels else None


def _class_counts(cell: Cell) -> pd.DataFrame | None:
    """A row a client, a column a class; None where the data are not here."""
    try:
        found = prepare(cell.experiment)
    except FsslError:
        return None
    return pd.DataFrame(
        found.split.counts(found.data.train_labels_N.numpy()), columns=list(map(str, found.data.classes))
    )


def figure_csv(one: Reported) -> pd.DataFrame:
    """The numbers behind the figure: every run of every cell, round by round, with the cell's label."""
    cells = one.item.cells
    labels = pd.DataFrame({"label": [cell.label for cell in cells], "cell_key": [cell.cell_key for cell in cells]})
    unique = {(run.cell_key, run.seed): run for run in one.runs}.values()
    return labels.merge(curves_frame(unique, drawn_metrics(one)), on="cell_key")[["label", *CURVE_COLUMNS]]
