"""The pairs of `ssfl/departures`: each differs in its switch alone, and rests on a cell that other items have."""

import re
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, to_json
from benchmark.papers import switches
from benchmark.papers.catalogue import ITEMS, OURS, items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES
from benchmark.papers.switches import switches_of
from benchmark.records.run import run
from tests.conftest import ROOT, record_of

# What of an experiment a switch moves, by hand; the schedule moves as a whole.
MOVED = {
    "schedule": {"optimizer.schedule.c", "optimizer.schedule.steps", "optimizer.schedule.floor"},
    "server-models": {"method.server_models"},
    "bn-statistics": {"method.bn_statistics"},
    "momentum": {"method.momentum"},
    "start-average": {"method.client_start"},
    "start-last-group": {"method.client_start"},
    "norm": {"model.norm"},
    "server-weight": {"method.averaging.server_weight"},
    "flips": {"data.augmentation.weak.flip"},
    "warm-start": {"method.warm_start_rounds"},
    "pseudo-label-mode": {"method.objective.pseudo_label_mode"},
    "views": {"method.objective.views"},
    "client-labels": {"method.client_labels"},
}


def departures(profile: str) -> Item:
    (item,) = items(["ssfl/departures"], profile)
    return item


def flat(entries: object, above: str = "") -> dict[str, object]:
    if not isinstance(entries, dict):
        return {above: entries}
    return {k: v for key, value in entries.items() for k, v in flat(value, f"{above}.{key}".lstrip(".")).items()}


def moved(default: Experiment, other: Experiment) -> set[str]:
    a, b = flat(to_json(default)), flat(to_json(other))
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pair_differs_in_its_switch_alone(profile):
    item = departures(profile)
    names = [cell.label.split("/")[0] for cell in item.cells][::2]
    assert set(names) == set(MOVED) - ({"warm-start"} if profile in ("gpu", "paper") else set())
    for name in names:
        default, other = (item.cell(f"{name}/{way}").experiment for way in ("default", "other"))
        assert moved(default, other) == MOVED[name]


@pytest.mark.parametrize("profile", PROFILES)
def test_defaults_are_cells_that_are_trained_anyway(profile):
    """Only the schedule's pair needs a default of its own, and BN's: Figure 2 has other data or another length."""
    known = {cell.cell_key for name in ("tab2", "fig2", "tabh1") for cell in items([f"ssfl/{name}"], profile)[0].cells}
    item = departures(profile)
    own = {cell.label for cell in item.cells if cell.label.endswith("/default") and cell.cell_key not in known}
    on_batch_norm = {"bn-statistics/default", "pseudo-label-mode/default", "views/default"}
    assert own == {"schedule/default"} | on_batch_norm


def test_the_profile_s_own_way_comes_first():
    for profile, norm, flip in (("laptop", "gn", 0.0), ("paper", "none", 0.5)):
        item = departures(profile)
        assert item.cell("norm/default").experiment.model.norm == norm
        assert item.cell("flips/default").experiment.data.augmentation.weak.flip == flip
        words = item.cell("flips/default").note.split(";")[0]
        assert str(item.cell("flips/default").setting["switch"]).split(": ")[1].startswith(words)


def test_the_schedules_are_cifar_10_s():
    """Eq. 11, 3200 local steps for 300 epochs. Released: cos(2.286 pi phase) is zero at phase .2187 of 10923 - 53,
    so after step 2430 the rate stays at the floor. Literal: zero at .5 / 2.3 of 3147, step 737; cos is positive again
    from 1.5 / 2.3, step 2105, and ends at cos(2.3 pi) = .588."""
    item = departures("laptop")
    released, literal = (item.cell(f"schedule/{way}").experiment.optimizer.schedule for way in ("default", "other"))
    above = [released.factor(step, 3200) > 2e-4 for step in (52, 2400, 2460, 3199)]
    assert above == [True, True, False, False]
    above = [literal.factor(step, 3200) > 2e-4 for step in (52, 720, 750, 2090, 2120)]
    assert above == [True, True, False, False, True]
    assert literal.factor(3200, 3200) == pytest.approx(0.588, abs=1e-3)


def test_every_switch_stands_in_the_handwritten_page_at_its_entry():
    text = (ROOT / "reports" / "ssfl" / "departures.md").read_text()
    entries = dict(re.findall(r"^ ?(\d+)\. (.*?)(?=^ ?\d+\. |\Z)", text, re.DOTALL | re.MULTILINE))
    for switch in switches_of("ssfl")[0]:
        assert f"ssfl/departures: {switch.name}" in re.sub(r"\s+", " ", entries[str(switch.entry)])
    named = re.findall(r"ssfl/departures:\s+([a-z-]+)", text)
    assert sorted(named) == sorted(switch.name for switch in switches_of("ssfl")[0])


def test_a_paper_s_name_leaves_ours_out_and_all_does_not():
    assert "ssfl/departures" not in {item.name for item in items(["ssfl"], "demo")}
    assert {item.name for item in items(["all"], "demo")} == set(ITEMS) >= OURS


def test_a_misspelt_switch_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(switches, "PUBLISHED", tmp_path)
    file = (ROOT / "results" / "published" / "ssfl" / "departures.toml").read_text()
    (tmp_path / "ssfl").mkdir()
    (tmp_path / "ssfl" / "departures.toml").write_text(file.replace("entry = 10", "entri = 10", 1))
    with pytest.raises(ConfigError, match="switch 'schedule': unknown key 'entri'; did you mean 'entry'"):
        departures("demo")
    (tmp_path / "ssfl" / "departures.toml").write_text(file.replace('"printed_schedule"', '"printed"', 1))
    with pytest.raises(ConfigError, match="unknown change 'printed'; choose printed_schedule"):
        departures("demo")


def test_every_way_trains(tmp_path):
    """Three rounds on the demo, each cell once: there is an accuracy, and no switch is refused."""
    seen = {cell.cell_key: cell.experiment for cell in departures("demo").cells}
    for experiment in seen.values():
        method = replace(experiment.method, warm_start_rounds=min(1, experiment.method.warm_start_rounds))
        federation = replace(experiment.federation, rounds=3, T=2)
        run(replace(experiment, method=method, federation=federation), tmp_path)
    results = list(tmp_path.rglob("result.json"))
    assert len(results) == len(seen)
    for path in results:
        accuracy = record_of(path.parent).selected("test/accuracy")
        assert accuracy is not None and 0.0 < accuracy <= 1.0
