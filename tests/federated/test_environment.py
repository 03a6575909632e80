"""Who holds which images in every label setting, in streaming rounds, and with the pooled split."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmark.data.partition import FedMatchSkew, Iid
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Experiment, Federation
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import prepare
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Stream
from benchmark.methods.ssfl import CRL
from benchmark.methods.supervised_fl import SupervisedFL
from tests.conftest import tiny_experiment

METHOD = SupervisedFL(batch_size=8)  # works wherever clients have labels


def settled(setting: Any, **changes: Any) -> Experiment:
    base = tiny_experiment()
    data = replace(base.data, label_setting=setting, **changes)
    return replace(base, data=data, method=base.method if setting == "server" else METHOD)


SETTINGS: dict[str, dict[str, Any]] = {
    "server": {},
    "everywhere": {},
    "every_client": {"N_s": 0, "labels_per_client": 2},
    "some_clients": {"N_s": 0, "labelled_clients": 2},
    "share": {"N_s": 0, "labelled_share": 0.25},
    "one_more_client": {},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_image_is_held_once(setting):
    """1,397 training images of the digits (1,797 less 400 for the test): none twice, none lost."""
    environment = prepare(settled(setting, **SETTINGS[setting]))
    names = ["unlabelled"] if setting == "everywhere" else ["labelled", "unlabelled"]
    held = [environment.part(client, name).positions_N for client in range(environment.K) for name in names]
    everyone = torch.cat([environment.part(SERVER, "labelled").positions_N, *held])
    assert len(everyone) == len(everyone.unique()) == len(environment.data.train_labels_N) == 1397
    assert sum(environment.sizes.values()) == 1397


@pytest.mark.parametrize(
    ("setting", "labelled", "clients"),
    [
        ("server", [0, 0, 0, 0], 4),
        ("every_client", [20, 20, 20, 20], 4),  # 2 of each of 10 classes
        ("one_more_client", [0, 0, 0, 0, 20], 5),
    ],
)
def test_labels_by_holder(setting, labelled, clients):
    environment = prepare(settled(setting, **SETTINGS[setting]))
    assert [environment.labelled[client] for client in range(clients)] == labelled and clients == environment.K
    assert environment.labelled[SERVER] == (20 if setting == "server" else 0)


def test_some_clients_have_all_labels_or_none():
    environment = prepare(settled("some_clients", **SETTINGS["some_clients"]))
    both = [(len(environment.part(k, "labelled")), len(environment.part(k, "unlabelled"))) for k in range(4)]
    assert sorted(labelled == 0 for labelled, _ in both) == [False, False, True, True]
    assert all((labelled == 0) != (unlabelled == 0) for labelled, unlabelled in both)


def test_labels_are_hidden_where_the_setting_hides_them():
    """Only "everywhere" shows the labels of the part "unlabelled"; measuring has the truth in any case."""
    for setting, changes in SETTINGS.items():
        part = prepare(settled(setting, **changes)).part(0, "unlabelled")
        assert (part.labels_N is not None) == (setting == "everywhere") and part.truth_N is not None


def test_images_arrive_in_steps():
    """Ten steps: rounds 1 to 10 see disjoint tenths of a client's images, round 11 the first again."""
    environment = prepare(settled("server", streaming_steps=10))
    rounds = [environment.part(2, "unlabelled", r).positions_N for r in range(1, 12)]
    together = torch.cat(rounds[:10])
    assert len(together.unique()) == len(together) == environment.sizes[2]
    assert max(map(len, rounds)) - min(map(len, rounds)) <= 1
    assert torch.equal(rounds[10], rounds[0])


def test_a_round_trains_on_what_has_arrived():
    environment = prepare(settled("server", streaming_steps=10))
    job = Job(
        key=Key(client=2),
        update=CRL().update(keeps_momentum=False),
        receives={},
        data={"unlabelled": Stream(part="unlabelled", batch_size=8, views=("plain",), drop_last=False)},
        limit=Limit(epochs=1),
    )
    for round_number in (1, 2):
        arrived = environment.part(2, "unlabelled", round_number)
        batches = [batch.streams["unlabelled"].views["plain"] for batch in JobBatches(environment, job, round_number)]
        drawn = torch.cat(batches).double().flatten(1).sum(dim=1).sort().values
        data = environment.data
        images = (data.train_images_NCHW[arrived.positions_N].double() / 255 - data.mean[0]) / data.std[0]
        assert torch.allclose(drawn, images.flatten(1).sum(dim=1).sort().values, atol=1e-3)


def test_more_steps_than_images_is_told():
    with pytest.raises(ConfigError, match="data.streaming_steps: 500, but client"):
        prepare(settled("server", streaming_steps=500))


def test_fedmatch_s_split_pools_train_and_test():
    """1,797 digits, 200 for the test and 200 for validation: 1,397 left, as FedMatch's 56,000 of 60,000."""
    base = settled("server", pooled_test=200, N_validation=200)
    environment = prepare(replace(base, partition=FedMatchSkew(), federation=Federation(K=10, C=5, T=2, rounds=2)))
    assert len(environment.data.test_labels_N) == 200 == len(environment.split.validation_N)
    assert sum(environment.sizes.values()) == 1397
    assert environment.data.content_hash != prepare(base.__class__()).data.content_hash


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"label_setting": "server", "labels_per_client": 3}, "labels_per_client"),
        ({"label_setting": "share", "labelled_clients": 2}, "labelled_clients"),
        ({"label_setting": "share", "labelled_share": 1.0}, "labelled_share"),
        ({"label_setting": "server", "N_s": 0}, "N_s"),
        ({"streaming_steps": 0}, "streaming_steps"),
    ],
)
def test_settings_that_do_nothing_or_make_no_sense_are_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        Data(**changes)


def test_the_server_s_images_do_not_depend_on_who_else_has_labels():
    """Runs that differ in the label setting alone are paired by seed."""
    environments = [prepare(replace(settled(s), partition=Iid())) for s in ("server", "everywhere")]
    server = [environment.part(SERVER, "labelled").positions_N for environment in environments]
    more = prepare(replace(settled("one_more_client"), partition=Iid()))
    assert torch.equal(server[0], server[1]) and torch.equal(server[0], more.part(4, "labelled").positions_N)


@pytest.mark.parametrize("setting", ["server", "everywhere", "some_clients", "share"])
def test_a_cap_on_images_holds_for_every_label_setting(setting):
    changes: dict[str, Any] = {"images": 500, **({"N_s": 0} if setting in ("some_clients", "share") else {})}
    environment = prepare(settled(setting, **changes))
    parts = [environment.split.server_N, *environment.held.labelled, *environment.held.unlabelled]
    assert len({int(position) for part_N in parts for position in part_N}) == 500
