"""Impossible settings of methods are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from benchmark.errors import ConfigError
from benchmark.federated.environment import prepare
from benchmark.federated.local import load
from benchmark.federated.machine import failures_named
from benchmark.losses import skip_low_confidence_images
from benchmark.methods.registry import METHODS
from benchmark.methods.ssfl import CRL, FedAvg, Grouping, SelfTraining, Supervised
from tests.methods.golden import TRACES
from tests.methods.watch import tiny_with, watched


def test_a_single_forward_pass_labels_in_training_mode():
    with pytest.raises(ConfigError, match="choose views 'two_forwards'"):
        CRL(views="one_forward", pseudo_label_mode="eval")


class OwnNet(nn.Module):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images_NCHW):
        return self.fc(images_NCHW.flatten(1))


class Buffered(OwnNet):
    """A network with a layer named `features`, which is a method of Classifier, and with constant buffers."""

    def __init__(self, image_shape, num_classes, norm):
        super().__init__(image_shape, num_classes, norm)
        self.features = nn.Flatten()
        self.register_buffer("index", torch.arange(7) + 1)
        self.register_buffer("mask", torch.ones(7, dtype=torch.bool))


BUFFERED: dict[str, Any] = {"network": f"{__name__}:Buffered"}


@pytest.mark.parametrize("kind", ["crl-grouping", "rscfed", "feddb", "flfl"])
def test_buffers_of_an_own_network_stay_as_they_are(kind):
    e = TRACES[kind]
    e = replace(e, model=replace(e.model, **BUFFERED), precision="bf16", federation=replace(e.federation, K=6, C=6))
    module, _ = watched(e, 2)
    for weights in module.models().values():
        assert weights["index"].tolist() == list(range(1, 8)) and bool(weights["mask"].all())


def test_a_batch_norm_that_gets_one_image_is_refused_with_the_holder():
    with pytest.raises(ConfigError, match="round 2, client 3: .* batch of one image"), failures_named("client 3", 2):
        nn.BatchNorm1d(4)(torch.ones(1, 4))


def test_weights_that_only_fit_by_broadcasting_are_refused():
    network = OwnNet((1, 8, 8), 10, None)
    assert not skip_low_confidence_images(network)  # the calls in a custom network's `forward` are not known
    with pytest.raises(ConfigError, match=r"its fc.bias is \[1\] of torch.float32, the network's \[10\]"):
        load(network, {**network.state_dict(), "fc.bias": torch.zeros(1)})


BY_SIZE = {"labelled_share": 0.3, "labelled_weight": "by_size"}
STUDENT_FIRST = {"first_round": "student", "unsent_teacher": "keep_last"}
VIEWS = {"client_labels": "released_code"}
OWN_NET = {"network": f"{__name__}:OwnNet"}


@pytest.mark.parametrize(
    ("kind", "fields", "setting", "model", "message"),
    [
        ("ssfl", {"objective": Supervised()}, "server", {}, "'server' does not suit"),
        ("ssfl", {"averaging": Grouping(S=5)}, "server", {}, "choose S from 1 to 4"),
        ("ssfl", {"averaging": FedAvg(server_weight=0.5)}, "every_client", {}, "server_weight is 0.5"),
        ("ssfl", VIEWS, "server", {}, "client_labels is 'released_code'"),
        ("ssfl", {**VIEWS, "objective": SelfTraining()}, "every_client", {}, "client_labels is 'released_code'"),
        ("ssfl", {"bn_statistics": "slot"}, "server", {}, "bn_statistics is 'slot'"),
        ("ssfl", {}, "server", {"norm": "sbn"}, "model.norm is 'sbn', but method 'ssfl' "),
        ("fedirm", {"passes": 5}, "some_clients", {}, "method.passes is 5"),
        ("lg_fedavg", {"private_layers": 9}, "everywhere", {}, "method.private_layers is 9"),
        ("lg_fedavg", {"private_layers": 1}, "everywhere", {"norm": "bn"}, "model.norm is 'bn'"),
        ("heterofl", {"widths": (0.0625,)}, "everywhere", {}, "method.widths contains 0.0625"),
        ("heterofl", {"widths": (0.0625,)}, "everywhere", {"norm": "bn"}, "choose sbn"),
        ("proxyfl", {}, "share", OWN_NET, "OwnNet has no features; make it a benchmark.models"),
        ("server_only", {"images": "everyones"}, "server", {}, "choose data.label_setting everywhere"),
        ("rscfed", {"subset": 5}, "some_clients", {}, "choose 1 to 4"),
        ("rscfed", {"subset": 3}, "server", {}, "one_more_client"),
        ("rscfed", BY_SIZE, "some_clients", {}, "choose labelled_weight 'per_round' or 'per_subset'"),
        ("fedmatch", {}, "server", {"norm": "bn"}, "model.norm is 'bn'"),
        ("fedmatch", {}, "server", BUFFERED, "Buffered has index"),
        ("fedswitch", STUDENT_FIRST, "server", {}, "method.first_round is 'student'"),
        ("data_sharing", {"alpha": 0.01}, "server", {}, "method.alpha is 0.01"),
        ("data_sharing", {}, "every_client", {}, "data.N_s is 0"),
    ],
)
def test_impossible_settings_are_refused_before_training(kind, fields, setting, model, message):
    with pytest.raises(ConfigError) as caught:
        e = tiny_with(METHODS[kind](**fields), setting)
        prepare(replace(e, model=replace(e.model, **model)))
    assert message in str(caught.value)
