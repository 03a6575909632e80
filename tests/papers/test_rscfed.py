"""RSCFed's tables and Figure 2: settings by hand from the print."""

import pytest

from benchmark.data.partition import Dirichlet
from benchmark.methods.cbafed import CBAFed
from benchmark.methods.fedirm import FedIRM
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.optim.sgd import Constant
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.papers.rscfed import ITEMS


def item_of(name: str, profile: str = "paper") -> Item:
    return items([f"rscfed/{name}"], profile)[0]


def test_settings_are_section_4_s():
    """Dir(.8), 1,000 rounds of one epoch, alpha .001, tau .5; by data set rates, batches, beta; by table who has
    labels."""
    by_data = {
        "svhn": ("rscfed_cnn", 64, 0.03, 0.021, 10_000),
        "cifar100": ("rscfed_cnn", 64, 0.03, 0.021, 10_000),
        "ham10000_64": ("resnet18_mlp", 12, 0.002, 0.001, 0.01),
    }
    enlarged = {"svhn": 40 / 32, "cifar100": 40 / 32, "ham10000_64": 240 / 224}
    kinds = set()
    for name in ITEMS:
        for cell in item_of(name).cells:
            e, method = cell.experiment, cell.experiment.method
            network, batch_size, labelled_lr, lr, beta = by_data[e.data.name]
            assert e.model.network == network and method.batch_size == batch_size
            assert e.partition == Dirichlet(alpha=0.8, rule="limited")
            assert e.data.augmentation.weak.enlarge == enlarged[e.data.name]
            assert (e.federation.epochs, e.federation.rounds) == (1, 1000) and e.federation.C == e.federation.K
            assert e.optimizer.schedule == Constant()
            assert (e.optimizer.server_lr or e.optimizer.lr) == labelled_lr
            kinds.add((name, e.data.label_setting, e.data.labelled_clients, e.federation.K))
            if isinstance(method, SupervisedFL):
                continue
            assert e.optimizer.lr == lr
            if isinstance(method, CBAFed):  # ours: as released, with RSCFed's momentum and warm start
                assert (method.cap, method.tail) == (0.95 if e.data.name == "cifar100" else 0.9, 0.03)
                assert (method.momentum, method.warm_start_rounds) == ("released_code", 6)
                continue
            if isinstance(method, FedIRM):  # as released: EMA .99, no sharpening, lambda 15
                assert (method.alpha, method.temperature, method.unlabelled_weight) == (0.01, 1.0, 15.0)
                continue
            assert (method.alpha, method.temperature, method.unlabelled_weight) == (0.001, 0.5, 0.02)
            if isinstance(method, RSCFed):
                assert method.beta == (0.0 if "Basic + SSO" in str(cell.setting["method"]) else beta)
                if name not in ("tab6", "tab7"):
                    assert (method.M, method.subset) == (3, 5)
    assert {kind[1:] for kind in kinds if kind[0] == "tab1"} == {("some_clients", 1, 10), ("some_clients", 10, 10)}
    assert {kind[1:] for kind in kinds if kind[0] == "tab3"} == {("some_clients", 2, 10)}
    assert {kind[1:] for kind in kinds if kind[0] == "tab5"} == {("share", 1, 10)}
    of_table_4 = {("some_clients", 1, K) for K in (5, 10, 15, 25, 35, 50)} | {("some_clients", 10, 50)}
    assert {kind[1:] for kind in kinds if kind[0] == "tab4"} == of_table_4


@pytest.mark.parametrize(
    ("profile", "data", "ratio"),
    [
        ("demo", "8x8 digits", 1297 / 73_257),
        ("laptop", "CIFAR-10", 49_000 / 73_257),
        ("laptop", "CIFAR-100", 49_000 / 50_000),
        ("laptop", "HAM10000", 5914 / 8012),
    ],
)
def test_beta_keeps_its_ratio_to_a_client_s_images(profile, data, ratio):
    """Eq. 6 divides by N_i; the stand-ins share their images among as many clients as the paper."""
    beta, beta_labelled = (0.01, 0.01) if data == "HAM10000" else (10_000, 100)
    method = item_of("tab2", profile).cell(f"{data}/RSCFed").experiment.method
    assert (method.beta, method.beta_labelled) == (pytest.approx(beta * ratio), pytest.approx(beta_labelled * ratio))
    assert item_of("tab2", profile).cell(f"{data}/Basic + SSO").experiment.method.beta == 0.0
