"""SemiFL's tables and figures: settings by hand from section 4, Table 5 and the released codes."""

from dataclasses import replace

import pytest

from benchmark.data.partition import Dirichlet, Iid, Shards
from benchmark.methods.flfl import FL2
from benchmark.optim.sgd import RoundCosine
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item


def item_of(name: str, profile: str = "paper") -> Item:
    return items([f"semifl/{name}"], profile)[0]


def test_semifl_s_cells_are_section_4_and_table_5():
    """Table 5's server batches: 10 with 250 labels, 250 with 4,000 and with SVHN's 1,000."""
    partitions = {
        "K=2": Shards(classes_per_client=2),
        "Dir(0.1)": Dirichlet(alpha=0.1, rule="limited"),
        "Dir(0.3)": Dirichlet(alpha=0.3, rule="limited"),
        "IID": Iid(),
    }
    labels = {"CIFAR-10": {"fewer": 250, "more": 4000}, "SVHN": {"fewer": 250, "more": 1000}}
    cells = [cell for cell in item_of("tab1").cells if cell.setting["method"] == "SemiFL"]
    assert len(cells) == 16
    for cell in cells:
        e = cell.experiment
        data, _, partition, amount = cell.label.split("/")
        assert e.partition == partitions[partition] and e.data.N_s == labels[data][amount]
        assert (e.federation.K, e.federation.C, e.federation.epochs, e.federation.rounds) == (100, 10, 5, 800)
        assert e.method.server_batch_size == (10 if amount == "fewer" else 250)
        assert e.data.augmentation.weak.flip == (0.0 if data == "SVHN" else 0.5)
        assert (e.optimizer.lr, e.optimizer.schedule, e.model.norm) == (0.03, RoundCosine(), "sbn")


def test_fl2_is_in_semifl_s_place():
    """At i.i.d. clients and Dir(.3) all is SemiFL's but the method: its Table 4's, and 32 images a batch."""
    item = item_of("tab1")
    cells = [cell for cell in item.cells if cell.setting["method"] == "(FL)^2"]
    assert len(cells) == 8 and all(cell.role == "control" and not cell.published for cell in cells)
    for cell in cells:
        e, semifl = cell.experiment, item.cell(cell.label.replace("(FL)^2", "SemiFL")).experiment
        assert replace(e, method=semifl.method) == semifl and cell.label.split("/")[2] in ("IID", "Dir(0.3)")
        assert e.method == FL2(server_batch_size=semifl.method.server_batch_size) and e.method.batch_size == 32
    demo = item_of("tab1", "demo").cell("8x8 digits/(FL)^2/IID/fewer").experiment.method
    assert (demo.batch_size, demo.server_batch_size, demo.warm_start_rounds) == (10, 5, 5)  # of the stand-in


def test_table_3_s_computed_columns():
    """WResNet28x2, FedAvg's CNN and ResNet-9 by hand: the print's millions, megabytes and FLOP, or not."""
    cells = {cell.label: cell.computed for cell in item_of("tab3").cells}
    semifl, cnn, grouping = cells["SemiFL/IID"], cells["FedAvg/IID"], cells["FedRGD/IID"]
    assert semifl["parameters"] == 1_467_610 and round(float(semifl["MB"]), 1) == 5.6
    by_hand = (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (64 * 64 + 1) * 512 + (512 + 1) * 10
    assert cnn["parameters"] == by_hand == 2_156_490 and round(float(cnn["MB"]), 1) == 8.2
    multiplications = 3 * 25 * 32 * 32**2 + 32 * 25 * 64 * 16**2 + 64 * 64 * 512 + 512 * 10
    assert cnn["MFLOP"] == pytest.approx(2 * multiplications / 1e6)
    assert float(grouping["parameters"]) / 1e6 != pytest.approx(4.9, abs=0.5)
