"""The pairs of `fedswitch/departures`: each differs in its switch alone, and rests on a cell that other items have."""

import re
from dataclasses import replace

import pytest

from benchmark.papers.catalogue import items
from benchmark.papers.fedswitch import prior_of
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES
from benchmark.papers.switches import switches_of
from benchmark.records.run import run
from tests.conftest import ROOT, record_of
from tests.papers.test_ssfl_departures import moved

# What of an experiment a switch moves, by hand; other clients have another beta.
MOVED = {
    "rule": {"method.rule"},
    "always-teacher": {"method.rule"},
    "always-student": {"method.rule"},
    "beta": {"method.beta"},
    "divergence": {"method.divergence"},
    "prediction": {"method.prediction"},
    "counted": {"method.counted"},
    "unsent-teacher": {"method.unsent_teacher"},
    "first-round": {"method.first_round"},
    "local-teacher": {"method.local_ratio"},
    "proximal": {"method.proximal"},
    "evaluated": {"method.evaluated"},
    "server-teacher": {"method.server_teacher"},
    "alpha": {"partition.alpha", "method.beta"},
    "clients-in-turn": {"partition.rule", "method.beta"},
    "labelled-skew": {"data.label_setting", "data.labels_per_client", "data.labelled_share", "method.beta"},
    "server-labels": {"data.N_s", "method.beta"},
}


def departures(profile: str) -> Item:
    (item,) = items(["fedswitch/departures"], profile)
    return item


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pair_differs_in_its_switch_alone(profile):
    item = departures(profile)
    assert [cell.label.split("/")[0] for cell in item.cells][::2] == list(MOVED)
    for name, fields in MOVED.items():
        default, other = (item.cell(f"{name}/{way}").experiment for way in ("default", "other"))
        found = moved(default, other)
        assert found <= fields and (found - {"method.beta"} or name == "beta")
        if "method.beta" in fields and name != "beta":
            assert other.method.beta == prior_of(other)


@pytest.mark.parametrize("profile", PROFILES)
def test_defaults_are_cells_that_are_trained_anyway(profile):
    known = {cell.cell_key for name in ("fig4", "tab2") for cell in items([f"fedswitch/{name}"], profile)[0].cells}
    assert {cell.cell_key for cell in departures(profile).cells if cell.label.endswith("/default")} <= known


def test_as_many_labels_whether_skewed_or_not():
    """50 of a client's 560 images."""
    found = departures("paper").cell("labelled-skew/other").experiment.data
    assert (found.label_setting, found.labelled_share) == ("share", pytest.approx(50 / 560, abs=1e-4))


def test_every_switch_stands_in_the_handwritten_page_at_its_entry():
    text = (ROOT / "reports" / "fedswitch" / "departures.md").read_text()
    entries = dict(re.findall(r"^ ?(\d+)\. (.*?)(?=^ ?\d+\. |\Z)", text, re.DOTALL | re.MULTILINE))
    for switch in switches_of("fedswitch")[0]:
        assert f"(fedswitch/departures: {switch.name})" in entries[str(switch.entry)]
    assert sorted(re.findall(r"fedswitch/departures: ([a-z-]+)\)", text)) == sorted(MOVED)


@pytest.mark.slow
def test_every_way_trains(tmp_path):
    """Three rounds on the demo, each cell once: there is an accuracy, and no switch is refused."""
    for experiment in {cell.cell_key: cell.experiment for cell in departures("demo").cells}.values():
        method = replace(experiment.method, warm_start_rounds=1)
        run(replace(experiment, method=method, federation=replace(experiment.federation, rounds=3)), tmp_path)
    results = list(tmp_path.rglob("result.json"))
    assert len(results) == 22
    for path in results:
        accuracy = record_of(path.parent).selected("test/accuracy")
        assert accuracy is not None and 0.0 < accuracy <= 1.0
