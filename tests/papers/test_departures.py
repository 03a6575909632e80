"""The pairs of `PAPER/departures`: each differs in its switch alone, and rests on a cell that other items have."""

import json
import re
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, to_json
from benchmark.federated.divergence import first_not_finite
from benchmark.papers import catalogue, fedswitch, switches
from benchmark.papers.catalogue import ITEMS, OURS, items
from benchmark.papers.fedswitch import prior_of
from benchmark.papers.item import Item
from benchmark.papers.scale import FULL_SIZE, PROFILES, REDUCED, with_fields
from benchmark.papers.switches import Switch, switches_of
from tests.conftest import ROOT
from tests.federated.helpers import module_of
from tests.papers.conftest import item_of

# What a named change of a paper moves, by hand. A field with others below it moves as a whole; other clients have
# another beta of FedSwitch.
CHANGES = {
    "printed_schedule": {"optimizer.schedule"},
    "released_schedule": {"optimizer.schedule"},
    "skewed_labels": {"data.label_setting", "data.labels_per_client", "data.labelled_share", "method.beta"},
    "more_labels": {"data.N_s", "method.beta"},
    "found_values": set(fedswitch.FOUND),
}
# A cell instead of a change: SSFL's control, and another method.
INSTEAD = {
    "tab2: Control/full": {"method.averaging.server_weight"},
    "tab1: {data}/FixMatch-LPL/alpha=0.1": {"method"},
}
PAPERS = ("ssfl", "semifl", "rscfed", "fedswitch", "sage")
# Where the profile's own way is the paper's, there is no pair.
ABSENT = {"ssfl": {"warm-start"}, "semifl": {"augmentation", "warm-start"}}
# Items whose cells the defaults are, and defaults of their own: SSFL's Figure 2 has other data or another length.
BASES = {
    "ssfl": ("tab2", "fig2", "tabh1"),
    "semifl": ("tab4", "tab3", "tab1"),
    "rscfed": ("tab7", "fig2", "tab1"),
    "fedswitch": ("fig4", "tab2", "tab3"),
    "sage": ("tab1",),
}
OWN = {
    "ssfl": {"schedule", "bn-statistics", "pseudo-label-mode", "views"},
    "semifl": {"flfl-perturbed-constant"},
    "rscfed": {"irm-ramp", "distances-printed"},
    "fedswitch": {"fedmatch-helpers-released"},
}
PAPERS_AND_PROFILES = [(paper, profile) for paper in PAPERS for profile in PROFILES]


def departures(paper: str, profile: str) -> Item:
    return item_of(f"{paper}/departures", profile)


def flat(entries: object, above: str = "") -> dict[str, object]:
    if not isinstance(entries, dict):
        return {above: entries}
    return {k: v for key, value in entries.items() for k, v in flat(value, f"{above}.{key}".lstrip(".")).items()}


def moved(default: Experiment, other: Experiment) -> set[str]:
    a, b = flat(to_json(default)), flat(to_json(other))
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def fields_of(switch: Switch) -> set[str]:
    """What a switch says that it moves."""
    ways = (switch.default, switch.other)
    named = [CHANGES[way] if isinstance(way, str) else way.keys() for way in ways]
    follows = {"method.beta"} if any(name.startswith("partition.") for name in {*named[0], *named[1]}) else set()
    return {*named[0], *named[1], *follows, *INSTEAD.get(switch.instead or "", ())}


@pytest.mark.parametrize(("paper", "profile"), PAPERS_AND_PROFILES)
def test_a_pair_differs_in_its_switch_alone(paper, profile):
    item = departures(paper, profile)
    absent = ABSENT.get(paper, set()) if profile in FULL_SIZE else set()
    switches = {switch.name: switch for switch in switches_of(paper)[0] if switch.name not in absent}
    assert {cell.label.split("/")[0] for cell in item.cells} == switches.keys()
    for name, switch in switches.items():
        default, other = (item.cell(f"{name}/{way}").experiment for way in ("default", "other"))
        changed, fields = moved(default, other), fields_of(switch)
        assert changed and all(any(f"{key}.".startswith(f"{field}.") for field in fields) for key in changed)
        if isinstance(switch.other, str) and "method.beta" in fields:
            assert other.method.beta == prior_of(other) and changed != {"method.beta"}


@pytest.mark.parametrize(("paper", "profile"), PAPERS_AND_PROFILES)
def test_defaults_are_cells_that_are_trained_anyway(paper, profile):
    known = {cell.cell_key for name in BASES[paper] for cell in item_of(f"{paper}/{name}", profile).cells}
    default = {c.label: c.cell_key for c in departures(paper, profile).cells if c.label.endswith("/default")}
    own = OWN.get(paper, set()) | ({"view"} if (paper, profile) == ("rscfed", "demo") else set())  # digits are padded
    own |= {"forward"} if paper == "sage" and profile in REDUCED else set()  # a stand-in's norm sees no batch
    assert {label.split("/")[0] for label, key in default.items() if key not in known} == own


def test_the_values_found_are_the_study_s():
    study = json.loads((ROOT / "results" / "studies" / "fedswitch-open-laptop.json").read_text())
    (best,) = [trial["values"] for trial in study["trials"] if trial["number"] == study["best"]]
    beta = departures("fedswitch", "laptop").cell("found-beta/other").experiment.method.beta
    assert {**fedswitch.FOUND, "method.beta": beta} == best


@pytest.mark.parametrize("paper", PAPERS)
def test_every_switch_is_at_its_entry_of_the_handwritten_page(paper):
    text = re.sub(
        r"[ \n]+", " ", re.sub(r"\n( ?\d+\. |## )", r"\t\1", (ROOT / "reports" / paper / "departures.md").read_text())
    )
    entries = dict(re.findall(r"\t ?(\d+)\. ([^\t]*)", text))
    for switch in switches_of(paper)[0]:
        assert f"({paper}/departures: {switch.name})" in entries[str(switch.entry)]
    named = re.findall(rf"{paper}/departures: ([a-z-]+)", text)
    assert sorted(named) == sorted(switch.name for switch in switches_of(paper)[0])


def test_a_paper_s_name_leaves_ours_out_and_all_does_not():
    assert "ssfl/departures" not in {item.name for item in items(["ssfl"], "demo")}
    assert {item.name for item in items(["all"], "demo")} == set(ITEMS) >= OURS


def test_a_misspelt_switch_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(switches, "PUBLISHED", tmp_path)
    catalogue.item_of.cache_clear()
    file = (ROOT / "results" / "published" / "ssfl" / "departures.toml").read_text()
    (tmp_path / "ssfl").mkdir()
    (tmp_path / "ssfl" / "departures.toml").write_text(file.replace("entry = 10", "entri = 10", 1))
    with pytest.raises(ConfigError, match="switch 'schedule': unknown key 'entri'; did you mean 'entry'"):
        departures("ssfl", "demo")
    (tmp_path / "ssfl" / "departures.toml").write_text(file.replace('"printed_schedule"', '"printed"', 1))
    with pytest.raises(ConfigError, match="unknown change 'printed'; choose printed_schedule"):
        departures("ssfl", "demo")


@pytest.mark.parametrize("paper", ["ssfl", "fedswitch", "sage", pytest.param("rscfed", marks=pytest.mark.slow)])
def test_every_way_trains(paper):
    """A round on the demo, each cell once: no switch is refused, and numbers are finite."""
    seen = {cell.cell_key: cell.experiment for cell in departures(paper, "demo").cells}
    for e in seen.values():
        method = with_fields(e.method, {"warm_start_rounds": 0})
        e = replace(e, method=method, federation=replace(e.federation, rounds=1, T=min(2, e.federation.T)))
        module = module_of(e)
        module.training_step(1, 0)
        assert first_not_finite(module.state.server) is None and 0.0 <= module.metrics["test/accuracy"] <= 1.0
