"""Draw the picture of a table or figure: its `Drawing` assigns curves or points to panels."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from benchmark.errors import FsslError
from benchmark.papers.bounds import bound_of, is_bound
from benchmark.papers.computed import clients_of
from benchmark.papers.item import Cell, Drawing, Item
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.statistics import INTERVAL_SEEDS, summary
from reports.costs_and_curves import Series, series_of
from reports.entries import method_of, setting_text
from reports.figures import MUTED, Look, Picture, canvas, line_looks, plot, styled, titled
from reports.formatting import WORDS, axis_title, is_fraction, metric_name
from reports.item_results import KEPT, ItemResults

DIVERSITY = "diversity/delta/l2/squared/clients"
MOST_LINES = 16  # in a panel; more lines cannot be distinguished
MOST_PANELS = 6  # in a row
PANEL_POINTS = 120
BAR_PANEL = 3.2  # inches: the width of a panel of bars
BUSY = 5  # lines: with more of them in a panel, bands are faint and single seeds are left out
LEAST_SPAN = 1.0  # points of accuracy: the axis shows at least this span above its reference
MARGIN = 0.12  # the share of the span of the lines' ends that the axis shows below them
LOG_SPAN = 100.0  # ratio of the largest to the smallest diversity: above it a linear axis would hide most values


@styled
def item_picture(reported: ItemResults) -> Picture | None:
    """Draw the item's figure, or a table's curves. Return None if no run has begun, or there are too many lines."""
    item = reported.item
    drawing = item.drawing or Drawing(metrics=(ACCURACY, DIVERSITY))
    if drawing.kind == "class_counts":
        picture = _class_counts(reported, drawing)
    elif not reported.runs:
        picture = None
    elif drawing.kind == "against":
        picture = _against(reported, drawing)
    else:
        picture = _curves(reported, drawing)
    return picture and replace(picture, caption=f"{caption_of(item)}{picture.caption}")


def caption_of(item: Item) -> str:
    """Describe the content of this kind of figure, including dotted lines."""
    drawing = item.drawing or Drawing()
    named = ", ".join(dict.fromkeys(metric_name(metric) for metric in drawing.truth.values()))
    dotted = f" Dotted, in a line's colour: {named}, mean over seeds." if named else ""
    return f"{WORDS['drawings'][drawing.kind]}{dotted}"


def drawn_metrics(reported: ItemResults) -> list[str]:
    """Return the metrics that are drawn.

    A figure has the drawing's metrics and the share of selected pseudo-labels, which shows whether clients learn. A
    table has accuracy, and diversity and that share if they were measured.
    """
    item = reported.item
    metrics, more = (list(item.drawing.metrics), [KEPT]) if item.drawing else ([ACCURACY], [DIVERSITY, KEPT])
    if "method" not in item.rows:
        measured = {metric for run in reported.runs for line in run.rounds for metric in line}
        new = [metric for metric in more if metric in measured]
        metrics += [metric for metric in new if metric not in metrics]
    return metrics


Place: TypeAlias = tuple[str, str, Cell, Cell]  # panel, line, the cell, and the cell that it replaces


def _places(item: Item, panels: Collection[str], lines: Collection[str], x: Collection[str] = ()) -> Iterator[Place]:
    """Yield the places of each cell. A cell without a place of its own gets those of other cells (`_beside`)."""
    cells = [cell for cell in item.cells if cell.role != "ladder"]
    for cell in cells:
        for place in _beside(cell, cells, panels, x) or [cell]:
            yield setting_text(place.setting, panels), setting_text(cell.setting, lines) or cell.label, cell, place


def _beside(cell: Cell, cells: Sequence[Cell], panels: Collection[str], x: Collection[str]) -> list[Cell]:
    """Return the cells whose places this cell gets, which is none if it has a place of its own.

    A baseline without a key of the panels, or of a figure against x, gets the places of the cells that are compared
    with it. Any other cell without x gets the places of the cells that differ from it only in x and in the method.
    """
    lacks = not cell.setting.keys() >= {*panels, *x}
    if cell.role == "bound" and (lacks or x):
        return [other for other in cells if bound_of(other, cells) is cell]
    if not x or cell.setting.keys() >= {*x}:
        return []
    fixed = {key: value for key, value in cell.setting.items() if key != "method"}
    at_all_x = []
    for other in cells:
        agrees = all(other.setting.get(key, value) == value for key, value in fixed.items())
        if agrees and other.setting.keys() >= {*x}:
            at_all_x.append(other)
    return at_all_x


def panels_of(item: Item, drawing: Drawing) -> dict[str, dict[str, Cell]]:
    """Return panel title -> line name -> cell.

    Without keys for panels, there is a panel for each value of the other keys if lines are methods, and one panel if
    the item has one method. A line's name has the parts that the panel's title lacks.
    """
    cells = [cell for cell in item.cells if cell.role != "ladder"]
    keys = dict.fromkeys(key for cell in cells for key in cell.setting)
    varying = []
    for key in keys:
        values = {cell.setting.get(key) for cell in cells}
        if len(values) > 1:
            varying.append(key)
    others = list(drawing.panels)
    if not others and any(key in varying for key in drawing.lines):
        others = [key for key in varying if key not in drawing.lines]
    titles = [setting_text(cell.setting, others) for cell in cells]
    free = [key for key in varying if key not in others]
    named = []
    for key in free:
        pairs = {(title, cell.setting.get(key)) for title, cell in zip(titles, cells, strict=True)}
        if key == "method" or len(pairs) > len({*titles}):
            named.append(key)
    panels: dict[str, dict[str, Cell]] = {}
    for title, name, cell, _ in _places(item, others, named):
        panel = panels.setdefault(title, {})
        if cell not in panel.values():
            panel[name if name not in panel else cell.label] = cell
    return panels


def _curves(reported: ItemResults, drawing: Drawing) -> Picture | None:
    """Draw a row of panels per metric, with one y scale."""
    item, results = reported.item, reported.results
    panels = panels_of(item, drawing)
    if len(panels) > MOST_PANELS:  # one panel, all lines
        panels = {"": {cell.label: cell for lines in panels.values() for cell in lines.values()}}
    if not panels or max(map(len, panels.values())) > MOST_LINES:
        return None
    names = [name for lines in panels.values() for name in lines]
    looks = line_looks(names, map(method_of, item.cells))
    metrics = drawn_metrics(reported)
    of_metrics: list[dict[str, dict[str, Series]]] = []  # for each metric: panel -> line -> its curve
    for metric in metrics:
        known: dict[str, dict[str, Series]] = {}
        for title, cells in panels.items():
            known[title] = {name: series_of(results[cell.label], metric, PANEL_POINTS) for name, cell in cells.items()}
        of_metrics.append(known)
    drawn: set[str] = set()  # lines with runs
    measured = []
    for metric, known in zip(metrics, of_metrics, strict=True):
        with_runs: set[str] = set()
        for lines in known.values():
            with_runs |= {name for name, one in lines.items() if one.runs.size}
        if with_runs:
            measured.append((metric, known))
        drawn |= with_runs
    if measured:
        metrics = [metric for metric, _ in measured]
        of_metrics = [known for _, known in measured]
    legend = {name: look for name, look in looks.items() if name in drawn}
    size: Any = {"width": 5.6, "height": 2.2} if len(panels) == 1 else {"width": 2.7, "height": 1.8}
    sharing: Any = {"sharex": "col", "sharey": "row"}
    figure, axes = canvas(len(metrics), len(panels), legend, **size, left=0.72, titles=any(panels), **sharing)
    clipped = ""
    for metric, known, of_row in zip(metrics, of_metrics, axes, strict=True):
        seen = np.concatenate([one.runs.to_numpy().ravel() for lines in known.values() for one in lines.values()])
        least, most = np.nanmin(seen, initial=np.inf), np.nanmax(seen, initial=0.0)
        if metric.startswith("diversity/") and most > LOG_SPAN * least > 0:
            of_row[0].set_yscale("log")
            of_row[0].yaxis.set_major_formatter("{x:g}")
        for ax, (title, cells) in zip(of_row, panels.items(), strict=True):
            for name, cell in cells.items() if metric in drawing.truth else ():  # the true value of each line, dotted
                true = series_of(results[cell.label], drawing.truth[metric], PANEL_POINTS)
                mean = true.runs[true.finished].mean(axis=1) if true.band.empty else true.band["mean"]
                plot(ax, mean.index, mean, color=looks[name].hex, linestyle=":")
            of_panel: Any = {"title": title if of_row is axes[0] else "", "named": ax is axes[0][0]}
            curves(ax, metric, known[title], looks, joins=joins(cells.values()), **of_panel)
            ax.label_outer()  # titles of axes appear once per row and column
        if metric == ACCURACY:
            clipped = clip(of_row[0], known, baseline_of(reported))
    return Picture(figure=figure, caption=clipped)


def clip(axes: Axes, known: Mapping[str, Mapping[str, Series]], baseline: float | None) -> str:
    """Set the start of the y axis just below the end of the supervised baseline, and return a remark on the hidden
    part.

    `known`: the curves of each panel, in percent; their axes share the scale of `axes`. `baseline`: the final accuracy
    of the supervised baseline, in percent; without one the axis stays as it is. Lines that end slightly lower are also
    shown. A line is clipped if it ends further below the baseline than the best line ends above it.
    """
    ends: dict[tuple[str, str], float] = {}
    for title, lines in known.items():
        for name, series in lines.items():
            if not series.runs.empty:
                last = series.runs.ffill().iloc[-1]
                ends[title, name] = float(last[series.finished or list(last.index)].mean())
    if baseline is None or not ends:
        return ""
    highest = max(ends.values())
    span = max(highest - baseline, LEAST_SPAN)
    lowest = min([end for end in ends.values() if end >= baseline - span], default=baseline)
    low = min(baseline, lowest) - MARGIN * span
    drawn = [series.runs.to_numpy() for lines in known.values() for series in lines.values() if series.runs.size]
    if min(float(np.nanmin(values)) for values in drawn) >= low:
        return ""
    axes.set_ylim(low, min(100.0, highest + MARGIN * span))
    hidden = [", ".join(filter(None, place)) for place, end in ends.items() if end < low]
    outliers = f"; lines that end below it: {'; '.join(hidden)}" if hidden else ""
    near = "just below" if lowest >= baseline else "below"
    where = f"at {low:.1f} %, {near} the supervised baseline"
    return f" The axis of accuracy begins {where}; lower values are clipped{outliers}."


def baseline_of(reported: ItemResults) -> float | None:
    """Return the final accuracy of the supervised baseline in percent, the lowest of several, or None without a run."""
    baselines = [result for result in reported.results.values() if is_bound(result.cell) and result.summary]
    return min((100 * result.summary.mean for result in baselines if result.summary), default=None)


def curves(
    ax: Axes,
    metric: str,
    lines: Mapping[str, Series],
    looks: Mapping[str, Look],
    *,
    y_title: str = "",
    title: str = "",
    joins: int | None = None,
    named: bool = True,
) -> None:
    """Draw lines by name: mean and 95 % band, or single runs. `joins`: the last round before clients join."""
    names = list(looks)
    for name, series in lines.items():
        _plot_curve(ax, series, name, looks[name], names.index(name), busy=len(lines) > BUSY)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    titled(ax, "Round", y_title or axis_title(metric), title, empty="not measured")
    if joins and ax.get_lines():
        ax.axvline(joins, color=MUTED, linewidth=0.8, linestyle=(0, (1.5, 2.0)))
        # Above the curves: accuracy is low at this round.
        place: Any = {"xycoords": ("data", "axes fraction"), "xytext": (3, -2), "textcoords": "offset points"}
        ax.annotate("clients join" if named else "", (joins, 1), **place, va="top", fontsize=7.5, color=MUTED)


def _plot_curve(ax: Axes, series: Series, name: str, look: Look, number: int, *, busy: bool) -> None:
    """Draw the mean with its band from five seeds on; with fewer, each run, which is thin beside a mean.

    A diverged run is dotted and ends in a cross.
    """
    band = series.band
    if not band.empty:
        style = {**look.line, "linewidth": 1.6, "markersize": 3.2, **_marked(look, len(band), number)}
        edges: Any = {"low": band["low"], "high": band["high"], "fill": 0.07 if busy else 0.16}
        plot(ax, band.index, band["mean"], name or "mean", **edges, **style)
    for seed in series.runs:
        run = series.runs[seed].dropna()
        x, y, label = run.index.to_numpy(), run.to_numpy(), f"{name}, seed {seed}".lstrip(", ")
        if seed in series.diverged:
            plot(ax, x, y, label, color=look.hex, linewidth=0.9, linestyle=":")
            plot(ax, x[-1:], y[-1:], color=look.hex, marker="x", markersize=5)
        elif seed not in series.finished or band.empty:
            style = {**look.line, "linewidth": 1.2, "markersize": 3.0, **_marked(look, len(x), number)}
            plot(ax, x, y, label, **style)
        elif not busy and len(series.finished) < INTERVAL_SEEDS:
            plot(ax, x, y, label, color=look.hex, linewidth=0.7, alpha=0.45)


def _marked(look: Look, points: int, number: int) -> dict[str, Any]:
    """Return the marker and its places: five points per line, shifted from line to line; all points of a short line."""
    step = max(1, points // 5) if points > 12 else 1
    return {"marker": look.points, "markevery": list(range((number * step) // 4 % step, points, step))}


def joins(cells: Iterable[Cell]) -> int | None:
    """Return the last round before clients join, if the server trains first. Return None if cells differ."""
    rounds = {getattr(cell.experiment.method, "warm_start_rounds", 0) for cell in cells if cell.role != "bound"}
    rounds.discard(0)
    return rounds.pop() if len(rounds) == 1 else None


def _against(reported: ItemResults, drawing: Drawing) -> Picture | None:
    """Draw a panel per metric and value of the drawing's keys for panels, and a line per value of its keys for lines.

    Means have intervals as bars, and every run is a dot. A bound is a level line. If several methods have the same
    place, each is a line of its own.
    """
    item, lines = reported.item, [key for key in drawing.lines if key != drawing.x]
    methods: dict[tuple[str, str, Any], set[str]] = {}
    for panel, name, cell, place in _places(item, drawing.panels, lines, [drawing.x]):
        methods.setdefault((panel, name, place.setting.get(drawing.x)), set()).add(method_of(cell))
    if "method" not in lines and max(map(len, methods.values()), default=0) > 1:
        lines.append("method")
    runs: dict[tuple[str, str], dict[str, dict[Any, pd.Series]]] = {}  # panel -> line -> value of x -> by seed
    for metric in drawn_metrics(reported):
        for panel, name, cell, place in _places(item, drawing.panels, lines, [drawing.x]):
            values = reported.of(metric)[cell.label].values
            if drawing.x in place.setting and (values or place is cell):
                title = ": ".join(filter(None, (panel, metric_name(metric))))
                line = runs.setdefault((title, metric), {}).setdefault(name, {})
                if values:
                    x = place.setting[drawing.x]
                    line[x] = pd.Series(values, name=x, dtype=float) * (100.0 if is_fraction(metric) else 1.0)
    if not runs:
        return None
    y_titles = {metric: axis_title(metric) for _, metric in runs}
    names = [name for lines in runs.values() for name in lines]
    looks = line_looks(names, map(method_of, item.cells))
    has_runs: set[str] = set()
    for by_name in runs.values():
        has_runs |= {name for name, by_x in by_name.items() if by_x}
    legend = {name: look for name, look in looks.items() if name in has_runs}
    figure, [axes] = canvas(1, len(runs), legend, width=3.2, height=2.4, gap=0.6, titles=any(t for t, _ in runs))
    for ax, ((title, metric), lines_of) in zip(axes, runs.items(), strict=True):
        _plot_against(ax, metric, lines_of, looks, drawing)
        titled(ax, drawing.x, y_titles[metric], title, empty="not run", margins=(0.08, 0.1))
    return Picture(figure=figure)


def _plot_against(
    ax: Axes, metric: str, lines: Mapping[str, Mapping[Any, pd.Series]], looks: Mapping[str, Look], drawing: Drawing
) -> None:
    """Draw points over x. Words on the x axis keep their order and are not joined by lines."""
    values = list(dict.fromkeys(x for line in lines.values() for x in line))
    words = [x for x in values if isinstance(x, str)]
    for number, (name, look) in enumerate(looks.items()):
        by_x = lines.get(name)
        if not by_x:
            continue
        runs = pd.DataFrame([by_x[x] for x in (by_x if words else sorted(by_x))])
        places = [words.index(x) + 0.09 * (number - (len(looks) - 1) / 2) for x in runs.index] if words else runs.index
        joined = {} if not words and not runs.isna().any(axis=None) else {"linestyle": "none"}
        style = {**look.line, **joined, "marker": look.points, "markersize": 4.5, "linewidth": 1.4}
        plot(ax, places, runs.mean(axis=1), **style)
        dots: Any = {"color": look.hex, "marker": ".", "markersize": 3, "alpha": 0.5, "linestyle": "none"}
        for x, (_, row) in zip(places, runs.iterrows(), strict=True):
            seen = summary(row.dropna())
            ends = [*np.clip(seen.interval or (), *((0, 100) if is_fraction(metric) else (-np.inf, np.inf)))]
            plot(ax, [x] * len(row), row, **dots)
            plot(ax, [x], [seen.mean], name, low=ends[:1], high=ends[1:], **dots)
    if words:
        turned: Any = {"rotation": 20, "ha": "right"} if words[3:] else {}
        ax.set_xticks(range(len(words)), words, **turned)
    elif drawing.log_x:
        ax.set_xscale("log")
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_xticks(sorted(values), [f"{x:g}".removeprefix("0") for x in sorted(values)])  # .05 .1


def _class_counts(reported: ItemResults, drawing: Drawing) -> Picture | None:
    """Draw the class counts of each cell's clients, and the class counts of its labelled images, in one panel each.

    They are from the first run with a record of them. Without such a run, the panel shows the partition that the cell's
    columns are computed from, and there is no panel if its images are in a folder that this machine does not have. No
    data set is read.
    """
    counts: dict[str, pd.DataFrame] = {}
    for cell in reported.item.cells:
        title = setting_text(cell.setting, drawing.panels) or cell.label
        runs = reported.records.get(cell.cell_key, {})
        recorded = [seed for seed in sorted(runs) if runs[seed].class_counts.get("clients")]
        if not recorded:
            with suppress(FsslError):
                counts[f"{title}, equal classes"] = pd.DataFrame(clients_of(cell.experiment))
            continue
        seed = recorded[0]
        held = runs[seed].class_counts
        if held.get("labelled"):
            counts[f"{title}, seed {seed}, labelled"] = pd.DataFrame(held["labelled"])
        counts[f"{title}, seed {seed}"] = pd.DataFrame(held["clients"])
    if not counts:
        return None
    return class_counts({name: frame.rename(columns=str) for name, frame in counts.items()})


@styled
def class_counts(counts: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw the images of each class, stacked: a panel per frame, a bar per row, a colour per column."""
    looks = line_looks(name for frame in counts.values() for name in frame.columns)
    columns = min(3, len(counts))
    size: Any = {"width": BAR_PANEL, "height": 2.0, "gap": 0.6}
    figure, axes = canvas(-(-len(counts) // columns), columns, looks, **size, titles=True)
    panels = [ax for row in axes for ax in row]
    for ax, (title, frame) in zip(panels, counts.items(), strict=False):
        tops = frame.cumsum(axis=1)
        for name in frame:
            bar: Any = {"color": looks[name].hex, "linewidth": 0.8 * BAR_PANEL * 72 / len(frame)}
            ax.vlines(frame.index, tops[name] - frame[name], tops[name], **bar)
        alone = len(frame) == 1  # the server
        titled(ax, "" if alone else "Client", "Images", title, margins=(0.05, 0.05))
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(NullLocator() if alone else MaxNLocator(6, integer=True))
        ax.grid(visible=False)
    for ax in panels[len(counts) :]:
        ax.set_visible(False)
    return Picture(figure=figure)
