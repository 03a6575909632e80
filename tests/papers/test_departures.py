"""The pairs of `PAPER/departures`: each differs in its switch alone, and rests on a cell that other items have."""

import re
import shutil
from dataclasses import replace

import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.module import FederatedModule
from benchmark.federated.trees import first_not_finite
from benchmark.papers import items as paper_items
from benchmark.papers import published
from benchmark.papers.items import cell_named
from benchmark.papers.scale import with_fields
from benchmark.papers.switches import switches_of
from tests.conftest import ROOT
from tests.federated.helpers import module_of
from tests.papers.conftest import item_of

PAPERS = ("ssfl", "semifl", "rscfed", "fedswitch", "sage")


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


def test_a_misspelt_switch_is_refused(tmp_path, monkeypatch):
    paper_items.item_of.cache_clear()
    shutil.copytree(published.PUBLISHED / "ssfl", tmp_path / "ssfl")
    file = (tmp_path / "ssfl" / "departures.toml").read_text()
    monkeypatch.setattr(published, "PUBLISHED", tmp_path)
    (tmp_path / "ssfl" / "departures.toml").write_text(file.replace("entry = 10", "entri = 10", 1))
    with pytest.raises(ConfigError, match="switch 'schedule' has the unknown key 'entri'; did you mean 'entry'"):
        item_of("ssfl/departures", "demo")
    (tmp_path / "ssfl" / "departures.toml").write_text(file.replace('"printed_schedule"', '"printed"', 1))
    with pytest.raises(ConfigError, match="unknown change 'printed'; choose printed_schedule"):
        item_of("ssfl/departures", "demo")


def after_a_round(e: Experiment) -> FederatedModule:
    """Run a round with at most two local steps, and no warm start."""
    method = with_fields(e.method, {"warm_start_rounds": 0})
    module = module_of(replace(e, method=method, federation=replace(e.federation, rounds=1, T=min(2, e.federation.T))))
    module.training_step(1, 0)
    assert first_not_finite(module.state.server) is None and 0.0 <= module.metrics["test/accuracy"] <= 1.0
    return module


@pytest.mark.parametrize("paper", ["ssfl", "fedswitch", "sage", pytest.param("rscfed", marks=pytest.mark.slow)])
def test_every_other_way_trains(paper):
    """On the demo: no switch is refused, and numbers are finite. What the study found are numbers, no other ways."""
    for cell in item_of(f"{paper}/departures", "demo").cells:
        if cell.label.endswith("/other") and not cell.label.startswith("found-"):
            after_a_round(cell.experiment)


@pytest.mark.parametrize(
    "named",
    [
        "semifl/tab4:E=1/K=2",
        "fedswitch/tab3:Labels at Client/Streaming-NonIID/TS-Client EMA",
        "rscfed/tab3:FedIRM (weight adju.)",
        "rscfed/tab4:RSCFed/K=50",
        "rscfed/tab5:Fed-Consist",
        "ssfl/fig5_right:digits/All labels at the server",
        "ssfl/tabh1:Self-training/R=0.4",
        "ssfl/tabh1:CRL with BN/R=0.4",
        "fedswitch/tab2:Labels at Server/Batch-NonIID/FedProx-FixMatch*",
    ],
)
def test_kinds_of_cells_without_a_switch_train(named):
    metrics = after_a_round(cell_named(named, "demo")).metrics
    assert all(0.0 <= metrics[f"test/{name}"] <= 1.0 for name in ("auroc", "precision", "recall"))
