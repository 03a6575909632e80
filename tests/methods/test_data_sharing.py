"""DataSharing: what is handed out, what is trained on, and its limits: nothing shared is supervised FedAvg."""

from dataclasses import replace

import torch

from benchmark.methods.data_sharing import DataSharing, DataSharingUpdate
from benchmark.methods.protocol import SERVER
from benchmark.methods.supervised_fl import SupervisedFL
from tests.federated.helpers import difference, equal, module_of, weights_after
from tests.methods.watch import Watch, tiny_with, watched

METHOD = DataSharing(batch_size=8, server_batch_size=8, warm_start_rounds=0)


def experiment(method=METHOD, setting="everywhere", **factors):
    return tiny_with(method, setting, **factors)


def test_nothing_shared_is_supervised_fedavg():
    """alpha = 0 and no warm start: own images alone, weighed by their number; bit by bit."""
    plain = experiment(SupervisedFL(batch_size=8))
    assert equal(weights_after(experiment(replace(METHOD, alpha=0.0)), 2), weights_after(plain, 2))
    assert difference(weights_after(experiment(), 2), weights_after(plain, 2)) > 1e-4


def test_the_warm_start_is_the_server_s_training_on_g():
    """Round 1: the server's job and no other; what it sends is the model. Round 2: clients, no server."""
    _, watch = watched(experiment(replace(METHOD, warm_start_rounds=1)), 2)
    ((server, outcome),) = watch.seen[1]
    assert server.key.client == SERVER
    assert sorted(job.key.client for job in watch.jobs(2)) == [0, 1, 2, 3]
    assert all(equal(job.receives["student"], outcome.sends["student"]) for job in watch.jobs(2))


def test_a_client_trains_on_its_own_and_its_share_of_g():
    """N_s = 20, alpha = 1/4: 5 images each, drawn once, other ones for other clients. One epoch of B = 8 over n_k + 5
    images is ceil((n_k + 5) / 8) steps; the images are the client's own, then those of the server."""
    module = module_of(experiment(replace(METHOD, alpha=0.25), C=2, epochs=1, rounds=8))
    watch, environment = Watch(module), module.environment
    given: dict[int, tuple[int, ...]] = {}
    for round_number in range(1, 6):
        new = set(module._world(round_number).cohort()) - given.keys()
        module.training_step(round_number, 0)
        assert module.metrics["comm/shared_images"] == 5 * len(new)
        for job, outcome in watch.seen[round_number]:
            client, update = job.key.client, job.update
            assert isinstance(update, DataSharingUpdate)
            assert given.setdefault(client, update.shared_N) == update.shared_N
            own = len(environment.split.clients[client])
            assert outcome.steps == -(-(own + 5) // 8)
            local = update.start(job.receives, None, None)  # type: ignore[arg-type]  # it reads nothing
            assert local is not None
            part = environment.part(client, "with_shared")
            images = part.positions_N[local.selected["labelled"].positions_N].tolist()
            assert images[:own] == environment.split.clients[client].tolist()
            assert set(images[own:]) < set(environment.split.server_N.tolist()) and len(set(images[own:])) == 5
    assert len(given) == 4 and len(set(given.values())) > 1


def test_without_labels_of_their_own_clients_have_the_shared_ones():
    """Label setting "server": labelled batches come from G alone, the client's images are unlabelled; all of G goes
    to everybody at alpha = 1."""
    module, watch = watched(experiment(replace(METHOD, alpha=1.0, threshold=0.14), "server"))
    for job, outcome in watch.seen[1]:
        assert isinstance(job.update, DataSharingUpdate)
        assert job.update.shared_N == tuple(range(20)) and job.update.own == 0
        assert set(job.data) == {"labelled", "unlabelled"}
        part = module.environment.part(job.key.client, "with_shared")
        assert part.positions_N.tolist() == module.environment.split.server_N.tolist()
        assert {"client/supervised_loss", "client/consistency_loss"} <= outcome.metrics.keys()


def test_the_weight_is_the_size_of_the_union():
    """Sizes n_k + 10 and their students' mean, written out."""
    module, watch = watched(experiment())
    sizes = [len(module.environment.split.clients[job.key.client]) + 10 for job in watch.jobs()]
    students = [outcome.sends["student"] for _, outcome in watch.seen[1]]
    for name, value in module.state.server["student"].items():
        expected = sum(n * student[name].double() for n, student in zip(sizes, students, strict=True)) / sum(sizes)
        torch.testing.assert_close(value.double(), expected, atol=1e-6, rtol=0)
