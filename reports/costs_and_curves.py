"""Compute the costs of runs and their curves: each run, mean and band."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from benchmark.fractions import is_fraction
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.metrics import is_derived, value_of
from benchmark.verdicts.statistics import INTERVAL_SEEDS, t_factor

CURVE_COLUMNS = ("label", "cell_key", "seed", "status", "round")  # followed by one column per metric
COSTS = ("local_steps", "bytes_up", "bytes_down", "wall_seconds", "server_seconds")
MEAN_SEEDS = 3  # finished runs that a mean line needs


def costs_of(runs: Iterable[RunRecord]) -> dict[str, float]:
    """Return the costs of a finished run, each as a mean over the runs that recorded it."""
    ended = [{**run.result, **run.result.get("cost", {})} for run in runs if run.status == "done"]
    means = {}
    for name in COSTS:
        values = [float(costs[name]) for costs in ended if name in costs]
        if values:
            means[name] = fmean(values)
    return means


def curve_rows(result: CellResult, metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a row for each round of each run that measured one of these metrics, with a column per metric.

    A metric of a whole run is in its last round.
    """
    for run in result.runs:
        derived = {name: value_of(run, name) for name in metrics if is_derived(name)}
        start = (result.cell.label, run.cell_key, run.seed, run.status)
        for line in run.rounds:
            measures = {**line, **(derived if line["round"] == len(run.rounds) else {})}
            values = {name: measures[name] for name in metrics if measures.get(name) is not None}
            if values:
                yield {**dict(zip(CURVE_COLUMNS, (*start, line["round"]), strict=True)), **values}


@dataclass(frozen=True, kw_only=True)
class Series:
    """The curves of one cell and metric, with fractions in percent. The rows of both frames are rounds.

    An unfinished run is drawn up to its last round and is part of no mean. The curve of a diverged run ends with its
    last finite value.
    """

    runs: pd.DataFrame  # one column per seed
    finished: list[int]  # seeds of finished runs that did not diverge
    diverged: Sequence[int]  # seeds
    band: pd.DataFrame  # over the finished runs, with the columns mean, low, high and n (`band_of`)


def series_of(result: CellResult, metric: str, most: int) -> Series:
    """Return the curves of a cell with at most `most` points each: means of consecutive rounds, at the last of them."""
    scale = 100.0 if is_fraction(metric) else 1.0
    lines = {}
    for run in result.runs:
        values = {line["round"]: scale * line[metric] for line in run.rounds if line.get(metric) is not None}
        lines[run.seed] = {x: y for x, y in values.items() if math.isfinite(y)}
    runs = pd.DataFrame({seed: line for seed, line in lines.items() if line}, dtype=float).sort_index()
    size = math.ceil(max(map(len, lines.values()), default=0) / most)
    if size > 1:
        groups = np.arange(len(runs)) // size
        last = pd.Series(runs.index).groupby(groups).last()
        runs = runs.groupby(groups).mean().set_axis(last.to_numpy())
    ended = [run.seed for run in result.runs if run.status == "done" and run.seed not in result.diverged]
    finished = [seed for seed in ended if seed in runs]
    band = band_of(runs[finished])
    if is_fraction(metric):
        band[["low", "high"]] = band[["low", "high"]].clip(0, 100)
    return Series(runs=runs, finished=finished, diverged=result.diverged, band=band)


def band_of(finished: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over the columns with its 95 % t interval.

    Rows with fewer than MEAN_SEEDS values are left out; with fewer than INTERVAL_SEEDS the interval has no width.
    """
    rows = finished[finished.count(axis=1) >= MEAN_SEEDS]
    n = rows.count(axis=1)
    mean = rows.mean(axis=1)
    half = rows.std(axis=1, ddof=1) * n.map(lambda number: t_factor(int(number)) if number >= INTERVAL_SEEDS else 0.0)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half, "n": n})
