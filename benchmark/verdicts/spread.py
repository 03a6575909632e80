"""Estimate how often a verdict would be the same on a different machine.

The same run ends differently on a different type of processor: the order of sums changes the last
bits, and training amplifies the change. results/benchmarks/spread.toml has pairs of runs that were
measured on two machines. The difference of a pair contains the rounding of two machines, so that
one machine has half of its variance.

The pairs were measured at accuracies p of .89 to .93. Near the ceiling, runs differ less, and so
the spread is assumed to be constant in log-odds and multiplied by p (1 - p) of the cell: at .97
this gives .16 points, and .17 points were measured there on newer code. At lower accuracies nothing
was measured, and the spread in points is the spread of the pairs.

To repeat a judgement, the machine's part of each seed's difference is drawn again, and the rest is
kept. Let s be the machine's share of the variance over seeds, and m the mean. A difference d
becomes m + (1 - s) (d - m) plus a normal draw with variance s (2 - s) times the variance over
seeds: this is the distribution on a different machine, given d. If noise were only added, the
machine's part would count twice, and every verdict would look less reliable than it is. At s = 1,
all differences are drawn anew. For a different endpoint or metric without a measured spread, such
as speed, rounds or diversity, s is computed from the accuracy at the end of the same runs.

Example: the differences of a contrast vary with a standard deviation of 0.6 points over seeds, and
each of its two cells has a machine spread of 0.39 points per pair. The machine's variance is
(0.39^2 + 0.39^2) / 2 = 0.15, and its share is s = 0.15 / 0.36 = 0.42. A difference 1.0 point above
the mean keeps 0.58 points of that, and the draw has a standard deviation of sqrt(0.42 x 1.58) x 0.6
= 0.49 points.
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
CONTRASTS = 1000  # maximum number of judged contrasts: a claim of several contrasts has fewer repetitions


@cache
def pairs(machines: str = MACHINES) -> tuple[tuple[float, float], ...]:
    """Return the measured pairs of two machines: accuracy at the end on the first, and the
    difference, as fractions.
    """
    entries = tomllib.loads(PAIRS.read_text())["pairs"]
    return tuple((entry["end"], entry["difference"] / 100) for entry in entries if entry["machines"] == machines)


def spread_per_run() -> float:
    """Return the root mean square of the pairs' differences, as a fraction of accuracy: .0039."""
    return sqrt(fmean(difference**2 for _, difference in pairs()))


def spread_at(accuracy: float, per_run: float | None = None) -> float:
    """Return the root mean square difference of runs that end at this accuracy.

    `per_run` is the value at the accuracy of the measured pairs; by default, the measured one.
    """
    measured = spread_per_run() if per_run is None else per_run
    there = fmean(end * (1 - end) for end, _ in pairs())
    return measured * min(1.0, accuracy * (1 - accuracy) / there)


def comes_out_again(judged: Judged, per_run: float | None = None, repetitions: int = REPETITIONS) -> float | None:
    """Return the share of repetitions with the same verdict, at the claim's error.

    `per_run` is the spread as a fraction of accuracy; by default, the measured one. Collapsed runs
    stay collapsed. Return None for an open claim and for a claim that is not judged by runs.
    """
    evidence = judged.evidence
    if evidence is None or not judged.looks or not (judged.is_decided or judged.verdict == "no room"):
        return None
    rng = np.random.default_rng(0)
    many = len(evidence.differences)
    noise = [machine_share(evidence, number, per_run) for number in range(many)]
    tries = max(50, min(repetitions, CONTRASTS // many))
    again = sum(_verdict(_elsewhere(evidence, noise, rng), judged) == judged.verdict for _ in range(tries))
    return again / tries


def machine_share(evidence: Evidence, number: int, per_run: float | None = None) -> float:
    """Return the machine's share (0 to 1) of the variance over seeds of a contrast's differences."""
    cells = evidence.claim.contrasts[number]
    by_cell = {label: _ends(evidence, label) for label in cells}
    ends = list(contrast(cells, by_cell).values())
    if len(ends) < 3 or not variance(ends):
        return 0.0
    spreads = {label: weight * spread_at(median(by_cell[label].values()), per_run) for label, weight in cells.items()}
    machine = sum(spread**2 for spread in spreads.values()) / 2
    return min(1.0, machine / variance(ends))


def _ends(evidence: Evidence, label: str) -> Mapping[int, float]:
    values = {run.seed: value_at(run, ACCURACY, "end") for run in evidence.results[label].runs}
    return {seed: values[seed] or 0.0 for seed in evidence.confirming}


def _elsewhere(evidence: Evidence, shares: Sequence[float], rng: np.random.Generator) -> Evidence:
    """Return the evidence as a different machine could have measured it; contrasts that share a
    cell share its draws.
    """
    seeds = evidence.confirming
    draws = {label: dict(zip(seeds, rng.normal(size=len(seeds)), strict=True)) for label in evidence.claim.labels}
    moved = []
    for cells, by_seed, share in zip(evidence.claim.contrasts, evidence.differences, shares, strict=True):
        differences = [by_seed[seed] for seed in seeds]
        middle = fmean(differences)
        drawn = contrast(cells, draws)
        scale = sqrt(share * (2 - share) * variance(differences) / sum(weight**2 for weight in cells.values()))
        moved.append({s: middle + (1 - share) * (by_seed[s] - middle) + scale * drawn[s] for s in seeds})
    return replace(evidence, differences=tuple(moved))


def _verdict(evidence: Evidence, judged: Judged) -> Verdict:
    verdict = looked_at(evidence, judged.error).verdict
    return without_room(verdict, judged.claim) if judged.no_room else verdict
