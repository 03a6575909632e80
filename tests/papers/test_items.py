"""All items under all profiles: what they were when the committed records were made, and whole in themselves.

A digest is of all labels, roles and cell keys of a paper's items under a profile, and of its claims' hashes. Where one
changes, records of those cells no longer count, or confirming seeds no longer judge. Then `NUMERICS` of
benchmark/experiment.py is what has to move, or the change has to be undone. A further item, and a stand-in that is
chosen anew, have another digest.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from benchmark.experiment import Experiment, from_json, from_record
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.semifl import SemiFL
from benchmark.papers.item import Cell
from benchmark.papers.items import ITEMS, OURS, VARIANTS, items, profiles
from benchmark.papers.paper import FACTORS
from benchmark.papers.published import read_published
from benchmark.papers.scale import PROFILES
from benchmark.records.copies import read_copy
from benchmark.verdicts.metrics import DERIVED
from tests.conftest import ROOT
from tests.papers.conftest import item_of

# demo, laptop, gpu, paper; "-": the runs are those of a smaller profile. Of `-printed` and so on: the variants.
DIGESTS = {
    "ssfl": "aa35cc3cabec 106488c27325 0e8ec5c729a7 57738ad5db39",
    "semifl": "b6648674bc98 0c5464bc4f6d 1a5ea7325f08 b04d73f2d66a",
    "rscfed": "409ec616c91c 9459772232f7 40370cf7c8b3 ec269ac4a6cd",
    "fedswitch": "4ff1bb317e72 d6cf61936d5b b77a03b274f6 67c404703b83",
    "sage": "16f115e9de37 8168fcc37aa2 ae85e0171fae e89ebe4f8660",
    "arena": "ce4f39c015fc 8c0b44caa651 cf264f7c19d2 -",
    "ssfl-printed": "- - a1d39a9c8175 4c3a42260522",
    "ssfl-cifar10": "- aa2bf35bca48 - -",
    "sage-cifar10": "- 608fb0258be1 - -",
    "rscfed-plain": "6bd4ef03d4d7 f3cd5830a878 f753a9c89f65 c658a0408af8",
}
NAMES = (*ITEMS, *VARIANTS)


def digest(names: list[str], profile: str) -> str:
    """Hash these items, whatever the order of their cells and claims."""
    built = [item_of(name, profile) for name in names if profile in profiles(name)]
    cells = [f"{item.name} {cell.label} {cell.role} {cell.cell_key}" for item in built for cell in item.cells]
    claims = [f"{item.name} {claim.name} {item.hash_of(claim)}" for item in built for claim in item.claims]
    return hashlib.sha256("\n".join(sorted(cells + claims)).encode()).hexdigest()[:12] if built else "-"


def part_of(name: str) -> str:
    """Return the line of `DIGESTS` that has an item: its paper, and the variant."""
    return name.partition("/")[0] + next((end for end in ("-printed", "-plain", "-cifar10") if name.endswith(end)), "")


@pytest.mark.parametrize("part", sorted({*DIGESTS, *map(part_of, NAMES)}))
def test_labels_keys_and_claims_stay(part):
    names = [name for name in NAMES if part_of(name) == part]
    assert " ".join(digest(names, profile) for profile in PROFILES) == DIGESTS[part]


def test_old_records_of_fedirm_are_read_as_they_were_made():
    """Their method lacks the fields that came later; a configuration that lacks them has FedIRM as released."""
    key = item_of("rscfed/fig2-plain", "laptop").cell("FedIRM (weight adju.)").cell_key
    path = next((ROOT / "results" / "reference" / key).iterdir())
    written = read_copy(path).experiment
    assert not {"asked", "ramp_from", "smoothing", "labelled_views", "relation_weight"} & written["method"].keys()
    assert from_record(written).cell_key == key != from_json(written).cell_key
    assert from_json(written).method.asked == "student"


def test_variants_and_questions_of_ours_are_asked_for_by_name():
    assert {item.name for item in items(["all"], "demo")} == set(ITEMS) >= OURS
    assert not OURS & {item.name for item in items(["ssfl", "rscfed"], "demo")}
    for name, suffix, words in (
        ("ssfl/tab2", "-printed", "as in the paper"),
        ("rscfed/tab1", "-plain", "plain Dirichlet"),
    ):
        assert words in item_of(name + suffix).title
        assert any(f"{name}{suffix}" in note for note in item_of(name).notes)


DIFFERENCES = ("pseudo/kl_log_ratio", "pseudo/kl_gap")  # 0 where two things are the same, in a single cell


@pytest.mark.parametrize("profile", PROFILES)
def test_claims_are_on_what_there_is(profile):
    """Coefficients sum to zero, unless the metric is a difference itself or claims hold rounds against a share of
    another cell's; what is counted speaks of what cells have or runs hand over; cells elsewhere exist."""
    every = {item.name: item for item in items(ITEMS, profile)}
    for item in every.values():
        labels = [cell.label for cell in item.cells]
        assert len(set(labels)) == len(labels), item.name
        assert {cell.experiment.profile for cell in item.cells} == {item.profile}, item.name
        for claim in item.claims:
            assert claim.labels and set(claim.labels) <= set(labels), item.name
            absolute = claim.metric in DIFFERENCES or claim.endpoint == "reached"
            for contrast in claim.contrasts:
                assert absolute or sum(contrast.values()) == pytest.approx(0.0), (item.name, claim.name)
            if claim.endpoint == "arithmetic" and claim.metric not in DERIVED:
                assert all(claim.metric in item.cell(label).computed for label in claim.labels), (item.name, claim.name)
            for place in claim.elsewhere:
                assert place.contrasts_in(cell.label for cell in every[place.item].cells), place
                assert sum(place.contrast.values()) == pytest.approx(0.0)


def objective(e: Experiment) -> str:
    """Return what the clients learn from, in the words of SSFL's Table F.1."""
    return "supervised" if e.data.label_setting == "everywhere" else "unlabelled"


# What a row or column says besides `FACTORS`, read from what runs.
RUNS: dict[str, Callable[[Experiment], object]] = {
    "alpha": lambda e: vars(e.partition)["alpha"],
    "beta_g": lambda e: e.method.server_momentum,
    "mixup": lambda e: "yes" if e.method.mix_weight else "no",
    "sBN": lambda e: e.method.statistics.replace("_", " "),
    "training": lambda e: e.method.training.capitalize() if isinstance(e.method, SemiFL) else objective(e),
    "normalization": lambda e: {"sbn": "sBN", "gn": "GN", "in": "IN", "ln": "LN"}[e.model.norm],
    "M": lambda e: e.method.M,
    "K_subset": lambda e: e.method.subset,
    "clients": lambda e: e.method.M * e.method.subset if isinstance(e.method, RSCFed) else e.federation.C,
    "share": lambda e: e.method.labelled_share,
}


def has(line: Mapping[str, Any], said: Mapping[str, Any], cell: Cell) -> bool:
    """Tell whether the published line has the values that the table shows, or those beside its published number."""
    return all(line[key] in (value, cell.published_setting.get(key)) for key, value in said.items())


@pytest.mark.parametrize("profile", PROFILES)
def test_every_factor_that_is_shown_is_the_one_that_runs(profile):
    """And where the print has another, the published number says it: 200 rounds of FedMatch, of which 600 run."""
    for name in (name for name in ITEMS if not name.startswith("arena/") and not name.endswith("/departures")):
        lines = read_published(name).cells
        for cell in (cell for cell in item_of(name, profile).cells if cell.role in ("published", "quoted")):
            said = {key: value for key, value in cell.setting.items() if key in RUNS or key in FACTORS}
            runs = {key: RUNS[key](cell.experiment) for key in said if key in RUNS}
            assert said == {**said, **runs}, (name, cell.label)
            printed = [line for line in lines if line["method"] == cell.setting["method"]]
            assert any(has(line, said, cell) for line in printed), (name, cell.label)
