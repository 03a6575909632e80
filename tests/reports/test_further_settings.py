"""A table in a further reduced setting: its claims count from their first look on, and pages show it first."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from benchmark.papers.item import Elsewhere, Item
from reports import findings
from reports.claims import rows_of
from reports.findings import claim_rows, findings_in_full, findings_page, shown_kinds, state_text
from reports.headlines import headlines
from reports.item_results import PAPERS, ItemResults, connect
from reports.pages import _card, paper_values
from reports.scales import ScaleAgreement, agreements, at_profiles, in_other_settings
from reports.sentences import sentences_of
from tests.reports.fakes import gained, make_cell, pair

PAPER = {"ssfl": {"short": "SSFL", "headline": "ssfl/tab2: a beats b"}}


def two_settings() -> tuple[Item, Item]:
    """A pair in both reduced settings of SSFL's Table 2, each with cells of its own."""
    base = replace(pair(), name="ssfl/tab2", profile="laptop")
    cells = tuple(make_cell(cell.label, cell.setting, 20 + n) for n, cell in enumerate(base.cells))
    return base, replace(base, name="ssfl/tab2-cifar10", cells=cells, claims_of="ssfl-cifar10")


def on_cifar10(item: Item) -> Item:
    """The same item with cells that train on CIFAR-10."""
    cells = []
    for cell in item.cells:
        data = replace(cell.experiment.data, name="cifar10")
        cells.append(replace(cell, experiment=replace(cell.experiment, data=data)))
    return replace(item, cells=tuple(cells))


def both(gain: float, seeds: int, first: int = 100) -> Sequence[ItemResults]:
    """The base holds by 9 seeds; the further setting has so many."""
    base, further = two_settings()
    return connect([ItemResults(base, gained(base, 0.1, 9)), ItemResults(further, gained(further, gain, seeds, first))])


def items_with_claims(every: Sequence[ItemResults]) -> list[str]:
    with patch.object(findings, "declared_claims", lambda: ()):
        return [row.item.name for row in claim_rows(every, "ssfl")]


@pytest.mark.parametrize(("seeds", "first", "counts"), [(9, 100, True), (3, 100, False), (9, 0, False)])
def test_its_claims_count_from_their_first_look_on(seeds, first, counts):
    """Pilot runs and fewer seeds than a look needs change no number of the front page."""
    expected = ["ssfl/tab2", "ssfl/tab2-cifar10"] if counts else ["ssfl/tab2"]
    assert items_with_claims(both(0.1, seeds, first)) == expected


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
    further = on_cifar10(further)
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


def with_more_clients(gain: float, further_gain: float) -> Sequence[ItemResults]:
    """Both reduced settings, and a table on the base's data whose 470 clients decide the same sentence."""
    base, further = two_settings()
    cells = []
    for cell in pair().cells:
        federation = replace(cell.experiment.federation, K=470)
        cells.append(replace(cell, experiment=replace(cell.experiment, federation=federation)))
    large = replace(base, name="ssfl/tabj1", cells=tuple(cells))
    place = Elsewhere(item=large.name, contrast={"a": 1.0, "b": -1.0})
    claims = tuple(replace(claim, elsewhere=(place,)) for claim in base.claims)
    base = replace(base, claims=claims)
    further = on_cifar10(replace(further, claims=claims))
    every = [
        ItemResults(base, gained(base, gain, 9)),
        ItemResults(further, gained(further, further_gain, 9)),
        ItemResults(large, gained(large, 0.3, 9)),
    ]
    return connect(every)


@pytest.mark.parametrize("quote", ["a is better", ""])
def test_a_question_of_ours_in_both_settings_is_one_question_like_a_sentence(quote):
    base, further = two_settings()
    claims = tuple(replace(claim, quote=quote) for claim in base.claims)
    base, further = replace(base, claims=claims), replace(further, claims=claims)
    every = connect([ItemResults(base, gained(base, 0.1, 9)), ItemResults(further, gained(further, -0.1, 9))])
    with patch.object(findings, "declared_claims", lambda: ()):
        (one,) = sentences_of(claim_rows(every))
        state = state_text(every)
    assert one.status == "mixed" and [row.item.name for row in one.rows] == [base.name, further.name]
    assert "2 claims in all, duplicates counted once, 1 of them in a further reduced setting." in state


def test_a_verdict_at_more_clients_on_other_data_names_both_data_sets():
    base, further, _ = with_more_clients(0.1, 0.1)
    assert "8x8 digits" not in rows_of(base)[0].verdict_text
    few, _, more = rows_of(further)[0].verdict_text.partition("; ")
    assert few == "holds at K = 10 on CIFAR-10" and more.startswith("holds at K = 470 on 8x8 digits: ")


def test_a_headline_on_several_data_sets_names_the_data_of_each_verdict():
    with patch.dict(PAPERS, PAPER, clear=True), patch.object(findings, "declared_claims", lambda: ()):
        (headline,) = headlines(with_more_clients(-0.1, 0.1))
    ends = ["K = 10 on CIFAR-10", "K = 10 on 8x8 digits", "K = 470 on 8x8 digits"]
    assert [text.partition(":")[0].partition(" at ")[2] for text in headline.verdict.split("; ")] == ends


def test_another_setting_of_a_sentence_is_a_pair_with_the_base_only():
    """If not, the estimate with more clients would count twice, once for each reduced setting."""
    ((own, other),) = in_other_settings(with_more_clients(-0.1, 0.1))
    assert own.estimate < 0 < other.estimate and "ssfl/tabj1" in other.where


def test_a_card_counts_a_table_once_and_its_claims_like_the_summary():
    """Pilot runs in the further setting leave the base's verdict whole."""
    for seeds, first, status in [(9, 100, "holds"), (3, 0, "holds"), (3, 100, "holds")]:
        (line,) = _card("ssfl", both(0.1, seeds, first))["lines"]
        assert line["items"] == 1 and line["verdicts"] == {status: 1}


@pytest.mark.parametrize(("seeds", "is_shown"), [(9, True), (3, False)])
def test_findings_have_the_verdict_of_each_further_setting(seeds, is_shown, tmp_path, monkeypatch):
    base, further = two_settings()
    further = on_cifar10(further)
    written = tmp_path / "findings.toml"
    written.write_text(f'[[ssfl]]\nclaim = "{base.name}: a beats b"\nbrief = "one data set."\nagainst = "Digits."\n')
    monkeypatch.setattr(findings, "MAIN", written)
    monkeypatch.setattr(findings, "declared_claims", lambda: ((base, base.claims[0]),))
    every = connect([ItemResults(base, gained(base, -0.1, 9)), ItemResults(further, gained(further, 0.1, seeds))])
    for make in (findings_page, findings_in_full):
        page = make(every, links=False)
        (start,) = [line for line in page.splitlines() if line.startswith("1. **a beats b: contradicted")]
        assert ("**On CIFAR-10: holds" in page) == is_shown, make.__name__
    assert ("a family of their own" in findings_in_full(every, links=False)) == is_shown


def test_one_pair_of_settings_is_written_in_the_singular():
    (estimates,) = at_profiles(both(0.1, 9))
    (agreement,) = agreements([estimates])
    assert agreement.text.startswith("1 of 1 pair of estimates has the same sign; ")
    assert agreement.text.endswith("In 1 of 1 pair with a verdict in both settings, the verdicts agree.")
    two = ScaleAgreement(smaller="laptop", larger="gpu", pairs=2 * list(agreement.pairs))
    assert two.text.startswith("2 of 2 pairs of estimates have the same sign; ")
