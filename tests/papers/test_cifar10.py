"""Items in the reduced setting on CIFAR-10: the same table on different data, with claims of their own family."""

import pytest

from benchmark.errors import ConfigError
from benchmark.papers.item import CONFIRMING
from benchmark.papers.items import ITEMS, VARIANT_OF, base_of, items, profiles
from benchmark.verdicts.families import families_at
from tests.papers.conftest import item_of

NAMES = [name for name, variant in VARIANT_OF.items() if variant.is_further_setting]


def test_only_a_further_reduced_setting_has_a_base():
    assert NAMES
    for name in (*ITEMS, *VARIANT_OF):
        assert bool(base_of(name)) == (name in NAMES)
    assert base_of("ssfl/tab2-cifar10") == "ssfl/tab2"


@pytest.mark.parametrize("name", NAMES)
def test_the_cells_are_those_of_the_table_on_other_data(name):
    (here,), (base,) = items([name], "laptop"), items([base_of(name)], "laptop")
    labels = {cell.label.partition("/")[2] if "MNIST" in cell.label else cell.label for cell in base.cells}
    assert {cell.label.removeprefix("CIFAR-10/") for cell in here.cells} == labels
    keys = {cell.cell_key for cell in here.cells}
    assert not any(cell.cell_key in keys for cell in base.cells)
    assert {cell.experiment.data.name for cell in here.cells} == {"cifar10"}
    assert all(cell.experiment.data.N_validation >= 1000 for cell in here.cells)
    assert "CIFAR-10" in here.title and any(name in note for note in base.notes)


@pytest.mark.parametrize("name", NAMES)
def test_the_claims_are_those_of_the_table_that_are_not_withdrawn(name):
    (here,), (base,) = items([name], "laptop"), items([base_of(name)], "laptop")
    kept = [claim for claim in base.claims if not claim.withdrawn]
    expected = [(claim.quote, claim.form, claim.least, claim.main) for claim in kept]
    assert [(claim.quote, claim.form, claim.least, claim.main) for claim in here.claims] == expected
    hashes = {here.hash_of(claim) for claim in here.claims}
    assert not any(base.hash_of(claim) in hashes for claim in base.claims)
    assert not any(claim.withdrawn or claim.replaces for claim in here.claims)


@pytest.mark.parametrize("paper", sorted({name.partition("/")[0] for name in NAMES}))
def test_they_form_one_family_whose_first_block_is_unused(paper):
    families = families_at(paper, "laptop")
    (name,) = {(name, first) for name, first in families if name.endswith("-cifar10 laptop")}
    own = families[name]
    assert name[1] == CONFIRMING.start and own.claims.main
    others = [family for other, family in families.items() if other != name]
    assert not any(own.keys & family.keys for family in others)


@pytest.mark.parametrize("name", NAMES)
def test_they_exist_at_laptop_and_are_selected_only_by_name(name):
    assert profiles(name) == ("laptop",)
    assert name not in {item.name for item in items([name.partition("/")[0]], "laptop")}
    with pytest.raises(ConfigError, match="--profile laptop"):
        items([name], "gpu")
    assert item_of(name, "laptop").name == name
