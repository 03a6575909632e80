"""Supervised methods and bounds: whole rounds against plain torch, and the images and labels that they learn from."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.experiment import Experiment
from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.data_sharing import DataSharing, DataSharingUpdate
from benchmark.methods.easgd import EASGD, MovingRate
from benchmark.methods.feddyn import FedDyn
from benchmark.methods.lg_fedavg import LGFedAvg
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.protocol import CENTRAL, SERVER, Stream, Weights
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.supervised_fl import SupervisedFL
from tests.methods.plain_torch import PlainRounds, batches, compared, experiment_of, mean, step
from tests.methods.watch import tiny_with, watched

B: Any = {"batch_size": 8}


class FedAvg(PlainRounds):
    """FedAvg and FedProx in plain torch."""

    def trained(self, client: int, start: Weights, extra: Any = lambda network: 0.0) -> Weights:
        """Take T steps on all of the client's labels."""
        network = self.network().train()
        network.load_state_dict(start)
        sgd = self.optimizer(client, network)
        view = getattr(self.method, "view", "weak")
        streams = {"labelled": Stream.whole("labelled", 8, view)}
        for batch in batches(self.environment, self.number, client, self.T, streams):
            images = batch["labelled"]
            step(sgd, F.cross_entropy(network(images.views[view]), images.labels_N) + extra(network))
        self.keep(client, sgd)
        return weights_of(network)

    def _state_key(self, client: int, name: str) -> Any:
        return client if getattr(self.method, "momentum", None) == "kept" else None

    def away(self, network: Any) -> Any:
        return sum((w - self.now[name]).square().sum() for name, w in network.named_parameters())

    def job(self, client: int) -> Any:
        factor = self.method.mu / (2 if self.method.proximal == "half" else 1)
        size = float(self.environment.labelled[client]) if self.method.weighting == "size" else 1.0
        return size, self.trained(client, self.now, lambda network: factor * self.away(network))

    def ends(self, returned: list[Any]) -> None:
        total = sum(size for size, _ in returned)
        shares = [size / total for size, _ in returned]
        self.now = mean([student for _, student in returned], shares)


class Dyn(FedAvg):
    """FedDyn in plain torch: theta is `start`, and `now` is the clients' mean, which is evaluated."""

    def begin(self) -> None:
        self.h = dict[str, Any]()
        self.g = dict[int, Any]()
        self.start = self.now

    def job(self, client: int) -> Any:
        theta = self.start
        alpha = self.method.alpha
        g = self.g.setdefault(client, {name: torch.zeros_like(w) for name, w in theta.items()})

        def extra(network: Any) -> Any:
            named = dict(network.named_parameters())
            product = sum((g[name] * w).sum() for name, w in named.items())
            return alpha / 2 * sum((w - theta[name]).square().sum() for name, w in named.items()) - product

        student = self.trained(client, theta, extra)
        self.g[client] = {name: g[name] - alpha * (w - theta[name]) for name, w in student.items()}
        return student

    def ends(self, returned: list[Any]) -> None:
        self.now = mean(returned)
        alpha = self.method.alpha
        for name, value in self.start.items():
            moved = sum(student[name].double() - value.double() for student in returned)
            self.h[name] = self.h.get(name, 0.0) - alpha / self.environment.K * moved
        self.start = {name: (value.double() - self.h[name] / alpha).float() for name, value in self.now.items()}


class Elastic(FedAvg):
    """EASGD and Overlap-Local-SGD in plain torch: `now` is the center or anchor z."""

    def begin(self) -> None:
        self.own, self.v = dict[int, Weights](), dict[str, Any]()

    def job(self, client: int) -> Any:
        alpha = self.method.alpha if isinstance(self.method, OverlapSGD) else self.method.elastic.beta / self.C
        x = self.trained(client, self.own.get(client, self.now))
        self.own[client] = {name: value - alpha * (value - self.now[name]) for name, value in x.items()}
        return self.own[client] if isinstance(self.method, OverlapSGD) else x

    @property
    def C(self) -> int:
        return self.environment.experiment.federation.C

    def ends(self, returned: list[Any]) -> None:
        for name, value in mean(returned).items():
            change = value - self.now[name]
            if isinstance(self.method, OverlapSGD):
                change = self.v[name] = self.method.beta * self.v.get(name, 0.0) + change
            else:
                change = self.method.elastic.beta * change
            self.now[name] = self.now[name] + change


class LG(FedAvg):
    def begin(self) -> None:
        self.own: dict[int, Weights] = {}

    def job(self, client: int) -> Any:
        student = self.trained(client, {**self.now, **self.own.get(client, {})})
        private = ("conv1", "norm1") if self.method.private == "first" else ("fc1", "fc2")
        if self.number > self.method.fedavg_rounds:
            self.own[client] = {name: value for name, value in student.items() if name.startswith(private)}
        size = float(self.environment.labelled[client])
        return size, {name: value for name, value in student.items() if name not in self.own.get(client, {})}

    def ends(self, returned: list[Any]) -> None:
        before = self.now
        super().ends(returned)
        self.now = {**before, **self.now}


KINDS: Any = {SupervisedFL: FedAvg, FedDyn: Dyn, EASGD: Elastic, OverlapSGD: Elastic, LGFedAvg: LG}
WAYS: dict[str, Any] = {
    "FedAvg": SupervisedFL(**B),
    "FedAvg, uniform": SupervisedFL(**B, weighting="uniform"),
    "FedProx": SupervisedFL(**B, mu=0.5),
    "FedProx, full": SupervisedFL(**B, mu=0.5, proximal="full"),
    "FedAvg, strong views": SupervisedFL(**B, view="strong"),
    "FedDyn": FedDyn(**B, alpha=0.3),
    "EASGD": EASGD(**B),
    "EASGD, reset": EASGD(**B, momentum="reset"),
    "EASGD, slower": EASGD(**B, elastic=MovingRate(beta=0.2)),
    "Overlap-SGD": OverlapSGD(**B, alpha=0.5, beta=0.3),
    "LG-FedAvg": LGFedAvg(**B, private="first"),
    "LG-FedAvg, last": LGFedAvg(**B, private="last"),
    "LG-FedAvg after FedAvg": LGFedAvg(**B, fedavg_rounds=1),
}


def of(way: str) -> Experiment:
    e = experiment_of(WAYS[way], "everywhere")
    return replace(e, federation=replace(e.federation, C=3))


def plain(experiment: Experiment, rounds: int) -> PlainRounds:
    return KINDS[type(experiment.method)](experiment, rounds)


@pytest.mark.parametrize("way", WAYS)
def test_three_rounds_by_plain_torch(way):
    """Compare with C = 3 of K = 4, so that client states remain unchanged while other clients train."""
    compared(plain, of(way), of("FedAvg"), 3)


# --- the labels that methods learn from ---


@pytest.mark.parametrize("setting", ["everywhere", "every_client", "some_clients", "share", "one_more_client"])
def test_holders_of_labels_train_on_all_of_them_and_nobody_else_trains(setting):
    """Expect ceil(n_k / 8) steps for one epoch of B = 8 at each of the cohort's clients with n_k > 0 labels."""
    e = tiny_with(SupervisedFL(**B), setting, epochs=1)
    module, watch = watched(replace(e, data=replace(e.data, images=300)))
    labelled = module.environment.labelled
    holders = [client for client in module.environment.world(1, lambda jobs: iter(())).cohort() if labelled[client]]
    if not holders:
        holders = [client for client in range(module.environment.K) if labelled[client]]
    assert [job.key.client for job in watch.jobs()] == holders
    for job, outcome in watch.seen[1]:
        held = module.environment.part(job.key.client, "labelled")
        assert outcome.steps == -(-len(held) // 8) == -(-labelled[job.key.client] // 8)
    if setting == "everywhere":
        assert sum(labelled[client] for client in holders) == sum(map(len, module.environment.split.clients))


@pytest.mark.parametrize("setting", ["everywhere", "every_client", "share", "some_clients", "server"])
def test_everyones_images_are_those_whose_labels_are_visible(setting):
    methods = {"everywhere": ServerOnly(**B, images="everyones"), "server": ServerOnly()}
    environment = prepare(tiny_with(methods.get(setting, SupervisedFL()), setting))
    split = environment.split
    visible = np.concatenate([split.server_N, *environment.assignment.labelled])
    if setting == "everywhere":
        assert len(visible) == len(split.server_N) + sum(map(len, split.clients))
    assert sorted(environment.part(CENTRAL, "everyones").positions_N.tolist()) == sorted(visible.tolist())
    assert all(len(environment.part(holder, "everyones")) == 0 for holder in (SERVER, *range(environment.K)))


# --- other behaviour ---


def test_the_ensemble_is_tested_and_private_layers_stay():
    """Compute the mean softmax of the clients' models over the test images by hand.

    A single voter is tested like any model.
    """
    module, watch = watched(tiny_with(LGFedAvg(**B, private_layers=1), "everywhere", rounds=2), 2)
    voters = module.experiment.method.voters(module.state)
    environment = module.environment
    network = module.environment.network().eval()
    data = environment.data
    total = torch.zeros(())
    images = (data.test_images_NCHW.float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        for voter in voters:
            network.load_state_dict(voter)
            total = total + network(images).softmax(dim=1)
    accuracy = (total.argmax(dim=1) == data.test_labels_N).double().mean()
    assert len(voters) == 4 and module.metrics["test/accuracy"] == pytest.approx(float(accuracy), abs=1e-9)
    one = module.evaluator.measure(voters[:1])
    assert module.evaluator.measure([voters[0], voters[0]]) == pytest.approx(one, rel=1e-5)
    for number in (1, 2):
        for job, outcome in watch.seen[number]:
            for tree in (outcome.sends["student"], job.receives["student"]):
                assert not {"conv1.weight", "conv1.bias"} & set(tree)
            assert set(job.receives.get("own", {})) == ({"conv1.weight", "conv1.bias"} if number == 1 else set())


def test_a_client_trains_on_its_own_and_its_share_of_g():
    """Run DataSharing with N_s = 20 and alpha = 1/4: 5 images per client, drawn once and differently for each client.

    One epoch of B = 8 over n_k + 5 images is ceil((n_k + 5) / 8) steps. The images are the client's own, followed by
    those of the server.
    """
    method = DataSharing(**B, server_batch_size=8, warm_start_rounds=0, alpha=0.25)
    e = tiny_with(method, "everywhere", C=2, epochs=1, rounds=8)
    module, watch = watched(replace(e, data=replace(e.data, images=300)), 5)
    environment = module.environment
    given = dict[int, tuple[int, ...]]()
    for number in range(1, 6):
        for job, outcome in watch.seen[number]:
            client = job.key.client
            update = job.update
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
    assert module.metrics["comm/shared_images"] == 0  # by round 5 all clients have their images
