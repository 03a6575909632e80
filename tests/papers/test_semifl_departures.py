"""The pairs of `semifl/departures`: each differs in its switch alone, and the page names each of them."""

import re

import pytest

from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES, REDUCED
from tests.conftest import ROOT
from tests.papers.test_ssfl_departures import moved

# What of an experiment a switch moves, by hand; strong views are another kind in the demo.
MOVED = {
    "mix-source": {"method.mix_source"},
    "nothing-below": {"method.nothing_below"},
    "order": {"method.order"},
    "momentum": {"method.momentum"},
    "clip": {"optimizer.clip"},
    "moments": {"method.moments"},
    "statistics": {"method.statistics"},
    "inactive": {"method.statistics"},
    "server-epochs": {"method.server_epochs_each"},
    "augmentation": {"data.augmentation.strong"},
    "warm-start": {"method.warm_start_rounds"},
}


def departures(profile: str) -> Item:
    (item,) = items(["semifl/departures"], profile)
    return item


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pair_differs_in_its_switch_alone(profile):
    """At the paper's own scale there is no warm start and the released pool is the default: no pair."""
    item = departures(profile)
    names = [name for name in MOVED if profile in REDUCED or name not in ("augmentation", "warm-start")]
    assert [cell.label.split("/")[0] for cell in item.cells][::2] == names
    trained = {cell.cell_key for cell in items(["semifl/tab4"], profile)[0].cells}
    for name in names:
        default, other = (item.cell(f"{name}/{way}").experiment for way in ("default", "other"))
        (path,) = MOVED[name]
        found = moved(default, other)
        assert found and all(field == path or field.startswith(f"{path}.") for field in found)
        assert default.cell_key in trained


def test_the_page_names_every_pair_and_no_other():
    page = (ROOT / "reports" / "semifl" / "departures.md").read_text()
    assert set(re.findall(r"\(semifl/departures: ([\w-]+)\)", page)) == set(MOVED)
    entries = {
        int(number): text for number, text in re.findall(r"^ ?(\d+)\. (.*?)(?=^ ?\d+\. |^## |\Z)", page, re.M | re.S)
    }
    for cell in departures("laptop").cells:
        number = int(cell.note.rsplit(" ", 1)[1])
        assert f"(semifl/departures: {cell.label.split('/')[0]})" in entries[number]
