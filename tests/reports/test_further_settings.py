"""A table in a further reduced setting: its claims count from their first look on, and pages show it first."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from benchmark.papers.item import Item
from reports import findings
from reports.findings import board, shown_kinds
from reports.headlines import headlines
from reports.item_results import PAPERS, ItemResults, connect
from reports.pages import paper_values
from reports.scales import agreements, at_profiles
from tests.reports.fakes import gained, make_cell, pair

PAPER = {"ssfl": {"short": "SSFL", "headline": "ssfl/tab2: a beats b"}}


def two_settings() -> tuple[Item, Item]:
    """A pair in both reduced settings of SSFL's Table 2, each with cells of its own."""
    base = replace(pair(), name="ssfl/tab2", profile="laptop")
    cells = tuple(make_cell(cell.label, cell.setting, 20 + n) for n, cell in enumerate(base.cells))
    return base, replace(base, name="ssfl/tab2-cifar10", cells=cells, claims_of="ssfl-cifar10")


def both(gain: float, seeds: int, first: int = 100) -> Sequence[ItemResults]:
    """The base holds by 9 seeds; the further setting has so many."""
    base, further = two_settings()
    return connect([ItemResults(base, gained(base, 0.1, 9)), ItemResults(further, gained(further, gain, seeds, first))])


def on_board(every: Sequence[ItemResults]) -> list[str]:
    with patch.object(findings, "declared_claims", lambda: ()):
        return [row.item.name for row in board(every, "ssfl")]


@pytest.mark.parametrize(("seeds", "first", "counts"), [(9, 100, True), (3, 100, False), (9, 0, False)])
def test_its_claims_count_from_their_first_look_on(seeds, first, counts):
    """Pilot runs and fewer seeds than a look needs change no number of the front page."""
    assert on_board(both(0.1, seeds, first)) == ["ssfl/tab2", *["ssfl/tab2-cifar10"] * counts]


def test_it_is_no_withdrawn_setting():
    with patch.object(findings, "declared_claims", lambda: ()):
        assert not [kind for kind in shown_kinds(both(0.1, 9)) if "withdrawn" in kind]


def test_the_papers_page_and_the_headline_begin_with_it():
    every = both(-0.1, 9)
    with patch.dict(PAPERS, PAPER, clear=True), patch.object(findings, "declared_claims", lambda: ()):
        (headline,) = headlines(every)
        rows = paper_values("ssfl", every, every)["items"].rows
    assert [outcome.verdict for outcome in headline.outcomes] == ["contradicted", "holds"]
    assert [row.entries[0].text for row in rows] == ["ssfl/tab2-cifar10", "ssfl/tab2"]


def test_verdicts_at_equal_numbers_of_clients_name_their_data():
    base, further = two_settings()
    cells = [replace(cell, experiment=replace(cell.experiment)) for cell in further.cells]
    for n, cell in enumerate(cells):
        data = replace(cell.experiment.data, name="cifar10")
        cells[n] = replace(cell, experiment=replace(cell.experiment, data=data))
    further = replace(further, cells=tuple(cells))
    every = connect([ItemResults(base, gained(base, 0.1, 9)), ItemResults(further, gained(further, -0.1, 9))])
    with patch.dict(PAPERS, PAPER, clear=True), patch.object(findings, "declared_claims", lambda: ()):
        (headline,) = headlines(every)
    first, second = headline.verdict.split("; ")
    assert first.startswith("contradicted at K = 10 on CIFAR-10")
    assert second.startswith("holds at K = 10 on 8x8 digits")


def test_it_is_a_scale_between_the_profiles():
    base, _ = two_settings()
    cells = tuple(make_cell(cell.label, cell.setting, 30 + n) for n, cell in enumerate(base.cells))
    large = replace(base, profile="gpu", cells=cells)
    every = connect([*both(-0.2, 9), ItemResults(large, gained(large, 0.3, 9))])
    (estimates,) = at_profiles(every)
    assert list(estimates) == ["laptop", "laptop-cifar10", "gpu"]
    pairs = [(one.smaller, one.larger, one.same_sign) for one in agreements([estimates])]
    assert pairs == [("laptop", "laptop-cifar10", 0), ("laptop", "gpu", 1), ("laptop-cifar10", "gpu", 0)]
