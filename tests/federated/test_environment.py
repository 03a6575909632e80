"""Who holds which images in every label setting, in streaming rounds, and with the pooled split."""

from dataclasses import replace

import pytest
import torch

from benchmark.data.partition import Dirichlet, FedMatchSkew
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Federation
from benchmark.federated.batches import JobBatches
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.evaluate import Evaluator
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Stream
from benchmark.methods.ssfl import CRL
from benchmark.methods.supervised_fl import SupervisedFL
from tests.conftest import tiny_experiment
from tests.federated.helpers import agree, weights_after
from tests.methods.watch import tiny_with


def test_a_round_trains_on_what_has_arrived():
    """Each image once, with its own label, where labels show."""
    e = tiny_with(SupervisedFL(batch_size=8), "everywhere")
    environment = prepare(replace(e, data=replace(e.data, streaming_steps=10)))
    again, first = (environment.part(2, "unlabelled", round_number).positions_N for round_number in (11, 1))
    assert torch.equal(again, first)
    job = Job(
        key=Key(client=2),
        update=CRL().update(keeps_momentum=False),
        receives={},
        data={"unlabelled": Stream(part="unlabelled", batch_size=8, views=("plain",), drop_last=False)},
        limit=Limit(epochs=1),
    )
    data = environment.data
    for round_number in (1, 2):
        at_N = environment.part(2, "unlabelled", round_number).positions_N
        batches = [batch.streams["unlabelled"] for batch in JobBatches(environment, job, round_number)]
        drawn_NCHW = torch.cat([batch.views["plain"] for batch in batches]).double()
        labels_N = torch.cat([batch.labels_N for batch in batches if batch.labels_N is not None])
        images_NCHW = (data.train_images_NCHW[at_N].double() / 255 - data.mean[0]) / data.std[0]
        drawn_N, expected_N = (images.flatten(1).sum(dim=1).sort() for images in (drawn_NCHW, images_NCHW))
        assert torch.allclose(drawn_N.values, expected_N.values, atol=1e-3)
        assert torch.equal(labels_N[drawn_N.indices], data.train_labels_N[at_N][expected_N.indices])


def test_the_contract_of_sizes_where_labels_are_drawn_apart():
    """`sizes - labelled` is the part "unlabelled", which has the client's labelled images, too, and no label shows.

    1,397 digits, m of each class labelled; 4 clients, whose labels and others are each as many up to one.
    """
    data = Data(N_s=0, label_setting="drawn_apart", labelled_share=0.1)
    base = replace(tiny_experiment(), data=data, partition=Dirichlet(alpha=0.5, rule="sage"), method=FedProxFixMatch())
    environment = prepare(base)
    m = int(environment.data.train_labels_N.bincount().min()) // 10
    assert sum(environment.labelled[client] for client in range(4)) == 10 * m and environment.sizes[SERVER] == 0
    for client in range(4):
        labelled, unlabelled = (environment.part(client, part) for part in ("labelled", "unlabelled"))
        assert len(unlabelled) == environment.sizes[client] - environment.labelled[client]
        assert 0 <= len(labelled) - 10 * m // 4 <= 1 and len(labelled) == environment.labelled[client]
        assert 0 <= len(unlabelled) - len(labelled) - (1397 - 10 * m) // 4 <= 1
        assert set(labelled.positions_N.tolist()) <= set(unlabelled.positions_N.tolist())
        assert unlabelled.labels_N is None


def test_released_statistics_move_what_is_measured_and_no_weight():
    """A gray set's test images are normalised by .801 times the deviation, (.2023 + .1994 + .2010) / (.2471 + .2435 +
    .2616), so that they are 1.25 times as large; training images are as ever."""
    base = tiny_experiment()
    environment = prepare(replace(base, data=replace(base.data, test_statistics="released_code")))
    as_ever = prepare(base)
    data = as_ever.data
    smaller = replace(as_ever, data=replace(data, std=(data.std[0] * 0.6027 / 0.7522,)))
    assert agree(weights_after(base, environment=environment), weights_after(base, environment=as_ever))
    voters = [weights_of(as_ever.network())]
    measured = Evaluator(environment).measure(voters)
    assert measured == pytest.approx(Evaluator(smaller).measure(voters), rel=1e-6)
    assert measured["test/loss"] != pytest.approx(Evaluator(as_ever).measure(voters)["test/loss"], rel=1e-5)


def test_fedmatch_s_split_pools_train_and_test():
    """1,797 digits, 200 for the test and 200 for validation: 1,397 left, as FedMatch's 56,000 of 60,000."""
    base = tiny_experiment(partition=FedMatchSkew(), federation=Federation(K=10, C=5, T=2, rounds=2))
    environment = prepare(replace(base, data=replace(base.data, pooled_test=200, N_validation=200)))
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
        ({"label_setting": "drawn_apart", "N_s": 50}, "N_s is 50, .* choose 0"),
        ({"streaming_steps": 0}, "streaming_steps"),
    ],
)
def test_settings_that_do_nothing_or_make_no_sense_are_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        Data(**changes)
