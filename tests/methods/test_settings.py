"""Settings of methods that are impossible are refused."""

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
    """With layers of the name that a Classifier's method has, and with buffers that are constant."""

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
    assert not skip_low_confidence_images(network)  # what a network of one's own calls in `forward` is not known
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
        ("ssfl", {"averaging": Grouping(S=5)}, "server", {}, "5 groups of 4 clients; choose S from 1 to 4"),
        ("ssfl", {"averaging": FedAvg(server_weight=0.5)}, "every_client", {}, "server_weight: 0.5 with labels at the"),
        ("ssfl", VIEWS, "server", {}, "client_labels: 'released_code' does nothing"),
        ("ssfl", {**VIEWS, "objective": SelfTraining()}, "every_client", {}, "client_labels: 'released_code' does"),
        ("ssfl", {"bn_statistics": "slot"}, "server", {}, "'slot' has no effect but with self-training"),
        ("ssfl", {}, "server", {"norm": "sbn"}, "model.norm is 'sbn', but method 'ssfl' "),
        ("fedirm", {"passes": 5}, "some_clients", {}, "passes: 5 does nothing with a network without dropout"),
        ("lg_fedavg", {"private_layers": 9}, "everywhere", {}, "private_layers: 9 of"),
        ("lg_fedavg", {"private_layers": 1}, "everywhere", {"norm": "bn"}, "model.norm: 'bn'"),
        ("heterofl", {"widths": (0.0625,)}, "everywhere", {}, "leaves parts of channels or groups"),
        ("heterofl", {"widths": (0.0625,)}, "everywhere", {"norm": "bn"}, "choose sbn"),
        ("proxyfl", {}, "share", OWN_NET, "OwnNet has no features; make it a benchmark.models"),
        ("server_only", {"images": "everyones"}, "server", {}, "choose data.label_setting everywhere"),
        ("rscfed", {"subset": 5}, "some_clients", {}, "choose 1 to 4"),
        ("rscfed", {"subset": 3}, "server", {}, "one_more_client"),
        ("rscfed", BY_SIZE, "some_clients", {}, "choose labelled_weight 'per_round' or 'per_subset'"),
        ("fedmatch", {}, "server", {"norm": "bn"}, "model.norm: 'bn'"),
        ("fedmatch", {}, "server", BUFFERED, "Buffered has index, which is not trained"),
        ("fedswitch", STUDENT_FIRST, "server", {}, "never measures a teacher"),
        ("data_sharing", {"alpha": 0.01}, "server", {}, "alpha: 0.01 of 20 images gives a client none"),
        ("data_sharing", {}, "every_client", {}, "N_s: 0 labelled images at the server"),
    ],
)
def test_impossible_settings_are_refused_before_training(kind, fields, setting, model, message):
    with pytest.raises(ConfigError) as caught:
        e = tiny_with(METHODS[kind](**fields), setting)
        prepare(replace(e, model=replace(e.model, **model)))
    assert message in str(caught.value)
