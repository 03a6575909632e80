"""Analyse SSFL: does the server's weight explain grouping's gain, and does gradient diversity predict accuracy?

According to the paper, grouping helps because it lowers gradient diversity. Inside a group, the server also has a
larger weight. The control is FedAvg with that weight of the server and without groups. Cells that differ only in how
the server averages share data, partition and seeds. This analysis is descriptive; claims are judged elsewhere.
"""

import math
import statistics
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.ssfl import FedAvg
from reports.figures import GRID, Picture, canvas, looks, plot, styled, titled
from reports.formatting import NONE, count, data_name, percent, points
from reports.item_results import ItemResults
from reports.tables import TableEntry, table_of

AVERAGING = ("FedAvg", "Control", "Grouping")  # how the server averages
UPDATES = "diversity/delta/l2/squared/clients"
CELL_HEADS = ("Cell", "Averaging", "Server's weight", "Accuracy (%)", "Diversity of updates", "Runs", "")
OF_CELL = ["cell", "averaging", "setting", "data", "labelled", "collapsed", "server_weight"]
TEXTS = tomllib.loads((Path(__file__).parent / "ssfl" / "analysis.toml").read_text())
MEASURES, GAINS, WAYS, SENTENCES = (TEXTS[name] for name in ("measures", "parts", "ways", "sentences"))


def server_weight(experiment: Experiment) -> float | None:
    """Return the server's share of the averaged model, or None without training at the server and for other methods."""
    averaging = getattr(experiment.method, "averaging", None)
    if averaging is None or experiment.data.label_setting not in ("server", "everywhere"):
        return None
    if averaging.server_weight is not None:
        return float(averaging.server_weight)
    return statistics.fmean(1 / (size + 1) for size in averaging.group_sizes(experiment.federation.C))


def runs_of(items: Iterable[ItemResults]) -> pd.DataFrame:
    """Return one row per finished run of a cell with a weight of the server.

    The columns are OF_CELL, seed, accuracy as a fraction after the last round, and the median over the rounds of each
    of MEASURES, or NaN if it was not measured, so that early rounds with small updates do not dominate. `setting`: the
    key of everything but the averaging, which a cell shares with its counterparts. `labelled`: clients also train on
    labels. `collapsed`: the cell's median run ends below the supervised baseline. A cell of several items has the name
    of the first.
    """
    rows = []
    for reported in items:
        for result in reported.results.values():
            experiment = result.cell.experiment
            weight = server_weight(experiment)
            if weight is None:
                continue
            averaging = experiment.method.averaging
            method = replace(experiment.method, averaging=FedAvg())
            control = isinstance(averaging, FedAvg) and averaging.server_weight is not None
            cell = {
                "cell_key": result.cell.cell_key,
                "cell": f"{reported.item.name}: {result.cell.label}",
                "averaging": "Control" if control else type(averaging).__name__,
                "setting": replace(experiment, method=method, evaluation=Evaluation()).cell_key,
                "data": experiment.data.name,
                "labelled": experiment.data.label_setting == "everywhere",
                "collapsed": result.is_below_baseline,
                "server_weight": weight,
            }
            for run in result.runs:
                if run.seed in result.values:
                    medians = {measure: run.summary(measure).get("median") for measure in MEASURES}
                    rows.append({**cell, "seed": run.seed, "accuracy": result.values[run.seed], **medians})
    frame = pd.DataFrame(rows, columns=["cell_key", *OF_CELL, "seed", "accuracy", *MEASURES])
    frame["cell"] = frame.groupby("cell_key")["cell"].transform("first")
    frame["collapsed"] = frame.groupby("cell_key")["collapsed"].transform("any").astype(bool)
    return frame.drop_duplicates(["cell_key", "seed"]).astype(dict.fromkeys(MEASURES, float))


def cells_of(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per cell: means over its seeds, and their number `n`."""
    grouped = runs.groupby(OF_CELL, sort=False)
    return grouped[["accuracy", *MEASURES]].mean().assign(n=grouped.size()).reset_index()


def correlations(cells: pd.DataFrame, measure: str) -> dict[str, float]:
    """Compute Spearman's rank correlations over the cells that measured it; NaN if a quantity does not vary.

    "plain" is the correlation of the measure with accuracy, and "held" the same controlling for the server's weight.
    "weight" is the correlation of the server's weight with accuracy, controlling for the measure. "cells" and
    "settings" are their numbers. Ranks are within each data set: the share of its cells with a smaller value, with
    ties counted half.
    """
    measured = cells.dropna(subset=measure)
    by_data = measured.groupby("data")[[measure, "accuracy", "server_weight"]]
    shares = (by_data.rank() - 0.5) / by_data.transform("count")
    rho = shares.corr(method="spearman")
    of_measure, of_weight = rho.loc[measure, "accuracy"], rho.loc["server_weight", "accuracy"]
    between = rho.loc[measure, "server_weight"]
    return {
        "plain": of_measure,
        "held": partial_correlation(of_measure, between, of_weight),
        "weight": partial_correlation(of_weight, between, of_measure),
        "cells": len(measured),
        "settings": measured["setting"].nunique(),
    }


def partial_correlation(xy: float, xz: float, yz: float) -> float:
    """Compute the correlation of x and y, controlling for z, from the three correlations.

    Source: Kendall and Stuart, chapter 27. Return `xy` if z does not vary, and NaN if x or y has the ranks of z.
    """
    if math.isnan(xz) or math.isnan(yz):
        return xy
    left = (1 - xz**2) * (1 - yz**2)
    return (xy - xz * yz) / math.sqrt(left) if left > 1e-9 else math.nan


def gains_over(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per grouping cell if its setting also has FedAvg and the control with the same server weight.

    The columns cell, control and data are names. whole (grouping - FedAvg), by_weight (control - FedAvg) and rest
    (grouping - control) are mean differences of accuracy over the n common seeds, as fractions. diversity is the
    difference in the diversity of the local updates (grouping - control), NaN if it was not measured.
    """
    runs = runs.assign(weight=runs["server_weight"].round(9))
    grouping, control, fedavg = (runs[runs["averaging"] == way] for way in ("Grouping", "Control", "FedAvg"))
    common = ["setting", "weight", "seed"]  # the first of cells that differ only in their measurements
    paired = grouping.merge(control.drop_duplicates(common), on=common, suffixes=("", "_control"))
    paired = paired.merge(fedavg.drop_duplicates(["setting", "seed"]), on=["setting", "seed"], suffixes=("", "_fedavg"))
    paired["whole"] = paired["accuracy"] - paired["accuracy_fedavg"]
    paired["by_weight"] = paired["accuracy_control"] - paired["accuracy_fedavg"]
    paired["rest"] = paired["accuracy"] - paired["accuracy_control"]
    paired["diversity"] = paired[UPDATES] - paired[f"{UPDATES}_control"]
    grouped = paired.groupby("cell", sort=False)
    names = grouped[["cell_control", "data"]].first().rename(columns={"cell_control": "control"})
    return grouped[[*GAINS, "diversity"]].mean().join(names).assign(n=grouped.size()).reset_index()


def _signed(correlation: float) -> str:
    return "not defined" if math.isnan(correlation) else f"{correlation:+.2f}"


def gains_text(gains: pd.DataFrame) -> str:
    """Say how much of grouping's gain the control has on each data set, and how often grouping is less diverse."""
    if gains.empty:
        return SENTENCES["no_gains"]
    texts = []
    for data, of_data in gains.groupby("data", sort=False):
        means = {name: points(of_data[name].mean()) for name in GAINS}
        settings = count(len(of_data), "setting")
        texts.append(SENTENCES["gains"].format(data=data_name(data), settings=settings, **means))
    text = " ".join(texts)
    measured = gains.dropna(subset="diversity")
    if measured.empty:
        return text
    less, better = measured["diversity"] < 0, measured["rest"] > 0
    numbers = {"less_diverse": less.sum(), "better": better.sum(), "both": (less & better).sum()}
    return f"{text} {SENTENCES['pairs'].format(pairs=count(len(measured), 'such pair'), **numbers)}"


def page(items: Sequence[ItemResults]) -> dict[str, Any] | None:
    """Return the analysis of all items of the paper, one section per profile, or None without a record."""
    # The cells of implementation choices differ in more than the averaging, and have a separate page.
    own = [one for one in items if "method" not in one.item.rows and not one.item.name.endswith("/departures")]
    profiles = dict.fromkeys(reported.item.profile for reported in own)
    runs = {}
    for profile in profiles:
        runs[profile] = runs_of(one for one in own if one.item.profile == profile)
    sections = [_section(profile, frame) for profile, frame in runs.items() if not frame.empty]
    return {"title": TEXTS["title"], "lead": TEXTS["lead"], "sections": sections} if sections else None


def _section(profile: str, runs: pd.DataFrame) -> dict[str, Any]:
    learned = runs[~runs["collapsed"]]
    cells = cells_of(learned)
    measures = {measure: correlations(cells, measure) for measure in MEASURES}
    gains = gains_over(learned[~learned["labelled"]])
    sentences = [gains_text(gains)]
    if (known := measures[UPDATES])["cells"]:
        counts = {f"{what}s": count(int(known[f"{what}s"]), what) for what in ("cell", "setting")}
        named = {"measure": MEASURES[UPDATES], "correlation": _signed(known["held"])}
        sentences.append(SENTENCES["correlation"].format(**named, **counts))
    if left_out := runs[runs["collapsed"]]["cell"].nunique():  # these cells learned nothing
        sentences.append(SENTENCES["collapsed"].format(cells=count(left_out, "cell")))
    correlated = []
    for name, seen in measures.items():
        signed = [_signed(seen[way]) for way in WAYS]
        correlated.append((MEASURES[name], seen["cells"], seen["settings"], *signed))
    gained = []
    for gain in gains.to_dict("records"):
        below = (f"n={gain['n']}",)
        entries = [TableEntry(text=points(gain[name]), below=below, sort=gain[name]) for name in GAINS]
        gained.append((gain["cell"], *entries))
    data = cells_of(runs).drop(columns="labelled").to_dict("records")
    listed = []
    for cell in data:
        diversity = NONE if math.isnan(cell[UPDATES]) else f"{cell[UPDATES]:.3f}"
        numbers = (f"{cell['server_weight']:.3f}", percent(cell["accuracy"]), diversity, cell["n"])
        listed.append((cell["cell"], cell["averaging"], *numbers, "collapsed" if cell["collapsed"] else ""))
    tables = [
        table_of("correlations", TEXTS["correlations"], ("Measure", "Cells", "Settings", *WAYS.values()), correlated),
        table_of("gains", TEXTS["gains"], ("Setting", *GAINS.values()), gained),
        table_of("cells", TEXTS["cells"], CELL_HEADS, listed, words=2, data=data),
    ]
    picture = _scatter(cells.dropna(subset=UPDATES), known["plain"], gains)
    return {
        "profile": profile,
        "sentences": sentences,
        "pictures": [(picture, TEXTS["scatter"])] if picture else [],
        "tables": [table for table in tables if table.rows],
    }


@styled
def _scatter(cells: pd.DataFrame, correlation: float, gains: pd.DataFrame) -> Picture | None:
    """Draw accuracy over diversity, one point per cell; return None with fewer than three cells."""
    if len(cells) < 3:
        return None
    styles = looks(AVERAGING)
    figure, [[ax]] = canvas(1, 1, styles, width=5.0, height=2.6, titles=True)
    for pair in zip(gains["cell"], gains["control"], strict=True):
        both = cells[cells["cell"].isin(pair)]
        plot(ax, both[UPDATES], 100 * both["accuracy"], color=GRID, linewidth=1.0, zorder=1)
    for kind, name, x, y in cells[["averaging", "cell", UPDATES, "accuracy"]].itertuples(index=False):
        plot(
            ax,
            [x],
            [100 * y],
            name,
            color=styles[kind].hex,
            marker=styles[kind].points,
            alpha=0.8,
            markeredgewidth=0,
            markersize=5.5,
        )
    titled(ax, MEASURES[UPDATES].capitalize(), "Accuracy, %", f"Rank correlation: {_signed(correlation)}")
    return Picture(figure=figure)
