"""Families of claims: what a confirming run carries, and where later claims are judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.papers.catalogue import items
from benchmark.papers.item import Family, Item
from benchmark.records.record import run_folder
from benchmark.verdicts.families import begun_under, closed, families_of, family_items, family_of, hash_of, owner
from sweeps.plan import Seeds, plan, wanted
from tests.conftest import ROOT, tiny_experiment


@pytest.fixture
def tab2() -> Item:
    return items(["ssfl/tab2"], "demo")[0]


def begin(results: Path, item: Item, seed: int, claims: Family) -> None:
    """The manifest of a run of the item's first cell."""
    folder = run_folder(results, item.cells[0].experiment.with_seed(seed))
    folder.mkdir(parents=True)
    noted = {"ssfl demo": {"main": list(claims.main), "others": list(claims.others)}}
    data = {"name": "digits", "hash": "0" * 64, "partition": "0" * 64}
    origin = {"code": {"commit": "0" * 40}, "packages": {}, "data": data, "engine": {"name": "pool", "threads": 1}}
    (folder / "manifest.json").write_text(json.dumps({**origin, "claims": noted}))


def test_a_family_is_closed_by_its_first_confirming_run(tmp_path: Path, tab2: Item):
    """Pilots carry nothing. The first confirming run carries all claims of the paper, later ones what it carried."""
    run = tab2.cells[0].experiment
    assert begun_under(run.with_seed(99), tmp_path) == {} == closed(tab2, tmp_path)
    everything = begun_under(run.with_seed(100), tmp_path)["claims"]["ssfl demo"]
    assert {hash_of(tab2, claim) for claim in tab2.claims} < set(everything["others"]) | set(everything["main"])
    few = Family(others=tuple(everything["others"][:3]))
    begin(tmp_path, tab2, 103, few)
    other = items(["ssfl/tab4"], "demo")[0].cells[-1].experiment
    carried = begun_under(other.with_seed(100), tmp_path)["claims"]
    assert carried["ssfl demo"] == {"main": [], "others": list(few.others)}


def test_a_later_claim_is_judged_by_the_next_hundred(tmp_path: Path, tab2: Item):
    """Seeds 100 to 199 were begun without the first claim: its two cells run from 200 on, all others from 100."""
    late, *known = (hash_of(tab2, claim) for claim in tab2.claims)
    begin(tmp_path, tab2, 100, Family(others=tuple(known)))
    firsts = [family_of(tab2, claim, closed(tab2, tmp_path))[0] for claim in tab2.claims[:2]]
    assert firsts == [200, 100]
    run = tab2.cells[0].experiment
    carried = begun_under(run.with_seed(205), tmp_path)["claims"]["ssfl demo"]
    assert late in (*carried["main"], *carried["others"]) and not set(known) & {*carried["main"], *carried["others"]}
    asked = wanted(plan([tab2], tmp_path).items, Seeds(confirming=2))
    later = {tab2.cell(label).cell_key for label in tab2.claims[0].labels}
    assert {run.seed for run in asked} == {100, 101, 200, 201}
    assert later <= {run.cell_key for run in asked if run.seed == 200} < {run.cell_key for run in asked}


def test_a_claim_that_is_counted_asks_for_no_seeds_of_its_own():
    """No family has it: each hundred that it was given would be closed without it."""
    asked = plan(items(["fedswitch/tab1"], "laptop"), ROOT / "results", seeds=Seeds(confirming=9)).runs
    assert {run.seed for run in asked} == {*range(100, 109)}


def test_another_margin_sentence_or_cell_is_another_claim(tab2: Item):
    claim = tab2.claims[0]
    others = (
        replace(claim, least=0.02),
        replace(claim, quote="another"),
        replace(claim, endpoint="speed"),
        replace(claim, contrasts=({**claim.contrasts[0], "Grouping/full": -1.0},)),
    )
    assert len({tab2.hash_of(one) for one in (claim, *others)}) == 5
    later = replace(claim, name="said otherwise", made=None, withdrawn="why", elsewhere=())
    assert tab2.hash_of(later) == tab2.hash_of(claim) and any(claim.elsewhere for claim in tab2.claims)
    cells = (replace(tab2.cells[0], experiment=replace(tab2.cells[0].experiment, profile="custom")), *tab2.cells[1:])
    assert replace(tab2, cells=cells).hash_of(claim) == tab2.hash_of(claim)  # no part of the cell's key
    method = replace(tab2.cells[0].experiment.method, warm_start_rounds=1)
    cells = (replace(tab2.cells[0], experiment=replace(tab2.cells[0].experiment, method=method)), *tab2.cells[1:])
    assert replace(tab2, cells=cells).hash_of(claim) != tab2.hash_of(claim)


def test_one_claim_a_contrast():
    """Every claim of every item has a date; each contrast has one owner, which alone is in the family."""
    for item in (item for profile in ("demo", "paper") for item in items(["all"], profile)):
        family = family_items(item).claims
        for claim in item.claims:
            place, one = owner(item, claim)
            assert claim.made is not None
            assert owner(place, one) == (place, one)
            assert hash_of(item, claim) in family or claim.endpoint == "arithmetic"
            assert item.contrasts_of(claim) == place.contrasts_of(one)


def test_claims_whose_cells_were_wrong_begin_anew_on_seeds_that_judged_nothing(tmp_path: Path):
    """RSCFed's seeds from 100 and 200 judged cells on another partition, which are items of their own now and keep
    their family's name; the paper's claims begin at 300, and earlier seeds of its cells carry no claims."""
    now, before = items(["rscfed/fig2", "rscfed/fig2-plain"], "laptop")
    assert now.family == before.family == "rscfed laptop"
    assert (now.confirms_from, before.confirms_from) == (300, 100)
    cells = [{cell.cell_key for cell in item.cells} for item in (now, before)]
    assert not cells[0] & cells[1]
    assert {family_of(now, claim, closed(now, tmp_path))[0] for claim in now.claims} == {300}
    run = now.cells[0].experiment
    assert begun_under(run.with_seed(200), tmp_path) == {}
    carried = begun_under(run.with_seed(300), tmp_path)["claims"]["rscfed laptop"]
    hashes = {hash_of(now, claim) for claim in now.claims if claim.endpoint != "arithmetic"}
    assert hashes <= {*carried["main"], *carried["others"]}


def test_a_confirming_seed_of_a_setting_of_one_s_own_judges_nothing(tmp_path):
    """`fssl run --seed=100`: the profile is "custom", which no paper has."""
    own = tiny_experiment().with_seed(100)
    assert own.profile == "custom" and begun_under(own, tmp_path) == {}
    assert families_of(own.cell_key, own.profile, own.seed) == set()
