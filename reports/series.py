"""The runs of a cell as lines over rounds: a mean with its band, or the runs one by one."""

# S seeds, R rounds

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from benchmark.records.record import RunRecord
from benchmark.verdicts.results import CellResult, Records, seeds_of
from benchmark.verdicts.statistics import summary, t_factor

Line: TypeAlias = list[tuple[int, float]]  # (round, value)
MOST_POINTS = 300  # a line of more points is drawn as means of consecutive rounds; a printed panel shows no more
BAND_SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Series:
    """What to draw for one cell and metric, in the metric's unit."""

    mean: Line  # over seeds, where at least BAND_SEEDS of them measured the round; else empty
    band: tuple[list[int], list[float], list[float]]  # rounds, low, high of the 95 % t interval
    single: list[Line]  # the finished and unfinished runs that no mean stands for
    diverged: list[Line]
    bin_size: int  # rounds a point stands for
    runs: dict[int, Line] = field(default_factory=dict)  # every run by its seed, whatever became of it


def seeds_series(result: CellResult, records: Records, metric: str, most: int = MOST_POINTS) -> Series:
    """The lines of a cell, of at most `most` points each. Unfinished runs show beside finished ones as far as they
    got, but join no mean."""
    runs = seeds_of(records, result.cell)
    points = {record.seed: _points(record.rounds, metric) for record in runs}
    size = max(1, math.ceil(max(map(len, points.values()), default=0) / most))
    lines = {seed: _binned(line, size) for seed, line in points.items()}
    finished = [lines[r.seed] for r in runs if r.seed not in result.diverged and r.status == "done"]
    others = [lines[r.seed] for r in runs if r.seed not in result.diverged and r.status != "done"]
    finished = [line for line in finished if line]
    mean, low, high = _mean(finished) if len(finished) >= BAND_SEEDS else ([], [], [])
    return Series(
        mean=mean,
        band=([x for x, _ in mean], low, high),
        single=[line for line in ([] if mean else finished) + others if line],
        diverged=[lines[r.seed] for r in runs if r.seed in result.diverged and lines[r.seed]],
        bin_size=size,
        runs={seed: line for seed, line in lines.items() if line},
    )


def _points(rounds: Sequence[Mapping[str, Any]], metric: str) -> Line:
    """The rounds that measured the metric with a finite value; a diverged run ends where its numbers do."""
    return [
        (line["round"], float(value))
        for line in rounds
        if isinstance(value := line.get(metric), (int, float)) and math.isfinite(value)
    ]


def _binned(points: Line, size: int) -> Line:
    """Means of `size` consecutive points, each at its last round."""
    if size == 1:
        return points
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], math.fsum(y for _, y in group) / len(group)) for group in groups]


def _mean(lines: list[Line]) -> tuple[Line, list[float], list[float]]:
    if len({tuple(x for x, _ in line) for line in lines}) == 1:
        return _mean_of_equal_rounds(lines)
    at_round: dict[int, list[float]] = {}
    for line in lines:
        for x, y in line:
            at_round.setdefault(x, []).append(y)
    seen = {x: summary(ys) for x, ys in sorted(at_round.items()) if len(ys) >= BAND_SEEDS}
    mean = [(x, s.mean) for x, s in seen.items()]
    intervals = [s.interval for s in seen.values() if s.interval is not None]
    return mean, [low for low, _ in intervals], [high for _, high in intervals]


def _mean_of_equal_rounds(lines: list[Line]) -> tuple[Line, list[float], list[float]]:
    """As `_mean`, all rounds at once, where every line has the same ones: the rule, and much faster."""
    values_SR = np.asarray([[y for _, y in line] for line in lines])
    mean_R = values_SR.mean(axis=0)
    half_R = t_factor(len(lines)) * values_SR.std(axis=0, ddof=1)
    mean = [(x, float(m)) for (x, _), m in zip(lines[0], mean_R, strict=True)]
    return mean, (mean_R - half_R).tolist(), (mean_R + half_R).tolist()


def finished_runs(records: Records, result: CellResult) -> list[RunRecord]:
    """The runs whose values are in `result`."""
    return [record for record in seeds_of(records, result.cell) if record.seed in result.values]
