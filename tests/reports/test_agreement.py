"""Verdicts on published numbers against closed forms and against scipy."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmark.data.datasets import DATASETS
from benchmark.papers.item import Item
from benchmark.verdicts.results import ACCURACY, cell_result
from benchmark.verdicts.statistics import summary
from reports.agreement import agree, agreement, largest_gap, standard_error
from reports.paper_table import ours_entry
from reports.reported import Reported
from tests.reports.fakes import accuracies, make_cell, printed

FRACTIONS = st.floats(0.0, 1.0)


def test_error_with_a_printed_spread_is_welchs() -> None:
    """Against scipy's Welch test from summaries: the same statistic and degrees of freedom."""
    error, freedom = standard_error(0.02, 5, 0.03, 3)
    t = (0.91 - 0.90) / error
    welch = stats.ttest_ind_from_stats(0.91, 0.02, 5, 0.90, 0.03, 3, equal_var=False)
    assert t == pytest.approx(welch.statistic)
    assert 2 * stats.t.sf(abs(t), freedom) == pytest.approx(welch.pvalue)


@given(st.lists(FRACTIONS, min_size=3, max_size=8), FRACTIONS, st.floats(0.001, 0.2))
def test_matches_is_two_one_sided_tests(values: list[float], published: float, margin: float) -> None:
    """A single published value: both one-sided tests with error s sqrt(1/n + 1) reject at 5 %, or it is no match."""
    seen = summary(values)
    found = agree(seen, published, margin)
    if seen.std is None or not seen.has_spread:
        assert found.verdict == "undecided" and found.interval is None
        return
    error = seen.std * math.sqrt(1 / seen.n + 1)
    above = stats.t.sf((found.difference + margin) / error, seen.n - 1)
    below = stats.t.sf((margin - found.difference) / error, seen.n - 1)
    if abs(max(above, below) - 0.05) > 1e-9:
        assert (found.verdict == "matches") == (max(above, below) < 0.05)
    two_sided = 2 * stats.t.sf(abs(found.difference) / error, seen.n - 1)
    if found.verdict != "matches" and abs(two_sided - 0.05) > 1e-9:
        assert (found.verdict == "differs") == (two_sided < 0.05)


def item(profile: str = "paper", margin: float | None = 0.01) -> Item:
    cells = tuple(
        make_cell(m, {"method": m}, 900 + i, published=printed(p))
        for i, (m, p) in enumerate([("A", 90.0), ("B", 80.0)])
    )
    return Item(name="toy/tab1", title="Toy", profile=profile, cells=cells, seeds=3, margin=margin)


def test_only_profile_paper_is_compared_and_the_level_allows_for_all_cells() -> None:
    """Two cells with a published number: 1 - .05 / 2. B lies 1 point off, A 3."""
    shown = item()
    records = accuracies([(shown.cells[0], [0.929, 0.93, 0.931]), (shown.cells[1], [0.809, 0.81, 0.811])])
    results = [cell_result(cell, records, 3) for cell in shown.cells]
    seen = agreement(shown, results[0])
    assert seen is not None and seen.level == pytest.approx(0.975) and seen.difference == pytest.approx(0.03)
    gap = largest_gap(Reported(shown, records).agreements)
    assert gap is not None and gap[0] == "A"
    for other in (item("laptop"), item(margin=None)):
        assert agreement(other, results[0]) is None
    assert agreement(shown, replace(results[0], values={})) is None


@pytest.mark.parametrize(("data", "verdict"), [("digits", "undecided"), ("cifar10", "undecided"), ("cifar100", None)])
def test_other_data_than_the_papers_get_their_note_and_no_verdict(data: str, verdict: str | None) -> None:
    """The packed CIFAR-100 is a lossy copy with a split of its own; 161 images of the packed CIFAR-10 are."""
    shown, note = item(), DATASETS[data].packed_note
    records = accuracies([(shown.cells[0], [0.93])])
    records = {  # with the note that the files leave in a manifest
        key: {seed: replace(run, manifest={**run.manifest, "data": {"note": note}}) for seed, run in runs.items()}
        for key, runs in records.items()
    }
    result = cell_result(shown.cells[0], records, 1)
    seen = agreement(shown, result)
    assert seen is not None and seen.verdict == verdict and seen.difference == pytest.approx(0.03)
    one = Reported(shown, records)
    below = ours_entry(one, "A", ACCURACY).below
    assert "+3.00 to the paper" in below
    assert (note in below) == (verdict is None)
    assert (largest_gap(one.agreements) is None) == (verdict is None)
