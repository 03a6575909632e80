"""Which confirmatory runs can decide an open claim: at an interim analysis, of the claim's cells and baselines only."""

from dataclasses import replace

import pytest

from benchmark.papers.item import Cell, Item
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.rule import LOOKS
from sweeps import deciding
from sweeps.deciding import claims_of, gaps_of, last_analysis, open_claims, words_on_seeds
from sweeps.plan import NONE, Plan, Seeds, plan
from tests.reports.fakes import gained, make_cell, pair


def keys_of(item: Item) -> set[str]:
    return {cell.cell_key for cell in item.cells}


def with_third_cell(item: Item) -> tuple[Item, Cell]:
    """Return the pair, and a cell without a claim."""
    third = make_cell("c", {"method": "c"}, 77)
    return replace(item, cells=(*item.cells, third)), third


@pytest.mark.parametrize("seeds", [*range(1, 41), 100])
def test_the_last_interim_analysis_is_the_largest_that_so_many_seeds_reach(seeds):
    reached = last_analysis(seeds)
    assert reached in (0, *LOOKS) and reached <= seeds
    assert not [look for look in LOOKS if reached < look <= seeds]


@pytest.mark.parametrize(("seeds", "used"), [(1, 0), (8, 0), (9, 9), (10, 9), (16, 16), (31, 24), (40, 32)])
def test_runs_are_those_of_the_claims_cells_up_to_the_last_interim_analysis(seeds, used):
    """An only claim has all the error, so nine seeds can decide it."""
    item, third = with_third_cell(pair())
    runs = open_claims(item, NONE, seeds).runs
    asked = keys_of(item) - {third.cell_key} if used else set()
    assert runs == {(key, seed) for key in asked for seed in range(100, 100 + used)}


def test_a_claim_with_a_small_share_of_the_error_needs_more_seeds():
    """One of a family of 40 cannot be decided at 9 seeds: see `test_open_claims`."""
    item = pair()
    records = gained(item, 0.0, more=39)
    assert not open_claims(item, records, 15).decidable
    assert len(open_claims(item, records, 16).decidable) == 1


def test_no_run_of_a_decided_claim_decides_anything():
    item = pair()
    assert open_claims(item, gained(item, 0.3, 9), 32).runs == set()


def test_a_primary_claim_waits_for_one_before_it_that_these_seeds_cannot_decide():
    """Equivalence needs 20 seeds, so of two primary claims the second cannot be decided at 16, if the first is one."""
    first = pair(form="comparable").claims[0]
    item = replace(pair(), claims=(replace(first, main=True, name="alike"),))
    second = replace(pair().claims[0], main=True, name="better")
    item = replace(item, claims=(*item.claims, second))
    assert [judged.could_decide for judged in judge(item, NONE)][1] <= 16
    assert not open_claims(item, NONE, 16).decidable
    assert len(open_claims(item, NONE, 24).decidable) == 2
    in_turn = replace(item, claims=tuple(reversed(item.claims)))
    assert [judged.claim.name for judged in open_claims(in_turn, NONE, 16).decidable] == ["better"]


def test_a_claim_on_a_cell_that_is_only_shown_waits_for_its_runs():
    item = pair()
    a, b = item.cells
    shown = replace(item, cells=(replace(a, role="quoted"), b))
    assert not open_claims(shown, NONE, 9).decidable and len(open_claims(item, NONE, 9).decidable) == 1


def test_a_plan_leaves_out_what_can_decide_nothing_and_keeps_what_is_done(tmp_path):
    item, third = with_third_cell(pair())
    for seeds, trained in ((8, 0), (10, 9)):
        whole = plan([item], tmp_path, seeds=Seeds(confirming=seeds))
        short = plan([item], tmp_path, seeds=Seeds(confirming=seeds, decisive=True))
        assert {*short.missing, *short.left_out} == {*whole.missing} and not whole.left_out
        assert not {*short.missing} & {*short.left_out}
        assert len(short.missing) == 2 * trained and len(short.left_out) == 3 * seeds - 2 * trained
        assert third.cell_key not in {run.cell_key for run in short.missing}
        assert short.shown == whole.shown
    pilots = plan([item], tmp_path, seeds=Seeds(pilots=2, confirming=8, decisive=True))
    assert {run.seed for run in pilots.missing} == {0, 1} and len(pilots.missing) == 3 * 2
    records = gained(item, 0.0, 10) if len(item.cells) == 2 else gained(pair(), 0.0, 10)
    done = plan([item], tmp_path, seeds=Seeds(confirming=10, decisive=True), read=lambda *_, **__: records)
    assert not done.missing and len(done.runs) == 2 * 10


@pytest.mark.parametrize("claims", [True, False])
def test_what_is_left_out_is_said_with_what_to_type(claims):
    """A number of seeds that decides something, if there is one, and the option that trains them all the same."""
    item = pair() if claims else replace(pair(), claims=())
    left_out = tuple(cell.experiment.with_seed(100) for cell in item.cells)
    planned = Plan(runs=(), records=NONE, items=(item,), left_out=left_out)
    (text,) = words_on_seeds(item, claims_of(item, NONE), planned, 3)
    assert "--undecidable" in text and ("--seeds 9 " in text) == claims and ("--pilots" in text) != claims
    assert words_on_seeds(item, claims_of(item, NONE), Plan(runs=(), records=NONE, items=(item,)), 9) == []


def test_seeds_that_can_never_count_are_named_by_claim_and_reason(monkeypatch):
    (judged,) = judge(pair(), NONE)
    gaps = {100: "two devices", 101: "two devices", 103: "two devices", 102: "not measured"}

    def judges(*_: object) -> list[Judged]:
        return [replace(judged, gaps=gaps)]

    monkeypatch.setattr(deciding, "judge", judges)
    found = {gap.reason: gap for gap in gaps_of(pair(), claims_of(pair(), NONE))}
    assert {reason: gap.seeds for reason, gap in found.items()} == {
        "two devices": (100, 101, 103),
        "not measured": (102,),
    }
    assert "seeds 100 to 101, 103 " in found["two devices"].in_words()
    assert found["not measured"].in_words().startswith("seed 102 ")
    assert found["not measured"].to_json()["claim"] == judged.claim.name
    assert len(words_on_seeds(pair(), claims_of(pair(), NONE), Plan(runs=(), records=NONE, items=(pair(),)), None)) == 2
