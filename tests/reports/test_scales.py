"""The page "From small to large": estimates of a claim in several settings, and how well they agree."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from reports.item_results import ItemResults, connect
from reports.scales import Measured, ScaleAgreement, at_profiles, in_other_settings, scales_values, trust_text
from reports.site import build
from tests.reports.fakes import gained, make_cell, pair
from tests.reports.test_sentences import at_two_sizes
from tests.reports.test_site import words


def measured(estimate: float, verdict: str = "not judged", metric: str = "test/accuracy") -> Measured:
    (claim,) = pair(metric=metric).claims
    return Measured(claim=claim, where="", estimate=estimate, n=9, verdict=verdict)


def test_a_rank_correlation_is_one_less_six_squared_rank_differences() -> None:
    """Without ties it is 1 - 6 sum d^2 / (n (n^2 - 1)), here for all orders of five values."""
    for order in permutations(range(1, 6)):
        pairs = [(measured(rank / 100), measured(10.0 * other)) for rank, other in enumerate(order, 1)]
        squares = sum((rank - other) ** 2 for rank, other in enumerate(order, 1))
        expected = 1 - 6 * squares / (5 * 24)
        assert ScaleAgreement(smaller="demo", larger="laptop", pairs=pairs).rank_correlation == pytest.approx(expected)


def test_estimates_in_other_units_are_counted_but_not_ranked() -> None:
    pairs = [(measured(0.01 * n), measured(0.02 * n)) for n in (1, 2, 3, 4)]
    pairs += [(measured(3.0, metric="gradient_diversity/all"), measured(-3.0, metric="gradient_diversity/all"))]
    agreement = ScaleAgreement(smaller="demo", larger="laptop", pairs=pairs)
    assert agreement.rank_correlation is None and agreement.same_sign == 4
    more = ScaleAgreement(smaller="demo", larger="laptop", pairs=[*pairs, (measured(0.05), measured(0.001))])
    assert more.rank_correlation == pytest.approx(0.0)  # ranks 1 2 3 4 5 against 2 3 4 5 1


def test_verdicts_agree_only_if_both_are_decided_and_alike() -> None:
    pairs = [
        (measured(0.1, "holds"), measured(0.2, "holds")),
        (measured(0.1, "holds"), measured(-0.2, "contradicted")),
        (measured(0.1, "holds"), measured(0.2)),
    ]
    agreement = ScaleAgreement(smaller="demo", larger="laptop", pairs=pairs)
    assert (len(agreement.decided), agreement.same_verdict, agreement.same_sign) == (2, 1, 2)


@pytest.mark.parametrize(("first", "verdict"), [(100, "undecided"), (0, "not judged")])
def test_confirmatory_runs_that_decide_nothing_are_undecided_and_exploratory_ones_not_judged(first, verdict) -> None:
    demo = pair()
    laptop = replace(demo, profile="laptop")
    every = connect([ItemResults(one, gained(one, -0.004, 9, first=first)) for one in (demo, laptop)])
    (by_setting,) = at_profiles(every)
    assert [measured.verdict for measured in by_setting.values()] == [verdict, verdict]


def test_trust_needs_more_signs_that_agree_than_by_chance() -> None:
    """Compare with the binomial distribution for eight pairs.

    By chance, all eight signs agree with probability 2^-8 = .0039 < .025, and at least seven with (1 + 8) / 256 = .035.
    """
    agree = (measured(0.1, "holds"), measured(0.2, "holds"))
    differ = (measured(0.1), measured(-0.2))
    assert trust_text([]).startswith("No claim has runs in two settings")
    eight = trust_text([agree] * 8)
    assert "8 of 8 pairs of estimates (1 claim)" in eight and "4 are expected by chance" in eight
    assert "More signs agree than by chance" in eight and "In 8 of 8 pairs with a verdict in both settings" in eight
    seven = trust_text([*[agree] * 7, differ])
    assert "7 of 8 pairs" in seven and "can be due to chance" in seven
    assert "No pair has a verdict in both" in trust_text([differ] * 8)
    equal = [replace(one, claim=replace(one.claim, form="comparable")) for one in agree]
    with_equality = [*[agree] * 8, (equal[0], equal[1])]
    assert "8 of 8 pairs of" in trust_text(with_equality)
    assert "9 of 9 pairs of estimates, including" in ScaleAgreement(smaller="", larger="", pairs=with_equality).text


def test_a_claim_at_two_profiles_is_shown_side_by_side(tmp_path: Path) -> None:
    small = pair()
    cells = tuple(make_cell(cell.label, cell.setting, 20 + n) for n, cell in enumerate(small.cells))
    large = replace(small, profile="laptop", cells=cells)
    every = connect([ItemResults(small, gained(small, 0.1, 9)), ItemResults(large, gained(large, -0.2, 9))])
    (by_profile,) = at_profiles(every)
    assert by_profile["demo"].estimate == pytest.approx(0.104) and by_profile["laptop"].estimate < 0
    (agreement,) = scales_values(every)["agreements"]
    assert (agreement.smaller, agreement.larger, agreement.same_sign) == ("demo", "laptop", 0)
    build([(one.item, one.records) for one in every], tmp_path)
    assert "a beats b" in words(tmp_path / "scales.html")


def test_a_sentence_with_more_clients_elsewhere_is_a_pair() -> None:
    few, many = at_two_sizes()
    ((own, other),) = in_other_settings(connect([ItemResults(*few), ItemResults(*many)]))
    assert own.estimate < 0 and other.estimate == pytest.approx(0.3) and other.n == 2
