"""The pairs of `rscfed/departures`: each differs in its switch alone, and rests on a cell that other items have."""

import re
from dataclasses import replace

import pytest

from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES
from benchmark.papers.switches import switches_of
from benchmark.records.run import run
from tests.conftest import ROOT
from tests.papers.test_ssfl_departures import moved

# What of an experiment a switch moves, by hand. One beta for all: the other one is back at its default.
MOVED = {
    "weight-per-round": {"method.labelled_weight"},
    "weight-per-subset": {"method.labelled_weight"},
    "beta-rule": {"method.beta_rule", "method.beta_labelled"},
    "distance": {"method.distance"},
    "drawn-twice": {"method.drawn_twice"},
    "teacher-speed": {"method.ema_warm_up"},
    "teacher-start": {"method.teacher_start"},
    "lambda-u": {"method.unlabelled_weight"},
    "warm-start": {"method.warm_start_rounds"},
    "labelled-choice": {"data.labelled_choice"},
    "equally": {"method.weighting"},
    "momentum": {"method.momentum"},
    "clipping": {"optimizer.clip"},
    "view": {"data.augmentation.weak.enlarge"},
    "irm-uncertainty": {"method.uncertainty"},
    "irm-confidence": {"method.least_confidence"},
    "irm-ramp": {"method.ramp_rounds"},
    "irm-lambda": {"method.unlabelled_weight"},
}


def departures(profile: str) -> Item:
    (item,) = items(["rscfed/departures"], profile)
    return item


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pair_differs_in_its_switch_alone(profile):
    item = departures(profile)
    assert [cell.label.split("/")[0] for cell in item.cells][::2] == list(MOVED)
    for name, fields in MOVED.items():
        default, other = (item.cell(f"{name}/{way}").experiment for way in ("default", "other"))
        found = moved(default, other)
        assert found and found <= fields


@pytest.mark.parametrize("profile", PROFILES)
def test_defaults_are_cells_that_are_trained_anyway(profile):
    """But for the view of the demo, whose digits are padded."""
    known = {cell.cell_key for name in ("tab7", "fig2") for cell in items([f"rscfed/{name}"], profile)[0].cells}
    default = {cell.label: cell.cell_key for cell in departures(profile).cells if cell.label.endswith("/default")}
    assert {label for label, key in default.items() if key not in known} == (
        {"view/default"} if profile == "demo" else set()
    )


def test_every_switch_stands_in_the_handwritten_page_at_its_entry():
    text = (ROOT / "reports" / "rscfed" / "departures.md").read_text()
    entries = dict(re.findall(r"^ ?(\d+)\. (.*?)(?=^ ?\d+\. |\Z)", text, re.DOTALL | re.MULTILINE))
    for switch in switches_of("rscfed")[0]:
        assert f"(rscfed/departures: {switch.name})" in entries[str(switch.entry)]
    assert sorted(re.findall(r"rscfed/departures: ([a-z-]+)\)", text)) == sorted(MOVED)


def test_every_way_trains(tmp_path):
    """Three rounds on the demo, each cell once: there is an accuracy, and no switch is refused."""
    cells = {cell.cell_key: cell.experiment for cell in departures("demo").cells}
    for experiment in cells.values():
        warm = min(1, experiment.method.warm_start_rounds)
        method = replace(experiment.method, warm_start_rounds=warm)
        run(replace(experiment, method=method, federation=replace(experiment.federation, rounds=3)), tmp_path)
    assert len(list(tmp_path.rglob("result.json"))) == len(cells)
