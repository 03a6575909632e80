"""SemiFL Table 4 and FedSwitch Figure 4: settings by hand from the print, values by transcription.

test_fedswitch.py has the other items of FedSwitch.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml

from benchmark.data.partition import Iid, Shards
from benchmark.experiment import Experiment
from benchmark.methods.server_only import ServerOnly
from benchmark.optim.sgd import RoundCosine
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.papers.published import read_published
from benchmark.papers.scale import PROFILES
from benchmark.records.run import run
from tests.conftest import ROOT, record_of

SHARED = ROOT.parent / "shared"
NAMES = ("semifl/tab4", "fedswitch/fig4")


def item_of(name: str, profile: str = "paper") -> Item:
    return items([name], profile)[0]


@pytest.fixture(scope="module")
def transcribed() -> Mapping[str, Any]:
    """The independent transcription."""
    path = SHARED / "facts" / "paper_tables.yaml"
    if not path.exists():
        pytest.skip("the independent transcription is not here")
    return {found["id"]: found for found in yaml.safe_load_all(path.read_text())}


def test_semifl_table_4_is_transcribed_twice(transcribed):
    theirs = {
        (c["E"], c["beta_g"], c["mixup"], "K = 2" if "K=2" in c["partition"] else "IID"): (c["mean"], c["std"])
        for c in transcribed["semifl.tab4"]["cells"]
    }
    ours = {
        (c["E"], c["beta_g"], c["mixup"] == "yes", c["partition"].removeprefix("Non-IID, ")): (c["value"], c["spread"])
        for c in read_published("semifl/tab4")["cells"]
    }
    assert ours == theirs and len(ours) == 8


def test_semifl_s_setting_is_section_4_and_table_5():
    """100 clients, 10 a round, 800 rounds, E = 5, B = 10 and 250, eta = .03, tau = .95, Mixup .75, beta_g = .5, sBN."""
    item = item_of("semifl/tab4")
    partitions = {"K=2": Shards(classes_per_client=2), "IID": Iid()}
    for cell in item.cells[:8]:
        e, method = cell.experiment, cell.experiment.method
        row, column = cell.label.split("/")
        assert (e.data.name, e.data.N_s, e.data.label_setting) == ("cifar10", 4000, "server")
        assert (e.model.network, e.model.norm, e.partition) == ("wresnet28x2", "sbn", partitions[column])
        federation = e.federation
        assert (federation.K, federation.C, federation.rounds) == (100, 10, 800)
        assert federation.epochs == (1 if row == "E=1" else 5)
        assert method.mix_weight == (0.0 if row == "No Mixup" else 1.0)
        assert method.server_momentum == (0.0 if row == "beta_g=0" else 0.5)
        assert (method.threshold, method.beta, method.batch_size, method.server_batch_size) == (0.95, 0.75, 10, 250)
        assert (method.warm_start_rounds, method.statistics) == (0, "server_and_clients")
        sgd = e.optimizer
        assert (sgd.lr, sgd.momentum, sgd.nesterov, sgd.weight_decay) == (0.03, 0.9, True, 5e-4)
        assert sgd.schedule == RoundCosine()
    assert item.cell("SemiFL/IID").published["test/accuracy"].runs == item.seeds == 4


@pytest.mark.parametrize("name", NAMES)
def test_a_bound_of_labels_alone_stands_beside(name):
    """As many passes over the labels, at the labels' own rate."""
    for profile in PROFILES:
        *cells, bound = item_of(name, profile).cells
        e = cells[-1].experiment
        assert bound.role == "bound" and bound.experiment.data == e.data
        assert bound.experiment.federation.rounds == e.federation.rounds
        method = bound.experiment.method
        if name == "semifl/tab4":
            assert method.warm_start_rounds == e.federation.rounds  # no round with clients
        else:
            assert isinstance(method, ServerOnly)
            assert math.ceil(e.data.N_s / e.method.server_batch_size) == bound.experiment.federation.T


def shortened(e: Experiment) -> Experiment:
    return replace(e, method=replace(e.method, warm_start_rounds=1), federation=replace(e.federation, rounds=3))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("semifl/tab4", "E=1/K=2"),
        ("semifl/tab4", "No Mixup/IID"),
        ("fedswitch/fig4", "FedSwitch/alpha=0.01"),
        ("fedswitch/fig4", "TS-Client EMA/alpha=100"),
    ],
)
def test_each_kind_of_cell_trains(name, label, tmp_path):
    """A round of labels alone and two with clients on the demo: an accuracy."""
    run(shortened(item_of(name, "demo").cell(label).experiment), tmp_path)
    accuracy = record_of(next(tmp_path.rglob("result.json")).parent).selected("test/accuracy")
    assert accuracy is not None and 0.0 < accuracy <= 1.0
