"""DataSharing: what is handed out, what is trained on, and its limits: nothing shared is supervised FedAvg."""

from dataclasses import replace

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.experiment import from_json, to_json
from benchmark.federated.environment import prepare
from benchmark.methods.data_sharing import DataSharing
from benchmark.methods.protocol import SERVER
from benchmark.methods.supervised_fl import SupervisedFL
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal, module_of, weights_after

BASE = tiny_experiment()
METHOD = DataSharing(batch_size=8, server_batch_size=8, warm_start_rounds=0)


def experiment(method=METHOD, setting="everywhere", **factors):
    data = replace(BASE.data, label_setting=setting)
    return replace(BASE, data=data, method=method, federation=replace(BASE.federation, **factors))


class Watch:
    def __init__(self, module):
        self.seen = []
        module.observers.append(self)

    def on_job(self, job, round_number):
        self.round = round_number

    def on_outcome(self, job, outcome):
        self.seen.append((self.round, job, outcome))


def test_nothing_shared_is_supervised_fedavg():
    """alpha = 0 and no warm start: own images alone, weighed by their number; bit by bit."""
    plain = experiment(SupervisedFL(batch_size=8))
    assert equal(weights_after(experiment(replace(METHOD, alpha=0.0)), 2), weights_after(plain, 2))
    assert difference(weights_after(experiment(), 2), weights_after(plain, 2)) > 1e-4


def test_the_warm_start_is_the_server_s_training_on_g():
    """Round 1: the server's job and no other; what it sends is the model. Round 2: clients, no server."""
    module = module_of(experiment(replace(METHOD, warm_start_rounds=1)))
    watch = Watch(module)
    for round_number in (1, 2):
        module.training_step(round_number, 0)
    first = [(job, outcome) for r, job, outcome in watch.seen if r == 1]
    assert [job.key.client for job, _ in first] == [SERVER]
    second = [job for r, job, _ in watch.seen if r == 2]
    assert sorted(job.key.client for job in second) == [0, 1, 2, 3]
    assert all(equal(job.receives["student"], first[0][1].sends["student"]) for job in second)


def test_a_client_trains_on_its_own_and_its_share_of_g():
    """N_s = 20, alpha = 1/4: 5 images each, drawn once, other ones for other clients. One epoch of B = 8 over n_k + 5
    images is ceil((n_k + 5) / 8) steps; the images are the client's own, then those of the server."""
    module = module_of(experiment(replace(METHOD, alpha=0.25), C=2, epochs=1, rounds=8))
    watch, environment = Watch(module), module.environment
    given: dict[int, tuple[int, ...]] = {}
    for round_number in range(1, 7):
        new = set(module._world(round_number).cohort()) - given.keys()
        module.training_step(round_number, 0)
        assert module.metrics["comm/shared_images"] == 5 * len(new)
        for _, job, outcome in [seen for seen in watch.seen if seen[0] == round_number]:
            client = job.key.client
            assert given.setdefault(client, job.update.shared_N) == job.update.shared_N
            own = len(environment.split.clients[client])
            assert outcome.steps == -(-(own + 5) // 8)
            local = job.update.start(job.receives, None, None)
            part = environment.part(client, "with_shared")
            images = part.positions_N[local.selected["labelled"].positions_N].tolist()
            assert images[:own] == environment.split.clients[client].tolist()
            assert set(images[own:]) < set(environment.split.server_N.tolist()) and len(set(images[own:])) == 5
    assert len(given) == 4 and len(set(given.values())) > 1


def test_without_labels_of_their_own_clients_have_the_shared_ones():
    """Label setting "server": labelled batches come from G alone, the client's images are unlabelled; all of G goes
    to everybody at alpha = 1."""
    module = module_of(experiment(replace(METHOD, alpha=1.0, threshold=0.14), "server"))
    watch = Watch(module)
    module.training_step(1, 0)
    for _, job, outcome in watch.seen:
        assert job.update.shared_N == tuple(range(20)) and job.update.own == 0
        assert set(job.data) == {"labelled", "unlabelled"}
        part = module.environment.part(job.key.client, "with_shared")
        assert part.positions_N.tolist() == module.environment.split.server_N.tolist()
        assert {"client/supervised_loss", "client/consistency_loss"} <= outcome.metrics.keys()


def test_the_weight_is_the_size_of_the_union():
    """Sizes n_k + 10 and their students' mean, written out."""
    module = module_of(experiment())
    watch = Watch(module)
    module.training_step(1, 0)
    sizes = [len(module.environment.split.clients[job.key.client]) + 10 for _, job, _ in watch.seen]
    students = [outcome.sends["student"] for _, _, outcome in watch.seen]
    for name, value in module.state.server["student"].items():
        expected = sum(n * student[name].double() for n, student in zip(sizes, students, strict=True)) / sum(sizes)
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=0)


def test_settings_that_are_refused_and_read():
    with pytest.raises(ConfigError, match=r"alpha: 1\.5"):
        DataSharing(alpha=1.5)
    without = replace(BASE.data, label_setting="every_client", N_s=0)
    with pytest.raises(ConfigError, match=r"N_s: 0 labelled images at the server"):
        prepare(replace(BASE, data=without, method=METHOD))
    with pytest.raises(ConfigError, match=r"alpha: 0\.01 of 20 images gives a client none"):
        prepare(experiment(replace(METHOD, alpha=0.01), "server"))
    mine = experiment(replace(METHOD, alpha=0.1))
    assert from_json(to_json(mine)) == mine
