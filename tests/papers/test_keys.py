"""The cells of every item are what they were when the committed records were made.

A digest is of all labels and cell keys of an item under a profile. Where one changes, the records of those cells no
longer count: then `NUMERICS` of benchmark/experiment.py is what has to move, or the change has to be undone.
"""

import hashlib
from collections.abc import Iterable

import pytest

from benchmark.experiment import from_json, from_record
from benchmark.papers.catalogue import ITEMS, VARIANTS, items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES
from benchmark.records.copies import read_copy
from tests.conftest import ROOT

# demo, laptop, gpu, paper. Stand-ins of SemiFL, RSCFed and FedSwitch may still be chosen anew.
DIGESTS = {
    "ssfl/tab2": "e584796e9900 11e980694ca2 55e28861257a c394a4cbfed2",
    "ssfl/tab1": "d8d6b250efaf 4d9ce17a31f8 9a789a498d4f 7e3350edddf0",
    "ssfl/tab3": "6984cda1ccd6 51cb9c461698 5c66519a83da d9f064a8dd6a",
    "ssfl/tab4": "d60b8c91afc2 3d47689bbff2 c7f1514c0ce1 5ef31e4b3912",
    "ssfl/tab5": "b2deeca5ad8e 8f1b52c2e121 619f7769863f cdef6725d964",
    "ssfl/tabd1": "48bb1bc9ce7a c8b767c8ea35 fba36ecbddfc d936691a177a",
    "ssfl/tabe1": "cc347abb67a3 7de6dbab9728 6c9c014b31d8 efbca17e60cb",
    "ssfl/tabf1": "d60a69e8313e e31e59531951 b6214434a49d fe113d9668d0",
    "ssfl/tabg1": "6547ae3284be 1d2ee7b62392 8c4719834077 6ea313abe39d",
    "ssfl/tabh1": "b55a090c53bb 95f429d92886 c2e61c6f0835 53c9fa7588ce",
    "ssfl/tabi1": "77c10b129e2d 33e6966606b4 cc6906bf3579 74b610da9b44",
    "ssfl/tabj1": "e6d7dc4fc02e 50dc8f006ac0 22df8d447b2d 42ee83d42418",
    "ssfl/fig2": "bb03bfa06d4c 162ed90d8468 584793c4d031 9c50f079e36f",
    "ssfl/fig3": "0285a0f92b4f f000d702fec5 b6d65fe5d7a3 fb0efafd3ae2",
    "ssfl/fig4": "7b1b63c25af4 c32f999579b0 9e9f710dadbe 5b704706a3e6",
    "ssfl/fig5_left": "f199de3954e2 b9adef0cc11c 304c743e1581 3b7a91a5820f",
    "ssfl/fig5_middle": "77c6d197df1a 1fde655114bb 531b1feb4650 252ee9796a9f",
    "ssfl/fig5_right": "545ce11466e7 adf0d012b105 f597cca85abd 88676604fabd",
    "ssfl/figb1": "d4c3879352bf fe538e727c54 6c4556bd895c 1b3162b5fec8",
    "ssfl/figc1": "4c8b60317d25 9afa0cfcc9c0 29ed10352e83 9aee0d9e34d4",
    "ssfl/fig6": "a6dece65adc5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd1": "a6dece65adc5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd2": "a6dece65adc5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd3": "a6dece65adc5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "ssfl/figd4": "a6dece65adc5 b32c93087943 d0d2a6879985 b5d62af098ba",
    "arena/clients": "59bc1c959e4a b26f7d9f1042 b26f7d9f1042 b26f7d9f1042",
    "arena/digits": "1df015aef2dd 2c5e31523aa7 2c5e31523aa7 2c5e31523aa7",
    "arena/mnist": "ba9308044163 ba9308044163 ba9308044163 ba9308044163",
    "arena/cifar10": "6b6047f473de 6b6047f473de b032c2aff9ad b032c2aff9ad",
    "arena/alpha": "15ec738166f1 ca3cdcd0cbb6 ca3cdcd0cbb6 ca3cdcd0cbb6",
    "ssfl/departures": "f3640dda0cc6 0f4b455e85b7 034fdec24055 603d96b07b00",
}
# RSCFed's as they were until 2026-11-25, with the hashes of their claims; now they are items of their own, by the same
# labels, keys and hashes: "rscfed/fig2-plain".
PLAIN = {
    "rscfed/tab1": "5e52077ec474 e020bc001c14 b429e6841c35 4603727bd429",
    "rscfed/tab2": "2bd63373c0ca 84c578332950 30f3f5f5663e 343c27618240",
    "rscfed/tab3": "b9db5022aa9f 483a02a1c735 2e8c5918825d a58e094a8b33",
    "rscfed/tab4": "63592dc76dbe ce8a4a2b4d49 d3cb33fd2e4c cfa7af14406f",
    "rscfed/tab5": "771ca5a96f7a 2b6e9070a6a6 19afa7415280 dca85b598391",
    "rscfed/tab6": "76a90981c880 e39589c8b495 2ccc907c6314 96e79c90def1",
    "rscfed/tab7": "3c06e787460b 6dcdbf45df17 5c0dae1b3d1b 67f8928570ad",
    "rscfed/fig2": "e0ac3716cce3 5796d43242bf 36136fd63013 2f8f55c1e152",
    "rscfed/weights": "465021e55010 6727e3177bbb 2999538ac035 01569a3b6d4c",
    "rscfed/departures": "dd67db2b861a 424d4fd5308e 7b40c9db61a9 c768d9b3ce0d",
}
LATER = ("distances-released", "distances-printed", "irm-no-relations")  # switches that it did not have


def digest(pairs: Iterable[tuple[str, str]]) -> str:
    text = "".join(f"{label}={key};" for label, key in pairs)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def keys_of(item: Item) -> list[tuple[str, str]]:
    return sorted((cell.label, cell.cell_key) for cell in item.cells)


@pytest.mark.parametrize("name", DIGESTS)
def test_labels_and_keys_stay(name):
    assert " ".join(digest(keys_of(items([name], profile)[0])) for profile in PROFILES) == DIGESTS[name]


@pytest.mark.parametrize("name", PLAIN)
def test_what_rscfed_was_is_kept_under_another_name(name):
    """And nothing of it is what RSCFed is now, but for the plain partition's switch."""
    digests = []
    for profile in PROFILES:
        plain, now = items([f"{name}-plain", name], profile)
        claims = sorted((claim.name, plain.hash_of(claim)) for claim in plain.claims)
        keys = [pair for pair in keys_of(plain) if not pair[0].startswith(LATER)]
        digests.append(digest([*keys, *claims]))
        shared = {cell.label for cell in now.cells if cell.cell_key in {key for _, key in keys_of(plain)}}
        assert shared == ({"partition/other"} if name == "rscfed/departures" else set())
        assert "plain Dirichlet partition: the suite's until 2026-11" in plain.title and not set(claims) & {
            (claim.name, now.hash_of(claim)) for claim in now.claims if claim.endpoint != "arithmetic"
        }
        assert any(f"{name}-plain" in note for note in now.notes) and plain.seeds == now.seeds
    assert " ".join(digests) == PLAIN[name]


def test_plain_items_are_asked_for_by_name():
    for asked in ("rscfed", "all"):
        assert not [item.name for item in items([asked], "laptop") if item.name.endswith("-plain")]
    assert {name for name in VARIANTS if name.startswith("rscfed/")} == {f"{name}-plain" for name in PLAIN}


def test_old_records_of_fedirm_are_read_as_they_were_made():
    """Their method lacks the fields that came later; a configuration that lacks them has FedIRM as released."""
    key = items(["rscfed/fig2-plain"], "laptop")[0].cell("FedIRM (weight adju.)").cell_key
    path = next((ROOT / "results" / "reference" / key).iterdir())
    written = read_copy(path).experiment
    assert not {"asked", "ramp_from", "smoothing", "labelled_views", "relation_weight"} & written["method"].keys()
    assert from_record(written).cell_key == key != from_json(written).cell_key
    assert from_json(written).method.asked == "student"


def test_every_item_of_ssfl_and_the_arena_is_held():
    assert set(DIGESTS) == {name for name in ITEMS if name.startswith(("ssfl/", "arena/"))}


def test_the_committed_records_are_those_of_the_items():
    (item,) = items(["ssfl/tabd1"], "laptop")
    keys = {cell.cell_key for cell in item.cells if cell.role != "bound"}
    assert keys <= {path.name for path in (ROOT / "results" / "reference").iterdir()}
