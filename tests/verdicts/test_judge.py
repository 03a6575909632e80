"""Verdicts from differences chosen so that the interval is known by hand.

With three seeds the half width is 4.3027 / sqrt(3) = 2.484 std at 95 %, and 6.2053 / sqrt(3) = 3.583 std at 97.5 %
(one of two claims): t with 2 degrees of freedom is level / sqrt(2 p (1 - p)) with p = (1 + level) / 2.
The differences d - s, d, d + s have mean d and std s.
"""

from dataclasses import replace
from typing import Any

import pytest

from benchmark.papers.item import Item
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import Records
from benchmark.verdicts.statistics import t_factor
from tests.reports.fakes import accuracies, make_record, pair

BASE = (0.70, 0.80, 0.75)


def judged(differences: list[float], *, claims: int = 1, **claim: Any) -> Judged:
    """The verdict on a - b = differences, as the first of so many claims."""
    item = pair(**claim)
    item = replace(item, claims=item.claims * claims)
    return judge(item, records_of(item, differences))[0]


def records_of(item: Item, differences: list[float]) -> Records:
    a, b = item.cells
    base = BASE[: len(differences)]
    return accuracies([(a, [x + d for x, d in zip(base, differences, strict=True)]), (b, list(base))])


@pytest.mark.parametrize(
    ("form", "d", "s", "verdict"),
    [
        ("improves", 0.03, 0.01, "holds"),  # [0.0052, 0.0548]
        ("improves", 0.02, 0.01, "undecided"),  # [-0.0048, 0.0448]
        ("improves", -0.03, 0.01, "contradicted"),
        ("comparable", 0.0, 0.004, "holds"),  # +-0.0099, margin 0.01
        ("comparable", 0.0, 0.005, "undecided"),  # +-0.0124
        ("comparable", 0.005, 0.003, "undecided"),  # [-0.0025, 0.0125]
        ("comparable", 0.06, 0.01, "contradicted"),  # [0.035, 0.085]
        ("comparable", -0.06, 0.01, "contradicted"),
    ],
)
def test_interval_decides(form: str, d: float, s: float, verdict: str) -> None:
    seen = judged([d - s, d, d + s], form=form)
    half = 0.95 / (2 * 0.975 * 0.025) ** 0.5 / 3**0.5 * s
    assert seen.verdict == verdict
    assert seen.estimate == pytest.approx(d)
    assert seen.interval == pytest.approx((d - half, d + half))
    assert (seen.n, seen.level, seen.diverged) == (3, 0.95, ())


def test_bonferroni_counts_all_claims() -> None:
    """d = 0.03, s = 0.01: +-0.0248 alone lies above zero, +-0.0358 as one of two claims does not."""
    alone, one_of_two = judged([0.02, 0.03, 0.04]), judged([0.02, 0.03, 0.04], claims=2)
    assert (alone.verdict, one_of_two.verdict) == ("holds", "undecided")
    assert one_of_two.level == 0.975
    assert one_of_two.interval == pytest.approx((0.03 - 0.035826, 0.03 + 0.035826), abs=1e-6)


@pytest.mark.parametrize(("differences", "n"), [([], 0), ([0.2], 1)])
def test_fewer_than_two_seeds_decide_nothing(differences: list[float], n: int) -> None:
    seen = judged(differences)
    assert (seen.verdict, seen.n, seen.interval, seen.seeds_needed) == ("undecided", n, None, None)
    assert seen.estimate == (pytest.approx(0.2) if n else None)


def test_seeds_that_agree_to_the_last_digit_decide_nothing() -> None:
    """Three equal differences give an interval without width; that is too good to be a measurement."""
    seen = judged([0.05, 0.05, 0.05])
    assert (seen.verdict, seen.interval) == ("undecided", None)
    assert "spread is unknown" in seen.reason


def test_counted_quantities_need_no_spread() -> None:
    """Bytes are counted: the same in every seed, and still known exactly. 300 - 100 = 200 > 0."""
    item = pair(metric="comm/bytes_up", least=0.0)
    records = {
        cell.cell_key: {seed: make_record(cell, seed, {"comm/bytes_up": sent}) for seed in range(2)}
        for cell, sent in zip(item.cells, (300.0, 100.0), strict=True)
    }
    assert judge(item, records)[0].verdict == "holds"


def test_seeds_needed_would_decide() -> None:
    """d = 0.02, s = 0.01: undecided at 3 seeds; the interval excludes zero at the first n with t_factor(n) s < d."""
    seen = judged([0.01, 0.02, 0.03])
    assert seen.seeds_needed is not None
    assert t_factor(seen.seeds_needed) * 0.01 < 0.02 <= t_factor(seen.seeds_needed - 1) * 0.01
    assert judged([0.01, 0.02]).seeds_needed is None  # two seeds do not know their spread
    assert judged([0.02, 0.03, 0.04]).seeds_needed is None  # decided


def test_seeds_needed_for_equivalence() -> None:
    """Margin 0.01, d = 0.005, s = 0.003: 0.005 is left on the nearer side, to be reached by t_factor(n) s."""
    seen = judged([0.002, 0.005, 0.008], form="comparable")
    assert seen.seeds_needed is not None
    assert t_factor(seen.seeds_needed) * 0.003 < 0.005 <= t_factor(seen.seeds_needed - 1) * 0.003


def with_diverged(index: int, differences: list[float], **claim: Any) -> Judged:
    """Cell `index` has a further seed, 3, that diverged."""
    item = pair(**claim)
    records = {key: dict(runs) for key, runs in records_of(item, differences).items()}
    cell = item.cells[index]
    records[cell.cell_key][3] = make_record(cell, 3, {"test/accuracy": 0.1}, status="diverged")
    return judge(item, records)[0]


def test_a_diverged_run_is_named_and_not_averaged() -> None:
    """b, the cell that is subtracted, diverged: leaving it out can only have made a - b smaller, so a still wins."""
    seen = with_diverged(1, [0.02, 0.03, 0.04])
    assert (seen.verdict, seen.n, seen.estimate) == ("holds", 3, pytest.approx(0.03))
    assert seen.diverged == ("b seed 3",)
    assert "diverged and left out: b seed 3" in seen.reason


@pytest.mark.parametrize(
    ("index", "differences", "form"),
    [
        (0, [0.02, 0.03, 0.04], "improves"),
        (1, [-0.02, -0.03, -0.04], "improves"),
        (1, [-0.001, 0.0, 0.001], "comparable"),
    ],
)
def test_survivors_do_not_decide_what_divergence_favours(index: int, differences: list[float], form: str) -> None:
    seen = with_diverged(index, differences, form=form)
    assert (seen.verdict, seen.seeds_needed) == ("undecided", None)
    assert "without the diverged runs" in seen.reason


def test_a_finished_run_with_nan_counts_as_diverged() -> None:
    item = pair()
    records = {key: dict(runs) for key, runs in records_of(item, [0.02, 0.03, 0.04]).items()}
    b = item.cells[1]
    records[b.cell_key][2] = make_record(b, 2, {"test/accuracy": float("nan")})
    seen = judge(item, records)[0]
    assert (seen.n, seen.diverged) == (2, ("b seed 2",))


def test_small_differences_are_called_small() -> None:
    """0.002 +- 0.00025 lies above zero, and is a fifth of the point that would matter."""
    seen = judged([0.0019, 0.002, 0.0021])
    assert seen.verdict == "holds"
    assert "below the least difference of interest (1.0 points)" in seen.reason


@pytest.mark.parametrize(
    "changes", [{"form": "every", "contrasts": ({"a": 1.0, "b": -1.0},)}, {"form": "order"}, {"endpoint": "speed"}]
)
def test_a_claim_without_a_rule_is_not_judged_and_still_counts_for_the_level(changes: dict[str, Any]) -> None:
    item = pair()
    other = replace(item.claims[0], **changes)
    first, second = judge(replace(item, claims=(other, *item.claims)), records_of(item, [0.02, 0.03, 0.04]))
    assert (first.verdict, first.estimate, first.interval, first.n) == ("not judged yet", None, None, 0)
    assert next(iter(changes.values()), "") in first.reason or "every" in first.reason
    assert second.level == pytest.approx(0.975) and second.verdict == "undecided"
