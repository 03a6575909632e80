"""FedSwitch's tables and figures: settings by hand from sections 5.1 to 5.4, beta by hand."""

import math

import numpy as np
import pytest

from benchmark.data.partition import Dirichlet, FedMatchSkew, Iid
from benchmark.experiment import Data, Experiment, Federation
from benchmark.papers.catalogue import items
from benchmark.papers.columns import clients_of
from benchmark.papers.fedswitch import divergence_K, prior_of
from benchmark.papers.item import Cell, Item

CLIENT, SERVER = "Labels at Client", "Labels at Server"


def item_of(name: str, profile: str = "paper") -> Item:
    return items([f"fedswitch/{name}"], profile)[0]


def trained(item: Item) -> list[Cell]:
    return [cell for cell in item.cells if cell.role == "published"]


def test_figure_3_and_4_s_setting_is_sections_5_1_to_5_4():
    """55,000 unlabelled images of 100 clients, 1,000 labels at the server, 800 epochs of 20 rounds."""
    for cell in trained(item_of("fig4")):
        e = cell.experiment
        assert (e.data.name, e.data.N_s, e.data.N_validation, e.data.pooled_test) == ("cifar10", 1000, 2000, 2000)
        assert e.data.label_setting == "server"
        assert e.partition == Dirichlet(alpha=float(cell.setting["alpha"]), rule="fedswitch")
        federation = e.federation
        assert (federation.K, federation.C, federation.epochs, federation.rounds) == (100, 5, 1, 16_000)
        assert (e.method.batch_size, e.method.server_batch_size) == (100, 100)
        assert clients_of(e).sum(axis=1).tolist() == [550] * 100


def test_table_2_s_setting_is_sections_5_1_and_5_2():
    """Labels at clients: 100 x 50, which leaves 51,000 unlabelled images."""
    item = item_of("tab2")
    for cell in trained(item):
        e = cell.experiment
        assert (e.data.name, e.data.N_validation, e.data.pooled_test) == ("cifar10", 2000, 2000)
        assert e.partition == (Iid() if cell.setting["partition"] == "Batch-IID" else FedMatchSkew())
        at_clients = cell.setting["labels"] == CLIENT
        assert (e.data.label_setting, e.data.N_s) == (("every_client", 0) if at_clients else ("server", 1000))
        assert e.data.labels_per_client == 5
        assert clients_of(e).sum(axis=1).tolist() == [510 if at_clients else 550] * 100
    quoted = [cell for cell in item.cells if cell.role == "quoted"]
    assert [cell.setting["method"] for cell in quoted] == ["FedRGD"] * 4 + ["FedMatch"] * 4
    assert {cell.experiment.federation.rounds for cell in quoted} == {16_000}


# beta


def test_the_divergence_of_clients_by_hand():
    """Equal shares: 0. One class of four: ln 4. Halves of two: ln 4 - ln 2. 3, 1 of two classes: ln 2 + .75 ln .75 +
    .25 ln .25 = .1308."""
    counts_Kd = np.array([[5, 5, 5, 5], [8, 0, 0, 0], [4, 4, 0, 0]])
    assert divergence_K(counts_Kd) == pytest.approx([0.0, math.log(4), math.log(2)])
    assert divergence_K(np.array([[3, 1]])) == pytest.approx([0.1308], abs=1e-4)


def setting(partition, K=100) -> Experiment:
    """550 images a client."""
    data = Data(name="cifar10", N_s=1000, N_validation=2000, pooled_test=2000)
    return Experiment(data=data, partition=partition, federation=Federation(K=K, C=5))


def test_beta_is_the_partitions_true_divergence():
    """ln 10 with a class a client, 0 for equal shares. FedMatch's types: ln 10 + .5 ln .5 + 2 x .15 ln .15 +
    6 x .03 ln .03 + .02 ln .02 = .678. Hsu's draw at alpha = 1, where no class ends: ln 10 + psi(1.1) - psi(2) =
    1.456."""
    assert prior_of(setting(Iid())) == 0.0
    assert prior_of(setting(FedMatchSkew())) == 0.68
    assert prior_of(setting(Dirichlet(alpha=1e-4, rule="fedswitch"))) == pytest.approx(math.log(10), abs=0.1)
    assert prior_of(setting(Dirichlet(alpha=1e6, rule="fedswitch"))) == pytest.approx(0.0, abs=0.01)
    assert prior_of(setting(Dirichlet(alpha=1.0, rule="fedswitch"))) == pytest.approx(1.456, abs=0.12)
