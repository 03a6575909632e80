"""Settings of methods that are impossible are refused."""

from dataclasses import replace

import pytest
from torch import nn

from benchmark.errors import ConfigError
from benchmark.federated.environment import prepare
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.fedirm import FedIRM
from benchmark.methods.fedmatch import FedMatch
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.heterofl import HeteroFL
from benchmark.methods.lg_fedavg import LGFedAvg
from benchmark.methods.proxyfl import ProxyFL
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import CRL, FedAvg, Grouping, SelfTraining, Supervised
from tests.conftest import tiny_experiment
from tests.methods.watch import tiny_with


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CRL(views="one_forward", pseudo_label_mode="eval"), "choose views 'two_forwards'"),
        (
            lambda: RSCFed(labelled_share=0.3, labelled_weight="by_size"),
            "choose labelled_weight 'per_round' or 'per_subset'",
        ),
        (lambda: FedSwitch(first_round="student", unsent_teacher="keep_last"), "never measures a teacher"),
    ],
)
def test_impossible_values_are_refused(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert message in str(caught.value)


class OwnNet(nn.Module):
    def __init__(self, image_shape, num_classes, norm):
        super().__init__()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images_NCHW):
        return self.fc(images_NCHW.flatten(1))


def crl(**changes):
    return replace(tiny_experiment().method, **changes)


@pytest.mark.parametrize(
    ("method", "setting", "changes", "message"),
    [
        (crl(objective=Supervised()), "server", {}, "'server' does not suit"),
        (crl(averaging=Grouping(S=5)), "server", {}, "5 groups of 4 clients; choose S from 1 to 4"),
        (crl(averaging=FedAvg(server_weight=0.5)), "every_client", {}, "server_weight: 0.5 with labels at the clients"),
        (crl(client_labels="released_code"), "server", {}, "client_labels: 'released_code' does nothing"),
        (
            crl(client_labels="released_code", objective=SelfTraining()),
            "every_client",
            {},
            "client_labels: 'released_code' does nothing",
        ),
        (crl(bn_statistics="slot"), "server", {}, "'slot' has no effect but with self-training"),
        (FedIRM(passes=5), "some_clients", {}, "passes: 5 does nothing with a network without dropout"),
        (LGFedAvg(private_layers=9), "everywhere", {}, "private_layers: 9 of"),
        (LGFedAvg(private_layers=1), "everywhere", {"norm": "bn"}, "model.norm: 'bn'"),
        (HeteroFL(widths=(0.0625,)), "everywhere", {}, "leaves parts of channels or groups"),
        (HeteroFL(widths=(0.0625,)), "everywhere", {"norm": "bn"}, "choose sbn"),
        (ProxyFL(), "share", {"network": f"{__name__}:OwnNet"}, "OwnNet has no features; make it a benchmark.models"),
        (ServerOnly(images="everyones"), "server", {}, "choose data.label_setting everywhere"),
        (RSCFed(subset=5), "some_clients", {}, "choose 1 to 4"),
        (RSCFed(subset=3), "server", {}, "one_more_client"),
        (crl(), "server", {"norm": "sbn"}, "model.norm: 'sbn' with method 'ssfl', which asks for no statistics"),
        (FedMatch(), "server", {"norm": "bn"}, "model.norm: 'bn'"),
        (DataSharing(alpha=0.01), "server", {}, "alpha: 0.01 of 20 images gives a client none"),
        (DataSharing(), "every_client", {}, "N_s: 0 labelled images at the server"),
    ],
)
def test_impossible_settings_are_refused_before_training(method, setting, changes, message):
    with pytest.raises(ConfigError) as caught:
        e = tiny_with(method, setting)
        prepare(replace(e, model=replace(e.model, **changes)))
    assert message in str(caught.value)
