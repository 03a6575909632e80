"""Passes over images that `start` asks for: made for all jobs at once, with the numbers of each job alone."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmark.data.partition import Dirichlet
from benchmark.errors import ConfigError
from benchmark.federated.batches import passes, sizes_of
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.evaluate import chunks, logits_of
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked.asking import Images, Read
from benchmark.federated.stacked.batch_norms import NormByBatch, named_statistics, same_sizes
from benchmark.federated.stacked.engine import StackedEngine, waves
from benchmark.federated.stacked.layers import is_stacking
from benchmark.federated.stacked.passes import Passes, views_in
from benchmark.methods import protocol as fl
from benchmark.methods.static_norm import StatisticsUpdate
from benchmark.models.build import NETWORKS, Model, build
from benchmark.models.norms import statistics_over
from tests.federated.test_stacked import Both, longer
from tests.federated.test_stacked_faults import Plain, users, users_experiment
from tests.federated.test_together import apart_and_together
from tests.methods.golden import TRACES

pytestmark = pytest.mark.usefixtures("in_float64")


def with_clients(name: str, K: int, **fields: Any) -> Any:
    experiment = longer(TRACES[name], 4)  # the last round of SemiFL has one more update of the server
    federation = replace(experiment.federation, K=K, C=K)
    return replace(experiment, federation=federation, **fields)


# Passes of one round: predictions of all clients are one, statistics of the server and all clients one each time.
ROUNDS = {"semifl": 1, "semifl-static-batch-norm": 2, "flfl": 1, "feddb": 1, "fedmatch": 1}


@pytest.mark.parametrize("name", ROUNDS)
def test_the_passes_of_twelve_clients_are_one(name):
    both = Both(with_clients(name, 12))
    both.play(2)
    before = both.engine.runner.passes.count
    both.play_round(3)
    assert both.engine.runner.passes.count - before == ROUNDS[name]
    assert both.off < 1e-11


@pytest.mark.parametrize("name", ["semifl-static-batch-norm", "flfl-released", "heterofl"])
@pytest.mark.parametrize("most", [1, 7, 64])
def test_chunks_move_no_number(name, most):
    """Also of clients with different numbers of images; a pass for statistics has at least one batch."""
    experiment = longer(TRACES[name], 3)
    if name != "heterofl":
        experiment = replace(experiment, partition=Dirichlet(alpha=0.5))
    both = Both(experiment)
    both.engine.runner.passes.most = most
    both.play(2)
    assert both.engine.runner.passes.count and not both.engine.runner.passes.refused
    assert both.off < 1e-11


def test_memory_that_does_not_suffice_makes_smaller_passes(monkeypatch):
    """Of more than 100 images the device has no memory."""

    def limited(*arguments: Any) -> Tensor:
        images_NCHW = views_in(*arguments)
        if len(images_NCHW) > 100:
            raise torch.OutOfMemoryError("out of memory")
        return images_NCHW

    monkeypatch.setattr("benchmark.federated.stacked.passes.views_in", limited)
    both = Both(with_clients("semifl-static-batch-norm", 6))
    both.play(2)
    assert 1 <= (both.engine.runner.passes.most or 0) <= 100
    assert both.off < 1e-11


@pytest.mark.parametrize("name", ["semifl-static-batch-norm", "fedmatch", "remixmatch"])
def test_passes_of_several_seeds(name):
    off, together = apart_and_together(longer(TRACES[name], 3), rounds=(2, 2, 1))
    assert off < 1e-11 and not together.shared.passes.refused


# --- statistics ---


def statistics_reads(sizes: list[int], batch_size: int, pooled: bool) -> tuple[list[Read], nn.Module, list[Any]]:
    """Reads of parts of these sizes, a network, and what each part's own pass measures."""
    environment = prepare(longer(TRACES["semifl-static-batch-norm"], 1))
    network = environment.network()
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    reads, expected, first = [], [], 0
    for size in sizes:
        part = environment.part(0, "unlabelled")
        part = replace(part, positions_N=torch.arange(first, first + size))
        first += size
        images = Images(environment=environment, part=part)
        question = ("statistics", "unlabelled", batch_size, pooled)
        options: dict[str, Any] = {"batch_size": batch_size, "pooled": pooled}
        reads.append(Read(question=question, model=None, weights=weights, images=images, **options))
        batches = list(chunks(environment, part, "plain", batch_size, None))
        expected.append(statistics_over(network, batches, pooled=pooled)[0])
    return reads, network, expected


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("most", [None, 1, 20])
def test_statistics_are_those_of_each_batch(pooled, most):
    """Batches of 16 images, of whose parts the last has 1, 2, 15, 16 or all images."""
    reads, network, expected = statistics_reads([17, 18, 47, 32, 3], 16, pooled)
    answers = Passes(most=most).answers(reads, lambda model: network)
    for answer, statistics in zip(answers, expected, strict=True):
        assert answer.values is not None
        actual = named_statistics(network, answer.values)
        assert actual.keys() == statistics.keys()
        for name, value_C in statistics.items():
            torch.testing.assert_close(actual[name], value_C, rtol=1e-11, atol=1e-12)


def test_a_batch_of_one_value_is_left_to_the_job(monkeypatch):
    """It raises the error that a batch norm raises, in the name of the job that has the batch."""
    norm = NormByBatch(3)
    norm.groups = same_sizes([2, 1], torch.device("cpu"))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(torch.randn(3, 3, 1, 1))
    assert norm(torch.randn(3, 3, 2, 1)).shape == (3, 3, 2, 1)


# --- evaluation mode, different weights ---


def buildable() -> list[Model]:
    """Yield each network with each norm that it supports."""
    models = []
    for network in NETWORKS:
        for norm in ("gn", "bn", "sbn", "none"):
            try:
                models.append(Model(network=network, norm=norm, norm_groups=4))
            except ConfigError:
                continue
    return models


@pytest.mark.parametrize("model", buildable(), ids=lambda model: f"{model.network}-{model.norm}")
def test_logits_of_different_weights(model):
    """In one pass, of 3, 1 and 2 images: those of each network alone. This stands in for the guard of steps."""
    environment = prepare(longer(TRACES["crl-fedavg"], 1))
    shape = environment.data.image_shape
    D = environment.data.num_classes
    try:
        networks = [build(model, shape, D, seed=seed).double().eval() for seed in range(3)]
    except (ConfigError, ValueError, RuntimeError):
        pytest.skip("the network needs larger images")
    reads, expected = [], []
    for network, count in zip(networks, (3, 1, 2), strict=True):
        for buffer in network.buffers():
            if buffer.is_floating_point():
                buffer.add_(torch.rand_like(buffer))
        part = replace(environment.part(0, "unlabelled"), positions_N=torch.arange(count))
        weights = {name: value.clone() for name, value in network.state_dict().items()}
        images = Images(environment=environment, part=part)
        reads.append(Read(question=("predict", "unlabelled", "plain"), model=model, weights=weights, images=images))
        expected.append(logits_of(network, environment, part))
    passes = Passes()
    answers = passes.answers(reads, lambda _: build(model, shape, D, seed=5).double())
    assert passes.count < 3 and not passes.refused  # a large network's weights limit a pass
    for answer, logits_ND in zip(answers, expected, strict=True):
        torch.testing.assert_close(answer.values, logits_ND, rtol=1e-9, atol=1e-11)


# --- users' methods ---


@dataclass(frozen=True, kw_only=True)
class Reads(Plain):
    """Its `start` asks for four passes with draws in between, of weights of its own, and catches what it can."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        kept = private or {"calls": [], "last": received["student"]}
        kept["calls"].append(1)
        before = torch.rand((), generator=reader.draw)
        try:
            weak_ND = reader.predict(received["student"], "labelled", "weak")
        except Exception:
            return None
        weak_ND.mul_(2.0)  # it belongs to the job
        between = torch.rand((), generator=reader.draw)
        own = {name: value * (1 + received["extra"][0] / 10) for name, value in received["student"].items()}
        strong_ND = reader.predict(own, "labelled", "strong")
        noise_D = reader.on_noise(kept["last"])
        again_D = reader.on_noise(own)
        statistics, count = reader.statistics(received["student"], "labelled", 7, pooled=True)
        sums = [weak_ND.sum(), strong_ND.sum(), noise_D.sum(), again_D.sum()]
        drawn = torch.stack([before, between, torch.rand((), generator=reader.draw), torch.rand(())])
        notes = {"sums": torch.stack(sums), "drawn": drawn, "count": torch.tensor(count)}
        return fl.Local(trainable={"student": received["student"]}, private=kept, notes=notes)

    def finish(self, local: fl.Local) -> fl.Tree:
        kept = local.private or {}
        kept["last"] = {name: value.clone() for name, value in local.trainable["student"].items()}
        calls = torch.tensor(len(kept["calls"]))
        notes = {name: local.notes[name] for name in ("sums", "drawn", "count")}
        return {"student": local.trainable["student"], "calls": calls, **notes}


@pytest.mark.parametrize("clients", [2, 5])
def test_a_start_with_several_passes_and_draws(clients):
    """It is called again from the beginning, which nothing shows: neither draws, nor lists that grow."""
    both = users(Reads, rounds=3, K=clients, C=clients)
    assert both.together and not both.engine.runner.passes.refused
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Wavers(Plain):
    """Each call of its `start` asks otherwise than the call before."""

    calls: list[int] = field(repr=False)

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        self.calls.append(1)
        for _ in range(2):
            reader.predict(received["student"], "labelled", ("plain", "weak")[len(self.calls) % 2])
        return super().start(received, private, reader)


def test_a_start_that_asks_otherwise_makes_its_passes_itself():
    calls: list[int] = []
    both = users(lambda client, number: Wavers(calls=calls), rounds=1)
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Misfits(Plain):
    """Of client 2, the weights do not fit the network."""

    client: int

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        weights = dict(received["student"])
        if self.client == 2:
            weights.popitem()
        reader.on_noise(weights)
        return super().start(received, private, reader)


def test_weights_that_do_not_fit_end_the_run_as_they_do_alone():
    messages = []
    for make in (ReferenceEngine, StackedEngine):
        environment = prepare(users_experiment(lambda client, number: Misfits(client=client)))
        module = FederatedModule(environment, make(environment))
        with pytest.raises(ConfigError) as raised:
            module.training_step(1, 0)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


@dataclass(frozen=True, kw_only=True)
class Overflows(Plain):
    """Client 1 looks at its images with weights that are not finite; its answer goes no further than its notes."""

    client: int

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        factor = torch.nan if self.client == 1 else 1.0 + self.client / 10
        own = {name: value * factor for name, value in received["student"].items()}
        logits_ND = reader.predict(own, "labelled", "plain")
        return fl.Local(trainable={"student": received["student"]}, notes={"sum": logits_ND.sum()})

    def finish(self, local: fl.Local) -> fl.Tree:
        return {"student": local.trainable["student"], "sum": torch.nan_to_num(local.notes["sum"], nan=-1.0)}


def test_weights_that_are_not_finite_do_not_disturb_others():
    both = users(lambda client, number: Overflows(client=client), rounds=2)
    sums = [float(sent["sum"]) for sent in both.stacked.state.server["others"].values()]
    assert sums[1] == -1.0 and -1.0 not in (sums[0], *sums[2:])
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class OneAtATime(Plain):
    """Its loss reads a number, so that its jobs train one at a time."""

    calls: list[int] = field(repr=False)

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        self.calls.append(1)
        return super().start(received, private, reader)

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * float(loss.detach()), aux


@pytest.mark.filterwarnings("ignore")
def test_start_of_a_job_that_trains_alone_is_called_once():
    """From the second round on; in the first one the guard has tried out its steps."""
    calls: list[int] = []
    environment = prepare(users_experiment(lambda client, number: OneAtATime(calls=calls)))
    module = FederatedModule(environment, StackedEngine(environment))
    module.training_step(1, 0)
    calls.clear()
    module.training_step(2, 0)
    assert len(calls) == environment.K


@dataclass(frozen=True, kw_only=True)
class WrongOnSmall(Plain):
    """Stands for a rule that is wrong for batches of fewer than 8 images."""

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        is_small = len(step.batch["labelled"].known_N) < 8
        return loss * (1.001 if is_small and is_stacking() else 1.0), aux


@pytest.mark.filterwarnings("ignore")
def test_the_guard_compares_each_size_of_batches():
    both = users(lambda client, number: WrongOnSmall(), rounds=2)
    assert "from the same job trained separately" in both.engine.runner.counts.reasons["WrongOnSmall"]
    assert both.off == 0.0


@pytest.mark.parametrize("size, batch_size, steps", [(20, 8, 7), (5, 8, 3), (16, 8, 3), (17, 8, 1), (9, 8, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_sizes_of_batches_are_known_before_they_are_drawn(size, batch_size, steps, drop_last):
    drawn = passes(size, batch_size, steps, drop_last, np.random.default_rng(0))
    assert sizes_of(size, batch_size, steps, drop_last) == list(map(len, drawn))


def test_stateless_jobs_of_one_participant_are_in_one_wave():
    def job(client: int, update: fl.LocalUpdate) -> fl.Job:
        return fl.Job(key=fl.Key(client=client), update=update, receives={}, data={}, limit=fl.Limit(steps=1))

    asks, trains = StatisticsUpdate(part="labelled", pooled=True), Plain()
    assert waves([job(0, asks), job(0, asks), job(0, trains), job(0, trains), job(0, asks)]) == [[0, 1, 2, 4], [3]]
