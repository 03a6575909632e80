"""Supervised FL: FedAvg written out again, FedProx's limits, and which clients train on what."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from benchmark.errors import ConfigError
from benchmark.experiment import from_json, to_json
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.averaging import labelled_cohort
from benchmark.methods.objectives import StudentUpdate
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Stream
from benchmark.methods.supervised_fl import SupervisedFL
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, equal, module_of, weights_after

BASE = tiny_experiment()
SETTINGS = ("everywhere", "every_client", "some_clients", "share", "one_more_client")


def experiment(setting, method=None, **factors):
    """Labels at clients; the server has some only where the setting cannot be without."""
    N_s = 20 if setting in ("everywhere", "one_more_client") else 0
    data = replace(BASE.data, label_setting=setting, N_s=N_s)
    method = SupervisedFL(batch_size=8) if method is None else method
    return replace(BASE, data=data, method=method, federation=replace(BASE.federation, **factors))


class Watch:
    def __init__(self, module):
        self.seen = []
        module.observers.append(self)

    def on_job(self, job, round_number):
        pass

    def on_outcome(self, job, outcome):
        self.seen.append((job, outcome))


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(StudentUpdate):
    """FedAvg's local step, without anything of the method under test."""

    def loss(self, trainable, frozen, batch, draw):
        return F.cross_entropy(trainable["student"](batch["labelled"].views["weak"]), batch["labelled"].labels_N), {}


@pytest.mark.parametrize("weighting", ["size", "uniform"])
@pytest.mark.parametrize("proximal", ["half", "full"])
def test_without_a_pull_it_is_fedavg(weighting, proximal):
    """w <- sum_k n_k w_k / n over clients that each took T steps on all their images: bit by bit, two rounds."""
    method = SupervisedFL(batch_size=8, mu=0.0, proximal=proximal, weighting=weighting)
    environment = prepare(experiment("everywhere", method))
    module, engine = module_of(environment.experiment, environment), ReferenceEngine(environment)
    weights = weights_of(environment.network())
    sizes = [len(environment.split.clients[client]) for client in range(4)]
    assert len(set(sizes)) > 1  # else the two ways to weigh would be one
    stream = Stream(part="labelled", batch_size=8, views=("weak",), drop_last=False)
    for round_number in (1, 2):
        cohort = module._world(round_number).cohort()
        jobs = [
            Job(
                key=Key(client=client), update=CrossEntropy(), receives={"student": weights},
                data={"labelled": stream}, limit=Limit(steps=2),
            )
            for client in cohort
        ]  # fmt: skip
        share = [float(sizes[client]) if weighting == "size" else 1.0 for client in cohort]
        students = [outcome.sends["student"] for outcome in engine.fit(jobs, round_number, {})]
        weights = {
            name: (sum(n * s[name].double() for n, s in zip(share, students, strict=True)) / sum(share)).float()
            for name in weights
        }
        module.training_step(round_number, 0)
        assert equal(module.state.server["student"], weights)


def test_the_first_local_step_feels_no_pull():
    """w = w_received there, so that the gradient of mu/2 ||w - w_received||^2 is 0; the second step does feel it."""
    pulled = SupervisedFL(batch_size=8, mu=5.0)
    assert difference(*(weights_after(experiment("every_client", m, T=1), 1) for m in (None, pulled))) < 1e-7
    assert difference(*(weights_after(experiment("every_client", m, T=2), 1) for m in (None, pulled))) > 1e-5


def test_a_pull_keeps_clients_near_what_they_received():
    """||w_k - w_received|| after 6 steps of rate .05 falls with mu (.05 x mu < 1: the pull is stable)."""
    lengths = []
    for mu in (0.0, 1.0, 4.0):
        module = module_of(experiment("every_client", SupervisedFL(batch_size=8, mu=mu), T=6))
        watch = Watch(module)
        module.training_step(1, 0)
        moved = [
            (outcome.sends["student"][name] - weight).square().sum()
            for job, outcome in watch.seen
            for name, weight in job.receives["student"].items()
        ]
        lengths.append(float(torch.stack(moved).sum()))
    assert lengths[0] > lengths[1] > lengths[2] > 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_holders_of_labels_train_on_all_of_them_and_nobody_else_trains(setting):
    """One epoch of B = 8: ceil(n_k / 8) steps at each of the cohort's clients with n_k > 0 labels."""
    module = module_of(experiment(setting, epochs=1))
    watch = Watch(module)
    module.training_step(1, 0)
    labelled = module.environment.labelled
    holders = [client for client in module._world(1).cohort() if labelled[client]]
    if not holders:
        holders = [client for client in range(module.environment.K) if labelled[client]]
    assert [job.key.client for job, _ in watch.seen] == holders
    for job, outcome in watch.seen:
        held = module.environment.part(job.key.client, "labelled")
        assert outcome.steps == -(-len(held) // 8) == -(-labelled[job.key.client] // 8)
    if setting == "everywhere":
        assert sum(labelled[client] for client in holders) == sum(map(len, module.environment.split.clients))


def test_a_cohort_without_labels_is_drawn_from_those_with_labels():
    """K = 4, C = 1, one labelled client: it trains in every round, whoever was drawn."""
    module = module_of(experiment("some_clients", C=1, rounds=6))
    (holder,) = [client for client in range(4) if module.environment.labelled[client]]
    worlds = [module._world(round_number) for round_number in range(1, 7)]
    assert {labelled_cohort(world)[0] for world in worlds} == {holder}
    assert any(world.cohort() != [holder] for world in worlds)
    before = module.state.server["student"]
    module.training_step(1, 0)
    assert difference(before, module.state.server["student"]) > 0


def test_a_new_draw_is_no_larger_than_a_cohort():
    """K = 4, C = 1, two labelled clients: one of them trains, in the end both were drawn."""
    base = experiment("some_clients", C=1, rounds=24)
    module = module_of(replace(base, data=replace(base.data, labelled_clients=2)))
    cohorts = [labelled_cohort(module._world(round_number)) for round_number in range(1, 25)]
    assert all(len(cohort) == 1 for cohort in cohorts)
    assert {cohort[0] for cohort in cohorts} == {client for client in range(4) if module.environment.labelled[client]}


@pytest.mark.parametrize("setting", SETTINGS[1:])
def test_hidden_labels_move_no_bit(setting):
    environment = prepare(experiment(setting))
    hidden_N = torch.ones(len(environment.data.train_labels_N), dtype=torch.bool)
    for positions_N in environment.held.labelled:
        hidden_N[torch.as_tensor(positions_N)] = False
    weights = weights_after(environment.experiment, 2, environment)
    for chosen_N, moved in ((hidden_N, False), (~hidden_N, True)):
        labels_N = torch.where(chosen_N, (environment.data.train_labels_N + 1) % 10, environment.data.train_labels_N)
        changed = replace(environment, data=replace(environment.data, train_labels_N=labels_N))
        assert equal(weights, weights_after(environment.experiment, 2, changed)) is not moved


def test_static_batch_norm_is_given_statistics():
    """They come from holders of images after averaging; without the pass they would stay 0 and 1."""
    base = experiment("everywhere")
    weights = weights_after(replace(base, model=replace(base.model, norm="sbn")), 1)
    assert all(bool((value != 0).all()) for name, value in weights.items() if name.endswith("running_mean"))
    assert any(name.endswith("running_mean") for name in weights)


def test_labels_at_the_server_alone_are_refused():
    with pytest.raises(ConfigError, match="label_setting.*'everywhere'"):
        replace(BASE, method=SupervisedFL())
    setup = prepare(BASE).setup()
    assert setup.labelled[SERVER] == 20
    with pytest.raises(ConfigError, match="no client holds labels.*'server_only'"):
        SupervisedFL().check(setup)


def test_settings_that_are_refused_and_read():
    with pytest.raises(ConfigError, match="mu: -1.0"):
        SupervisedFL(mu=-1.0)
    with pytest.raises(ConfigError, match="batch_size: 0"):
        prepare(experiment("share", SupervisedFL(batch_size=0)))
    mine = experiment("share", SupervisedFL(mu=0.5, weighting="uniform"))
    assert to_json(mine)["method"]["kind"] == "supervised_fl" and from_json(to_json(mine)) == mine
