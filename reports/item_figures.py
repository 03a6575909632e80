"""Draw the picture of a table or figure: its `Drawing` assigns curves or points to panels."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullLocator

from benchmark.errors import FsslError
from benchmark.fractions import is_fraction
from benchmark.papers.bounds import bound_of, is_bound
from benchmark.papers.computed import clients_of
from benchmark.papers.item import Cell, Drawing, Item
from benchmark.verdicts.cell_results import ACCURACY
from benchmark.verdicts.statistics import INTERVAL_SEEDS, summary
from reports.costs_and_curves import Series, series_of
from reports.entries import method_of, setting_text
from reports.figures import MUTED, Look, Picture, canvas, line_looks, plot, styled, titled
from reports.formatting import WORDS, axis_title, metric_name
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
PanelSeries: TypeAlias = dict[str, dict[str, Series]]  # curves by title of the panel and name of the line
RunsAgainst: TypeAlias = dict[str, dict[Any, pd.Series]]  # runs by name of the line and value of x; each by seed


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


class Place(NamedTuple):
    """A place of a cell in a figure."""

    panel: str  # its title
    line: str  # its name
    cell: Cell
    at: Cell  # the cell whose place it gets, which is the cell itself if it has a place of its own


def _places(item: Item, panels: Collection[str], lines: Collection[str], x: Collection[str] = ()) -> Iterator[Place]:
    """Yield the places of each cell. A cell without a place of its own gets those of other cells (`_beside`)."""
    cells = [cell for cell in item.cells if cell.role != "ladder"]
    for cell in cells:
        line = setting_text(cell.setting, lines) or cell.label
        for at in _beside(cell, cells, panels, x) or [cell]:
            yield Place(panel=setting_text(at.setting, panels), line=line, cell=cell, at=at)


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
    for place in _places(item, others, named):
        panel = panels.setdefault(place.panel, {})
        if place.cell not in panel.values():
            name = place.line if place.line not in panel else place.cell.label
            panel[name] = place.cell
    return panels


def _curves(reported: ItemResults, drawing: Drawing) -> Picture | None:
    """Draw a row of panels per metric, with one y scale."""
    item = reported.item
    panels = panels_of(item, drawing)
    if len(panels) > MOST_PANELS:  # one panel, all lines
        panels = {"": {cell.label: cell for lines in panels.values() for cell in lines.values()}}
    if not panels or max(map(len, panels.values())) > MOST_LINES:
        return None
    by_metric = _series_by_metric(reported, panels)
    names = [name for lines in panels.values() for name in lines]
    looks = line_looks(names, map(method_of, item.cells))
    with_runs = set[str]().union(*map(_lines_with_runs, by_metric.values()))
    legend = {name: look for name, look in looks.items() if name in with_runs}
    width, height = (5.6, 2.2) if len(panels) == 1 else (2.7, 1.8)
    rows, columns = len(by_metric), len(panels)
    figure, axes = canvas(
        rows, columns, legend, width=width, height=height, left=0.72, titles=any(panels), sharex="col", sharey="row"
    )
    clipped = ""
    for row, (metric, known) in zip(axes, by_metric.items(), strict=True):
        if _needs_log_scale(metric, known):
            row[0].set_yscale("log")
            row[0].yaxis.set_major_formatter("{x:g}")
        for ax, (title, cells) in zip(row, panels.items(), strict=True):
            if metric in drawing.truth:
                _plot_truth(ax, reported, drawing.truth[metric], cells, looks)
            shown_title = title if row is axes[0] else ""
            is_first = ax is axes[0][0]
            curves(ax, metric, known[title], looks, title=shown_title, joins=joins(cells.values()), named=is_first)
            ax.label_outer()  # titles of axes appear once per row and column
        if metric == ACCURACY:
            clipped = clip(row[0], known, baseline_of(reported))
    return Picture(figure=figure, caption=clipped)


def _series_by_metric(reported: ItemResults, panels: Mapping[str, Mapping[str, Cell]]) -> dict[str, PanelSeries]:
    """Return the curves of each drawn metric that a run measured, or of all drawn metrics if no run measured one."""
    results = reported.results
    by_metric: dict[str, PanelSeries] = {}
    for metric in drawn_metrics(reported):
        known: PanelSeries = {}
        for title, cells in panels.items():
            known[title] = {name: series_of(results[cell.label], metric, PANEL_POINTS) for name, cell in cells.items()}
        by_metric[metric] = known
    measured = {metric: known for metric, known in by_metric.items() if _lines_with_runs(known)}
    return measured or by_metric


def _lines_with_runs(known: PanelSeries) -> set[str]:
    """Return the names of the lines that have a run in any panel."""
    names: set[str] = set()
    for lines in known.values():
        names |= {name for name, series in lines.items() if series.runs.size}
    return names


def _needs_log_scale(metric: str, known: PanelSeries) -> bool:
    """Return whether a linear axis would hide most values of this gradient diversity."""
    if not metric.startswith("diversity/"):
        return False
    parts: list[np.ndarray] = []
    for lines in known.values():
        parts += [series.runs.to_numpy().ravel() for series in lines.values()]
    values = np.concatenate(parts)
    least, most = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=0.0)
    return bool(most > LOG_SPAN * least > 0)


def _plot_truth(
    ax: Axes, reported: ItemResults, metric: str, cells: Mapping[str, Cell], looks: Mapping[str, Look]
) -> None:
    """Draw the true value of each line, dotted."""
    for name, cell in cells.items():
        true = series_of(reported.results[cell.label], metric, PANEL_POINTS)
        mean = true.runs[true.finished].mean(axis=1) if true.band.empty else true.band["mean"]
        plot(ax, mean.index, mean, color=looks[name].hex, linestyle=":")


def clip(axes: Axes, known: Mapping[str, Mapping[str, Series]], baseline: float | None) -> str:
    """Set the start of the y axis just below the end of the supervised baseline, and return a remark on the hidden
    part.

    `known`: the curves of each panel, in percent; their axes share the scale of `axes`. `baseline`: the final accuracy
    of the supervised baseline, in percent; without one the axis stays as it is. Lines that end slightly lower are also
    shown. A line is clipped if it ends further below the baseline than the best line ends above it. If that would hide
    more than half of the lines, the axis stays as it is. The axis ends above the last value of every band, and of every
    single run if there is no band.
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
    number_hidden = sum(end < low for end in ends.values())
    if min(float(np.nanmin(values)) for values in drawn) >= low or 2 * number_hidden > len(ends):
        return ""
    tops = [highest]
    for lines in known.values():
        for series in lines.values():
            if not series.band.empty:
                tops.append(float(series.band["high"].iloc[-1]))
            elif not series.runs.empty:
                tops.append(float(series.runs.ffill().iloc[-1].max()))
    axes.set_ylim(low, min(100.0, np.nanmax(tops) + MARGIN * span))
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
        ax.annotate(
            "clients join" if named else "",
            (joins, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            va="top",
            fontsize=7.5,
            color=MUTED,
        )


def _plot_curve(ax: Axes, series: Series, name: str, look: Look, number: int, *, busy: bool) -> None:
    """Draw the mean with its band from five seeds on; with fewer, each run, which is thin beside a mean.

    A diverged run is dotted and ends in a cross.
    """
    band = series.band
    if not band.empty:
        plot(
            ax,
            band.index,
            band["mean"],
            name or "mean",
            low=band["low"],
            high=band["high"],
            fill=0.07 if busy else 0.16,
            **look.line,
            linewidth=1.6,
            markersize=3.2,
            **_marked(look, len(band), number),
        )
    for seed in series.runs:
        run = series.runs[seed].dropna()
        x, y = run.index.to_numpy(), run.to_numpy()
        label = f"{name}, seed {seed}".lstrip(", ")
        if seed in series.diverged:
            plot(ax, x, y, label, color=look.hex, linewidth=0.9, linestyle=":")
            plot(ax, x[-1:], y[-1:], color=look.hex, marker="x", markersize=5)
        elif seed not in series.finished or band.empty:
            plot(ax, x, y, label, **look.line, linewidth=1.2, markersize=3.0, **_marked(look, len(x), number))
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
    item, x = reported.item, drawing.x
    keys = [key for key in drawing.lines if key != x]
    places = list(_places(item, drawing.panels, keys, [x]))
    if "method" not in keys and _share_places(places, x):
        places = list(_places(item, drawing.panels, [*keys, "method"], [x]))
    runs = _runs_against(reported, places, x)
    if not runs:
        return None
    names = [name for lines in runs.values() for name in lines]
    looks = line_looks(names, map(method_of, item.cells))
    with_runs: set[str] = set()
    for lines in runs.values():
        with_runs |= {name for name, by_x in lines.items() if by_x}
    legend = {name: look for name, look in looks.items() if name in with_runs}
    has_titles = any(title for title, _ in runs)
    figure, [axes] = canvas(1, len(runs), legend, width=3.2, height=2.4, gap=0.6, titles=has_titles)
    for ax, ((title, metric), lines) in zip(axes, runs.items(), strict=True):
        _plot_against(ax, metric, lines, looks, drawing)
        titled(ax, x, axis_title(metric), title, empty="not run", margins=(0.08, 0.1))
    return Picture(figure=figure)


def _share_places(places: Iterable[Place], x: str) -> bool:
    """Return whether several methods have the same place."""
    methods: dict[tuple[str, str, Any], set[str]] = {}
    for place in places:
        at = (place.panel, place.line, place.at.setting.get(x))
        methods.setdefault(at, set()).add(method_of(place.cell))
    return any(len(names) > 1 for names in methods.values())


def _runs_against(reported: ItemResults, places: Sequence[Place], x: str) -> dict[tuple[str, str], RunsAgainst]:
    """Return the runs of each panel by its title and metric. A cell without runs is a line without points."""
    panels: dict[tuple[str, str], RunsAgainst] = {}
    for metric in drawn_metrics(reported):
        scale = 100.0 if is_fraction(metric) else 1.0
        for place in places:
            by_seed = reported.of(metric)[place.cell.label].values
            has_own_place = place.at is place.cell
            if x not in place.at.setting or not (by_seed or has_own_place):
                continue
            title = ": ".join(filter(None, (place.panel, metric_name(metric))))
            line = panels.setdefault((title, metric), {}).setdefault(place.line, {})
            if by_seed:
                value = place.at.setting[x]
                line[value] = pd.Series(by_seed, name=value, dtype=float) * scale
    return panels


def _plot_against(ax: Axes, metric: str, lines: RunsAgainst, looks: Mapping[str, Look], drawing: Drawing) -> None:
    """Draw points over x. Words on the x axis keep their order and are not joined by lines."""
    values = list(dict.fromkeys(x for line in lines.values() for x in line))
    words = [x for x in values if isinstance(x, str)]
    limits = (0, 100) if is_fraction(metric) else (-np.inf, np.inf)
    for number, (name, look) in enumerate(looks.items()):
        by_x = lines.get(name)
        if not by_x:
            continue
        runs = pd.DataFrame([by_x[x] for x in (by_x if words else sorted(by_x))])
        shift = 0.09 * (number - (len(looks) - 1) / 2)  # lines at one word are side by side
        places = [words.index(x) + shift for x in runs.index] if words else runs.index
        is_joined = not words and not runs.isna().any(axis=None)
        style = look.line if is_joined else {**look.line, "linestyle": "none"}
        plot(ax, places, runs.mean(axis=1), **style, marker=look.points, markersize=4.5, linewidth=1.4)
        plot_dots = partial(plot, ax, color=look.hex, marker=".", markersize=3, alpha=0.5, linestyle="none")
        for x, (_, row) in zip(places, runs.iterrows(), strict=True):
            seen = summary(row.dropna())
            ends = list(np.clip(seen.interval or (), *limits))
            plot_dots([x] * len(row), row)
            plot_dots([x], [seen.mean], name, low=ends[:1], high=ends[1:])
    if len(words) > 3:
        ax.set_xticks(range(len(words)), words, rotation=20, ha="right")
    elif words:
        ax.set_xticks(range(len(words)), words)
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
    rows = -(-len(counts) // columns)
    figure, axes = canvas(rows, columns, looks, width=BAR_PANEL, height=2.0, gap=0.6, titles=True)
    panels = [ax for row in axes for ax in row]
    for ax, (title, frame) in zip(panels, counts.items(), strict=False):
        tops = frame.cumsum(axis=1)
        width = 0.8 * BAR_PANEL * 72 / len(frame)  # points
        for name in frame:
            ax.vlines(frame.index, tops[name] - frame[name], tops[name], color=looks[name].hex, linewidth=width)
        alone = len(frame) == 1  # the server
        titled(ax, "" if alone else "Client", "Images", title, margins=(0.05, 0.05))
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(NullLocator() if alone else MaxNLocator(6, integer=True))
        ax.grid(visible=False)
    for ax in panels[len(counts) :]:
        ax.set_visible(False)
    return Picture(figure=figure)
