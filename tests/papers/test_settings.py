"""What follows from settings: FedSwitch's beta, RSCFed's, and SemiFL's computed columns, by hand.

The settings themselves are held by the digests of `test_items.py`.
"""

import math

import numpy as np
import pytest

from benchmark.data.partition import Dirichlet, FedMatchSkew, Iid
from benchmark.experiment import Data, Experiment, Federation
from benchmark.papers.fedswitch import divergence_K, prior_of
from tests.papers.conftest import item_of


def test_the_divergence_of_clients_by_hand():
    """Equal shares: 0. One class of four: ln 4. Halves of two: ln 4 - ln 2. 3, 1 of two classes: ln 2 + .75 ln .75 +
    .25 ln .25 = .1308."""
    counts_Kd = np.array([[5, 5, 5, 5], [8, 0, 0, 0], [4, 4, 0, 0]])
    assert divergence_K(counts_Kd) == pytest.approx([0.0, math.log(4), math.log(2)])
    assert divergence_K(np.array([[3, 1]])) == pytest.approx([0.1308], abs=1e-4)


def setting(partition) -> Experiment:
    """Return a setting of 100 clients with 550 images each."""
    data = Data(name="cifar10", N_s=1000, N_validation=2000, pooled_test=2000)
    return Experiment(data=data, partition=partition, federation=Federation(K=100, C=5))


def test_beta_is_the_partitions_true_divergence():
    """ln 10 with a class a client, 0 for equal shares. FedMatch's types: ln 10 + .5 ln .5 + 2 x .15 ln .15 +
    6 x .03 ln .03 + .02 ln .02 = .678. Hsu's draw at alpha = 1, where no class ends: ln 10 + psi(1.1) - psi(2) =
    1.456."""
    assert prior_of(setting(Iid())) == 0.0
    assert prior_of(setting(FedMatchSkew())) == 0.68
    assert prior_of(setting(Dirichlet(alpha=1e-4, rule="fedswitch"))) == pytest.approx(math.log(10), abs=0.1)
    assert prior_of(setting(Dirichlet(alpha=1e6, rule="fedswitch"))) == pytest.approx(0.0, abs=0.01)
    assert prior_of(setting(Dirichlet(alpha=1.0, rule="fedswitch"))) == pytest.approx(1.456, abs=0.12)


@pytest.mark.parametrize(
    ("profile", "data", "ratio"),
    [
        ("demo", "8x8 digits", 1297 / 73_257),
        ("laptop", "CIFAR-10", 49_000 / 73_257),
        ("laptop", "CIFAR-100", 49_000 / 50_000),
        ("laptop", "HAM10000", 5914 / 8012),
    ],
)
def test_rscfed_s_beta_keeps_its_ratio_to_a_client_s_images(profile, data, ratio):
    """Eq. 6 divides by N_i; the stand-ins share their images among as many clients as the paper."""
    betas = (0.01, 0.01) if data == "HAM10000" else (10_000, 100)
    tab2 = item_of("rscfed/tab2", profile)
    method = tab2.cell(f"{data}/RSCFed").experiment.method
    assert (method.beta, method.beta_labelled) == pytest.approx([beta * ratio for beta in betas])
    assert tab2.cell(f"{data}/Basic + SSO").experiment.method.beta == 0.0


def test_computed_columns_of_semifl_s_table_3():
    """WResNet28x2, FedAvg's CNN and ResNet-9 by hand: the print's millions, megabytes and FLOP, or not."""
    cells = {cell.label: cell.computed for cell in item_of("semifl/tab3").cells}
    semifl, cnn, grouping = cells["SemiFL/IID"], cells["FedAvg/IID"], cells["FedRGD/IID"]
    assert semifl["parameters"] == 1_467_610 and round(float(semifl["MB"]), 1) == 5.6
    by_hand = (3 * 25 + 1) * 32 + (32 * 25 + 1) * 64 + (64 * 64 + 1) * 512 + (512 + 1) * 10
    assert cnn["parameters"] == by_hand == 2_156_490 and round(float(cnn["MB"]), 1) == 8.2
    multiplications = 3 * 25 * 32 * 32**2 + 32 * 25 * 64 * 16**2 + 64 * 64 * 512 + 512 * 10
    assert cnn["MFLOP"] == pytest.approx(2 * multiplications / 1e6)
    assert float(grouping["parameters"]) / 1e6 != pytest.approx(4.9, abs=0.5)
