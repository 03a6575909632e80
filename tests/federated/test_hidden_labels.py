"""Labels that the setting hides cannot reach the weights: permuting them changes no bit; the server's do."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmark.federated.environment import Environment, prepare
from benchmark.methods.central import UDA, FixMatch, MeanTeacher, MixMatch, PiModel, PseudoLabeling, ReMixMatch
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.easgd import EASGD
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.feddyn import FedDyn
from benchmark.methods.fedirm import FedIRM
from benchmark.methods.fedmatch import FedMatch
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.heterofl import HeteroFL
from benchmark.methods.lg_fedavg import LGFedAvg
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import Grouping, SelfTraining
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.methods.ts_client_ema import TSClientEMA
from benchmark.methods.ts_server_ema import TSServerEMA
from tests.conftest import tiny_experiment
from tests.federated.helpers import equal, weights_after

BASE = tiny_experiment()
FEDPROX_FIXMATCH = FedProxFixMatch(threshold=0.14, batch_size=8, labelled_batch_size=4, server_batch_size=8)
TS_SERVER = TSServerEMA(threshold=0.13, batch_size=8, labelled_batch_size=4, server_batch_size=8, ratio=0.5)
TS_CLIENT = TSClientEMA(threshold=0.14, batch_size=8, labelled_batch_size=4, server_batch_size=8, ratio=0.5)
FEDMATCH = FedMatch(batch_size=8, labelled_batch_size=4, server_batch_size=8, threshold=0.14, helper_interval=2)
FEDSWITCH = FedSwitch(threshold=0.14, batch_size=8, server_batch_size=8, ratio=0.5)
METHODS = {
    "fedmatch": FEDMATCH,
    "data-sharing": DataSharing(unlabelled_batch_size=8, warm_start_rounds=1, threshold=0.14),
    "fedprox-fixmatch": FEDPROX_FIXMATCH,
    "ts-server ema": TS_SERVER,
    "ts-client ema": TS_CLIENT,
    "fedswitch": FEDSWITCH,
    "crl": BASE.method,
    "grouping": replace(BASE.method, averaging=Grouping(S=2)),
    "self-training": replace(BASE.method, objective=SelfTraining(threshold=0.14)),
    "released": replace(BASE.method, momentum="released_code", server_models="released_code"),
    "semifl": SemiFL(threshold=0.13, batch_size=8, server_batch_size=8),
    "server only": ServerOnly(batch_size=8),
    "pi-model": PiModel(batch_size=8),
    "pseudo-labeling": PseudoLabeling(batch_size=8, threshold=0.14),
    "mean teacher": MeanTeacher(batch_size=8),
    "mixmatch": MixMatch(batch_size=8),
    "uda": UDA(batch_size=8, unlabelled_ratio=1, threshold=0.14),
    "remixmatch": ReMixMatch(batch_size=8),
    "fixmatch": FixMatch(batch_size=8, unlabelled_ratio=1, threshold=0.14),
}

RSCFED, FED_CONSIST = RSCFed(M=2, subset=4, batch_size=8), FedConsist(batch_size=8)
AT_CLIENTS: dict[str, tuple[Any, Any]] = {
    "fedprox-fixmatch, every client": (FEDPROX_FIXMATCH, "every_client"),
    "ts-server ema, share": (TS_SERVER, "share"),
    "ts-client ema, some clients": (TS_CLIENT, "some_clients"),
    "crl, every client": (BASE.method, "every_client"),
    "grouping, two views, share": (
        replace(BASE.method, averaging=Grouping(S=2), client_labels="released_code"),
        "share",
    ),
    "rscfed, some clients": (RSCFED, "some_clients"),
    "rscfed, share": (RSCFED, "share"),
    "rscfed, one more client": (replace(RSCFED, subset=5, beta=100.0), "one_more_client"),
    "fed-consist, some clients": (FED_CONSIST, "some_clients"),
    "fed-consist, every client": (FED_CONSIST, "every_client"),
    "fedirm, some clients": (FedIRM(batch_size=8, uncertainty=2.5, least_confidence=0.0), "some_clients"),
    "fedmatch, every client": (FEDMATCH, "every_client"),
    "fedmatch, share": (FEDMATCH, "share"),
    "fedswitch, some clients": (replace(FEDSWITCH, mu=0.1), "some_clients"),
    "supervised, every client": (SupervisedFL(batch_size=8), "every_client"),
    "supervised, some clients": (SupervisedFL(batch_size=8), "some_clients"),
    "feddyn, every client": (FedDyn(batch_size=8), "every_client"),
    "heterofl, every client": (HeteroFL(batch_size=8, widths=(1.0,)), "every_client"),
    "lg-fedavg, every client": (LGFedAvg(batch_size=8, private_layers=1), "every_client"),
    "easgd, every client": (EASGD(batch_size=8), "every_client"),
    "overlap-sgd, share": (OverlapSGD(batch_size=8), "share"),
}


def permuted(environment: Environment, holders: str) -> Environment:
    """The same split, in which the labels of the server's or of all other training images are shifted by one class."""
    labels_N = environment.data.train_labels_N.clone()
    at_server = torch.zeros(len(labels_N), dtype=torch.bool)
    at_server[torch.as_tensor(environment.split.server_N)] = True
    chosen = at_server if holders == "server" else ~at_server
    labels_N[chosen] = (labels_N[chosen] + 1) % environment.data.num_classes
    test = environment.data.test_labels_N
    test = test if holders == "server" else (test + 1) % environment.data.num_classes
    data = replace(environment.data, train_labels_N=labels_N, test_labels_N=test)
    return replace(environment, data=data)


@pytest.mark.parametrize("name", METHODS)
def test_only_the_server_s_labels_matter(name):
    environment = prepare(replace(BASE, method=METHODS[name]))
    weights = weights_after(environment.experiment, rounds=2, environment=environment)
    hidden = permuted(environment, "everyone else")
    assert equal(weights, weights_after(environment.experiment, rounds=2, environment=hidden))
    visible = permuted(environment, "server")
    assert not equal(weights, weights_after(environment.experiment, rounds=2, environment=visible))


def with_shifted_labels(environment: Environment, visible: bool) -> Environment:
    """The same, in which the labels that clients see, or all others, are shifted by one class."""
    labels_N = environment.data.train_labels_N.clone()
    seen = torch.zeros(len(labels_N), dtype=torch.bool)
    for positions_N in environment.held.labelled:
        seen[torch.as_tensor(positions_N)] = True
    chosen = seen if visible else ~seen
    labels_N[chosen] = (labels_N[chosen] + 1) % environment.data.num_classes
    return replace(environment, data=replace(environment.data, train_labels_N=labels_N))


@pytest.mark.parametrize("name", AT_CLIENTS)
def test_only_the_labels_that_clients_see_matter(name):
    method, setting = AT_CLIENTS[name]
    environment = prepare(replace(BASE, method=method, data=replace(BASE.data, label_setting=setting)))
    weights = weights_after(environment.experiment, rounds=2, environment=environment)
    hidden = with_shifted_labels(environment, visible=False)
    assert equal(weights, weights_after(environment.experiment, rounds=2, environment=hidden))
    seen = with_shifted_labels(environment, visible=True)
    assert not equal(weights, weights_after(environment.experiment, rounds=2, environment=seen))


def test_oracle_labels_matter_where_clients_hold_them():
    from benchmark.methods.ssfl import Supervised

    method = replace(BASE.method, objective=Supervised())
    experiment = replace(BASE, data=replace(BASE.data, label_setting="everywhere"), method=method)
    environment = prepare(experiment)
    weights = weights_after(experiment, rounds=2, environment=environment)
    assert not equal(weights, weights_after(experiment, rounds=2, environment=permuted(environment, "everyone else")))
