"""The cells and claims of every item are what they were when the committed records were made.

A digest is of all labels, roles and cell keys of a paper's items under a profile, and of its claims' hashes. Where one
changes, records of those cells no longer count, or confirming seeds no longer judge. Then `NUMERICS` of
benchmark/experiment.py is what has to move, or the change has to be undone. A further item, and a stand-in that is
chosen anew, have another digest.
"""

import hashlib

import pytest

from benchmark.experiment import from_json, from_record
from benchmark.papers.catalogue import ITEMS, VARIANTS, items, profiles
from benchmark.papers.scale import PROFILES
from benchmark.records.copies import read_copy
from tests.conftest import ROOT

# demo, laptop, gpu, paper; "-": the runs are those of a smaller profile. Of `-printed`, `-plain`: the variants.
DIGESTS = {
    "ssfl": "3961140097b3 0a9dd9f1a8af 53e4d8b69ac9 be3e4b4f511a",
    "semifl": "e91f9a9ccf2a c62d92873c98 79abe620b83a 0bed19a6fa0b",
    "rscfed": "bb1107eead23 f52b3f317f0a 4445420b31ed 6fb665904f17",
    "fedswitch": "9165482433bc efae6052e15b 070a2a721c8f 92039fa2ad6e",
    "sage": "2881a94ac635 469b90ac47a6 847326113ff7 91cdb17541ff",
    "arena": "f54d618fe189 e39f7b04082c 38046a9d984d -",
    "ssfl-printed": "- - 992a2598fbf8 141e783b6eea",
    "rscfed-plain": "6bd4ef03d4d7 f3cd5830a878 f753a9c89f65 c658a0408af8",
}


def digest(names: list[str], profile: str) -> str:
    """Of these items, whatever the order of their cells and claims."""
    built = [items([name], profile)[0] for name in names if profile in profiles(name)]
    cells = [f"{item.name} {cell.label} {cell.role} {cell.cell_key}" for item in built for cell in item.cells]
    claims = [f"{item.name} {claim.name} {item.hash_of(claim)}" for item in built for claim in item.claims]
    return hashlib.sha256("\n".join(sorted(cells + claims)).encode()).hexdigest()[:12] if built else "-"


def part_of(name: str) -> str:
    """The line of `DIGESTS` that holds an item: its paper, and the variant."""
    return name.partition("/")[0] + next((end for end in ("-printed", "-plain") if name.endswith(end)), "")


@pytest.mark.parametrize("part", DIGESTS)
def test_labels_keys_and_claims_stay(part):
    names = [name for name in (*ITEMS, *VARIANTS) if part_of(name) == part]
    assert " ".join(digest(names, profile) for profile in PROFILES) == DIGESTS[part]


def test_every_item_is_held():
    assert set(DIGESTS) == set(map(part_of, (*ITEMS, *VARIANTS)))


def test_what_rscfed_was_is_kept_under_another_name():
    """And nothing of it is what RSCFed is now, but for the plain partition's switch."""
    for name in (name for name in ITEMS if name.startswith("rscfed/")):
        plain, now = items([f"{name}-plain", name], "laptop")
        keys = {cell.cell_key for cell in plain.cells}
        shared = {cell.label for cell in now.cells if cell.cell_key in keys}
        assert shared == ({"partition/other"} if name == "rscfed/departures" else set())
        assert "plain Dirichlet partition: the suite's until 2026-11" in plain.title
        assert any(f"{name}-plain" in note for note in now.notes) and plain.seeds == now.seeds


def test_plain_items_are_asked_for_by_name():
    for asked in ("rscfed", "all"):
        assert not [item.name for item in items([asked], "laptop") if item.name.endswith("-plain")]


def test_old_records_of_fedirm_are_read_as_they_were_made():
    """Their method lacks the fields that came later; a configuration that lacks them has FedIRM as released."""
    key = items(["rscfed/fig2-plain"], "laptop")[0].cell("FedIRM (weight adju.)").cell_key
    path = next((ROOT / "results" / "reference" / key).iterdir())
    written = read_copy(path).experiment
    assert not {"asked", "ramp_from", "smoothing", "labelled_views", "relation_weight"} & written["method"].keys()
    assert from_record(written).cell_key == key != from_json(written).cell_key
    assert from_json(written).method.asked == "student"


def test_the_committed_records_are_those_of_the_items():
    (item,) = items(["ssfl/tabd1"], "laptop")
    keys = {cell.cell_key for cell in item.cells if cell.role != "bound"}
    assert keys <= {path.name for path in (ROOT / "results" / "reference").iterdir()}
