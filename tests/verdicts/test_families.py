"""Families of claims: what a confirming run carries, and where later claims are judged."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.papers.item import ClaimFamily, Item
from benchmark.papers.items import items
from benchmark.records.copies import read_copy
from benchmark.records.record import run_folder
from benchmark.verdicts.families import (
    begun_under,
    closed,
    declared_family,
    families_in,
    family_names_of_run,
    hash_of,
    judging_family,
    owner,
)
from sweeps.plan import Seeds, plan, wanted
from tests.conftest import ROOT, tiny_experiment


@pytest.fixture
def tab2() -> Item:
    return items(["ssfl/tab2"], "demo")[0]


def begin(results: Path, item: Item, seed: int, claims: ClaimFamily) -> None:
    """Write the manifest of a run of the item's first cell."""
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
    few = ClaimFamily(others=tuple(everything["others"][:3]))
    begin(tmp_path, tab2, 103, few)
    other = items(["ssfl/tab4"], "demo")[0].cells[-1].experiment
    carried = begun_under(other.with_seed(100), tmp_path)["claims"]
    assert carried["ssfl demo"] == {"main": [], "others": list(few.others)}


def test_a_later_claim_is_judged_by_the_next_seed_block(tmp_path: Path, tab2: Item):
    """Seeds 100 to 199 were begun without the first claim: its two cells run from 200 on, all others from 100."""
    late, *known = (hash_of(tab2, claim) for claim in tab2.claims)
    begin(tmp_path, tab2, 100, ClaimFamily(others=tuple(known)))
    firsts = [judging_family(tab2, claim, closed(tab2, tmp_path))[0].first for claim in tab2.claims[:2]]
    assert firsts == [200, 100]
    run = tab2.cells[0].experiment
    carried = begun_under(run.with_seed(205), tmp_path)["claims"]["ssfl demo"]
    assert late in (*carried["main"], *carried["others"]) and not set(known) & {*carried["main"], *carried["others"]}
    asked = wanted(plan([tab2], tmp_path).items, Seeds(confirming=2))
    later = {tab2.cell(label).cell_key for label in tab2.claims[0].labels}
    all_asked = {run.cell_key for run in asked}
    assert {run.seed for run in asked} == {100, 101, 200, 201}
    assert later <= {run.cell_key for run in asked if run.seed == 200} < all_asked


def test_a_claim_that_is_counted_asks_for_no_seeds_of_its_own():
    """No family has it: each seed block that it was given would be closed without it."""
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
        family = declared_family(item).claims
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
    cells_before = {cell.cell_key for cell in before.cells}
    assert not any(cell.cell_key in cells_before for cell in now.cells)
    firsts = {claim.name: judging_family(now, claim, closed(now, tmp_path))[0].first for claim in now.claims}
    assert firsts == {claim.name: 400 if claim.replaces else 300 for claim in now.claims}
    run = now.cells[0].experiment
    assert begun_under(run.with_seed(200), tmp_path) == {}
    carried = begun_under(run.with_seed(300), tmp_path)["claims"]["rscfed laptop"]
    judged = (claim for claim in now.claims if claim.endpoint != "arithmetic" and not claim.replaces)
    assert {hash_of(now, claim) for claim in judged} <= {*carried["main"], *carried["others"]}


REPLACED = [
    ("sage/tab1", "SAGE needs less than three quarters of FixMatch-GPL's rounds", 100),
    ("rscfed/fig2", "Better than Fed-Consist with adjusted weights", 300),
]


@pytest.mark.parametrize(("name", "old", "first"), REPLACED)
def test_a_judged_claim_is_replaced_by_one_of_its_own_on_a_later_seed_block(name, old, first):
    """The old claim keeps its block and family; the new one has another hash, and half the error or less. All runs that
    judge the new one began when it was registered."""
    item = items([name], "laptop")[0]
    before = next(claim for claim in item.claims if claim.name == old)
    after = next(claim for claim in item.claims if claim.replaces == old)
    families = closed(item, ROOT / "results")
    assert before.withdrawn and hash_of(item, before) in families[first]
    assert hash_of(item, after) != hash_of(item, before) and owner(item, after) == (item, after)
    block, family = judging_family(item, after, families)
    assert block.first > first and hash_of(item, after) in family
    for label in after.labels:
        for path in copies(item.cell(label).cell_key, block.first):
            assert any(hash_of(item, after) in judged for judged in families_in(read_copy(path).manifest).values())


def copies(cell_key: str, first: int) -> list[Path]:
    """Return the committed copies of a cell on a seed block."""
    return list((ROOT / "results" / "reference" / cell_key).glob(f"seed={first // 100}??.json.gz"))


def test_a_withdrawn_setting_gets_no_new_claims():
    """The plain partition's cells have the claims that their runs judged."""
    plain = items(["rscfed/fig2-plain"], "laptop")[0]
    assert plain.claims and not [claim for claim in plain.claims if claim.replaces]


def test_no_main_claim_waits_for_a_withdrawn_one():
    """A family that no run has closed yet judges its withdrawn primary claims last."""
    for profile in ("demo", "gpu", "paper"):
        for name in ("sage/tab1", "rscfed/fig2"):
            item = items([name], profile)[0]
            withdrawn = {hash_of(item, claim) for claim in item.claims if claim.withdrawn}
            main = declared_family(item).claims.main
            is_withdrawn = [claim in withdrawn for claim in main]
            assert is_withdrawn == sorted(is_withdrawn)


def test_a_confirming_seed_of_a_setting_of_one_s_own_judges_nothing(tmp_path):
    """`fssl run --seed=100`: the profile is "custom", which no paper has."""
    own = tiny_experiment().with_seed(100)
    assert own.profile == "custom" and begun_under(own, tmp_path) == {}
    assert family_names_of_run(own.cell_key, own.profile, own.seed) == set()
