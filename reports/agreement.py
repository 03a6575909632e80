"""Whether a reproduced number agrees with a published one: `matches`, `differs` or `undecided`, and by how much.

A paper mostly prints one number of one run. What another run of ours would give lies, with our n values of mean m and
standard deviation s, in the prediction interval m +- t_{n-1} s sqrt(1 + 1/n) (Student); so d = m - published has the
standard error s sqrt(1/n + 1/k) for a published mean of k runs. Where the paper prints a spread s' over k >= 2 runs,
the error is Welch's, sqrt(s^2/n + s'^2/k), with his degrees of freedom.

`matches` is an equivalence test (Schuirmann, 1987: two one-sided t tests at alpha, which is the interval at 1 - 2 alpha
inside +-margin); `differs` needs zero outside the interval at 1 - alpha. The margin stands in the published file,
written down before any run; alpha is 0.05 over the number of compared cells (Bonferroni). All values are fractions.

Where the runs saw other images than the paper's (a lossy copy, another split), the difference is shown with what the
data's files say of it, and no verdict.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from scipy.special import stdtrit

from benchmark.papers.item import Item
from benchmark.verdicts.results import CellResult
from benchmark.verdicts.statistics import Summary

Agrees: TypeAlias = Literal["matches", "differs", "undecided"]
ERROR = 0.05
OTHER_DATA = "not comparable with published accuracy"  # in the note of a data set's files (datasets.toml)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Ours against the paper's number of one cell."""

    verdict: Agrees | None  # None: of other data than the paper's, as `reason` says
    difference: float  # ours - published
    interval: tuple[float, float] | None  # of the difference, at `level`; None: one run, or no spread
    level: float
    reason: str


def agreement(item: Item, result: CellResult) -> Agreement | None:
    """None where nothing is to be compared: another profile than `paper`, no margin, no published or no own value.
    The level allows for all cells of the item that have a published number, run or not."""
    seen, published = result.summary, result.cell.printed()
    if item.profile != "paper" or item.margin is None or seen is None or published is None:
        return None
    if other := of_other_data(result):
        return Agreement(verdict=None, difference=seen.mean - published / 100, interval=None, level=1.0, reason=other)
    compared = sum(cell.printed() is not None for cell in item.cells)
    spread = result.cell.published["test/accuracy"].spread
    return agree(
        seen,
        published / 100,
        item.margin,
        runs=result.cell.published["test/accuracy"].runs,
        spread=None if spread is None else spread / 100,
        alpha=ERROR / max(1, compared),
    )


def of_other_data(result: CellResult) -> str:
    """What the files say that hold other images than the paper's; empty where they hold the paper's."""
    return ", ".join(note for note in result.data_notes if OTHER_DATA in note)


def agree(
    seen: Summary, published: float, margin: float, *, runs: int = 1, spread: float | None = None, alpha: float = ERROR
) -> Agreement:
    """`published` is the mean of `runs` runs, of standard deviation `spread` where the paper prints one."""
    difference, interval = seen.mean - published, None
    verdict: Agrees = "undecided"
    if seen.std is None or not seen.has_spread:
        reason = "one run: its spread is unknown" if seen.n == 1 else "our runs agree to the last digit"
    else:
        error, freedom = standard_error(seen.std, seen.n, spread, runs)
        wide, narrow = (error * float(stdtrit(freedom, q)) for q in (1 - alpha / 2, 1 - alpha))
        interval = (difference - wide, difference + wide)
        if -margin < difference - narrow and difference + narrow < margin:
            verdict, reason = "matches", "the difference lies within the margin"
        elif interval[0] > 0 or interval[1] < 0:
            verdict, reason = "differs", "zero lies outside the interval"
        else:
            reason = "the interval includes zero and reaches beyond the margin"
    return Agreement(verdict=verdict, difference=difference, interval=interval, level=1 - alpha, reason=reason)


def standard_error(std: float, n: int, spread: float | None, runs: int) -> tuple[float, float]:
    """Of a difference of means, with its degrees of freedom: Welch's where the other side has a spread of its own,
    else ours for both."""
    if spread is None or runs < 2:
        return std * math.sqrt(1 / n + 1 / runs), float(n - 1)
    ours, theirs = std**2 / n, spread**2 / runs
    freedom = (ours + theirs) ** 2 / (ours**2 / (n - 1) + theirs**2 / (runs - 1))
    return math.sqrt(ours + theirs), freedom


def largest_gap(agreements: Mapping[str, Agreement]) -> tuple[str, Agreement] | None:
    """The cell that lies farthest from its published number; None where none is compared on the paper's own data."""
    compared = [pair for pair in agreements.items() if pair[1].verdict]
    return max(compared, key=lambda pair: abs(pair[1].difference), default=None)
