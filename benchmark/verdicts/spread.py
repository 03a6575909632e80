"""Computes how often a verdict comes out again on another machine.

The same run ends elsewhere on another type of processor: the order of sums differs in the last bits, and training
multiplies that. results/benchmarks/spread.toml has the pairs that were measured. A pair's difference has the rounding
of two machines, so one machine has half of its variance.

A pair was measured at an accuracy p of .89 to .93. Near the ceiling runs differ less, so the spread is taken as
constant in log-odds, times p (1 - p) of the cell: at .97 that gives .16 points, and .17 were measured there on newer
code. At lower accuracies, where nothing was measured, it is that in points.

To judge again, the part of each seed's difference that is the machine's is drawn anew, and the other part stays. With
the machines' share s of the variance over seeds and the mean m, a difference d becomes m + (1 - s) (d - m) plus a
normal draw of variance s (2 - s) times that over seeds: what another machine would have measured, given d. Noise that
is only added would count the machine's part twice, and find every verdict shakier than it is. At s = 1 the seeds are
drawn anew as a whole. For another endpoint or metric (speed, rounds, diversity), whose spread was not measured, s is
that of the same runs' accuracy at the end.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import sqrt
from statistics import fmean, median, variance

import numpy as np

from benchmark.papers.item import ACCURACY
from benchmark.records.provenance import ROOT
from benchmark.verdicts.evidence import Evidence
from benchmark.verdicts.judge import Judged, Verdict, looked_at, without_room
from benchmark.verdicts.metrics import value_at
from benchmark.verdicts.statistics import contrast

PAIRS = ROOT / "results" / "benchmarks" / "spread.toml"
MACHINES = "Intel, AMD"
REPETITIONS = 500
CONTRASTS = 1000  # judged at most: a claim of several contrasts has fewer repetitions


@cache
def pairs(machines: str = MACHINES) -> tuple[tuple[float, float], ...]:
    """The measured pairs of two machines: accuracy at the end on the first, and difference; fractions."""
    entries = tomllib.loads(PAIRS.read_text())["pairs"]
    return tuple((entry["end"], entry["difference"] / 100) for entry in entries if entry["machines"] == machines)


def spread_per_run() -> float:
    """The root mean square of the pairs' differences, a fraction of accuracy: .0039."""
    return sqrt(fmean(difference**2 for _, difference in pairs()))


def spread_at(accuracy: float, per_run: float | None = None) -> float:
    """The same of runs that end at this accuracy. `per_run`: at the accuracy of the measured pairs."""
    measured = spread_per_run() if per_run is None else per_run
    there = fmean(end * (1 - end) for end, _ in pairs())
    return measured * min(1.0, accuracy * (1 - accuracy) / there)


def comes_out_again(judged: Judged, per_run: float | None = None, repetitions: int = REPETITIONS) -> float | None:
    """The share of repetitions in which a claim judged by runs has its verdict again, at the claim's error.

    `per_run`: the spread, a fraction of accuracy; the measured one by default. Collapsed runs stay collapsed. None for
    an open claim and for what is counted.
    """
    seen = judged.evidence
    if seen is None or not judged.looks or not (judged.is_decided or judged.verdict == "no room"):
        return None
    rng = np.random.default_rng(0)
    many = len(seen.differences)
    noise = [machine_share(seen, number, per_run) for number in range(many)]
    tries = max(50, min(repetitions, CONTRASTS // many))
    again = sum(_verdict(_elsewhere(seen, noise, rng), judged) == judged.verdict for _ in range(tries))
    return again / tries


def machine_share(seen: Evidence, number: int, per_run: float | None = None) -> float:
    """The share of the variance over seeds of a contrast's differences that is the machine's, 0 to 1."""
    cells = seen.claim.contrasts[number]
    by_cell = {label: _ends(seen, label) for label in cells}
    ends = list(contrast(cells, by_cell).values())
    if len(ends) < 3 or not variance(ends):
        return 0.0
    spreads = {label: weight * spread_at(median(by_cell[label].values()), per_run) for label, weight in cells.items()}
    machine = sum(spread**2 for spread in spreads.values()) / 2
    return min(1.0, machine / variance(ends))


def _ends(seen: Evidence, label: str) -> Mapping[int, float]:
    values = {run.seed: value_at(run, ACCURACY, "end") for run in seen.results[label].runs}
    return {seed: values[seed] or 0.0 for seed in seen.confirming}


def _elsewhere(seen: Evidence, shares: Sequence[float], rng: np.random.Generator) -> Evidence:
    """The evidence as another machine could have measured it; contrasts that share a cell share its draws."""
    seeds = seen.confirming
    draws = {label: dict(zip(seeds, rng.normal(size=len(seeds)), strict=True)) for label in seen.claim.labels}
    moved = []
    for cells, by_seed, share in zip(seen.claim.contrasts, seen.differences, shares, strict=True):
        differences = [by_seed[seed] for seed in seeds]
        middle, drawn = fmean(differences), contrast(cells, draws)
        scale = sqrt(share * (2 - share) * variance(differences) / sum(weight**2 for weight in cells.values()))
        moved.append({s: middle + (1 - share) * (by_seed[s] - middle) + scale * drawn[s] for s in seeds})
    return replace(seen, differences=tuple(moved))


def _verdict(seen: Evidence, judged: Judged) -> Verdict:
    verdict = looked_at(seen, judged.error).verdict
    return without_room(verdict, judged.claim) if judged.no_room else verdict
