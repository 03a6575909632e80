"""The local step: Lightning's Trainer and the engine do the same, and both do SGD as the text books have it."""

from dataclasses import replace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from benchmark.diagnostics.diversity import on_all_images
from benchmark.federated.batches import JobBatches, passes
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.jobs import JobReader
from benchmark.federated.local import ClientModule, ServerModule, gradient, pass_in_bfloat16, seed_job, train
from benchmark.federated.trees import moved
from benchmark.losses import supervised_loss
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.models.build import Model
from benchmark.optimizer import Constant, Optimizer
from benchmark.streams import numpy_stream, torch_stream
from tests.federated.helpers import agree, difference
from tests.methods.watch import tiny_with, watched


@pytest.fixture
def environment(tiny):
    return prepare(tiny)


@pytest.fixture
def jobs(environment):
    """Return the jobs of round 1."""
    _, watch = watched(environment.experiment, 1, environment)
    return watch.jobs()


def fresh(cls, environment, job):
    federation, sgd = environment.experiment.federation, environment.experiment.optimizer
    local = job.update.start(job.receives, None, None)
    total = federation.T * federation.rounds
    module = cls(job, local, environment.network(), sgd, lambda step: sgd.schedule.factor(step, total))
    seed_job(module, environment.experiment.seed, 1, job)
    return module


def test_a_plain_trainer_gives_the_engine_s_weights(environment, jobs):
    """Trainer(max_steps=T).fit(ClientModule) on one client's batches: bit-equal to the engine."""
    job = next(job for job in jobs if job.key.client >= 0)
    (outcome,) = ReferenceEngine(environment).fit([job], 1, {})
    module = fresh(ClientModule, environment, job)
    quiet: Any = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(max_steps=2, accelerator="cpu", devices=1, **quiet)
    trainer.fit(module, JobBatches(environment, job, 1))
    assert trainer.global_step == outcome.steps == 2
    assert agree(weights_of(module.trainable["student"]), outcome.sends["student"])
    assert difference(outcome.sends["student"], job.receives["student"]) > 0


def test_sgd_with_nesterov_momentum_and_weight_decay_by_hand(environment, jobs):
    """Two steps written out: g' = g + wd w; v = m v + g'; w -= lr (g' + m v), v = g' in the first step."""
    job = jobs[0]
    module = fresh(ServerModule, environment, job)
    sgd, federation = environment.experiment.optimizer, environment.experiment.federation
    batches = list(JobBatches(environment, job, 1))
    by_hand = fresh(ServerModule, environment, job)
    velocity: dict[str, torch.Tensor] = {}
    for index, batch in enumerate(batches):
        by_hand.zero_grad()
        by_hand.training_step(batch, index).backward()
        lr = sgd.lr * sgd.schedule.factor(index, federation.T * federation.rounds)
        with torch.no_grad():
            for name, parameter in by_hand.trainable["student"].named_parameters():
                change = parameter.grad + sgd.weight_decay * parameter
                velocity[name] = change if index == 0 else sgd.momentum * velocity[name] + change
                parameter -= lr * (change + sgd.momentum * velocity[name])
    train(module, batches)
    assert difference(weights_of(module.trainable["student"]), weights_of(by_hand.trainable["student"])) < 1e-6


@pytest.mark.parametrize("fused", [False, True])
def test_adam_by_hand_goes_on_where_the_last_job_ended(environment, jobs, fused):
    """g' = g + wd w; m = b m + (1 - b) g', v likewise of squares; w -= lr m / (1 - b^s) / (sqrt(v / (1 - .999^s)) +
    1e-8) in step s, which counts over two jobs."""
    job = jobs[0]
    adam = Optimizer(rule="adam", lr=0.01, momentum=0.8, nesterov=False, weight_decay=0.1, schedule=Constant())
    local = job.update.start(job.receives, None, None)
    module, by_hand = (
        ServerModule(job, local, environment.network(), adam, lambda step: 1.0, fused=fused and k == 0) for k in (0, 1)
    )
    first, second, kept = dict[str, Any](), dict[str, Any](), None
    for s in (1, 2, 3, 4):
        if s in (1, 3):
            batches = list(JobBatches(environment, job, s))
            again = job.update.start({"student": weights_of(module.trainable["student"])}, None, None)
            again.momentum = kept
            module.reuse(job, again, module.rate_at)
            kept = moved(train(module, batches), torch.device("cpu"))
        by_hand.zero_grad()
        by_hand.training_step(batches[(s - 1) % 2], 0).backward()
        with torch.no_grad():
            for name, parameter in by_hand.trainable["student"].named_parameters():
                assert parameter.grad is not None
                change = parameter.grad + 0.1 * parameter
                first[name] = 0.8 * first.get(name, 0) + 0.2 * change
                second[name] = 0.999 * second.get(name, 0) + 0.001 * change**2
                root = (second[name] / (1 - 0.999**s)).sqrt() + 1e-8
                parameter.sub_(0.01 * first[name] / (1 - 0.8**s) / root)
    assert difference(weights_of(module.trainable["student"]), weights_of(by_hand.trainable["student"])) < 1e-5


def test_the_gradient_pass_is_the_gradient_of_the_mean_loss(environment, jobs, monkeypatch):
    """All images of the server in one batch: the gradient over passes of 8 equals autograd on the mean of all 20.
    With two losses in turn on each batch it is that of their sum."""
    (job,) = on_all_images(jobs[:1])
    module = fresh(ServerModule, environment, job)
    batches = list(JobBatches(environment, job, 1, purpose="gradient"))
    parts: list[Any] = [batch.streams["labelled"] for batch in batches]
    assert [len(part.labels_N) for part in parts] == [8, 8, 4]
    found = gradient(module, batches)["student"]
    network = environment.network()
    images = torch.cat([part.views["weak"] for part in parts])
    labels = torch.cat([part.labels_N for part in parts])
    supervised_loss(network(images), labels).backward()
    assert difference(found, {name: p.grad for name, p in network.named_parameters()}) < 1e-6
    monkeypatch.setattr(type(job.update), "phases", ("loss", "loss"))
    twice = gradient(module, [one for batch in batches for one in (batch, replace(batch, phase=1))])["student"]
    assert difference(twice, {name: 2 * value for name, value in found.items()}) < 1e-6


def test_passes_reshuffle_and_leave_out_the_rest():
    """7 images, batches of 3: two a pass, one image left out; every batch of a pass is disjoint. One image is given
    every time."""
    assert [list(batch) for batch in passes(1, 8, 3, True, numpy_stream(0, "test"))] == [[0], [0], [0]]
    batches = passes(7, 3, 5, True, numpy_stream(0, "test"))
    assert [len(batch) for batch in batches] == [3] * 5
    assert len(set(batches[0]) | set(batches[1])) == 6
    assert not (batches[0] == batches[2]).all()


def test_statistics_with_dropout_do_not_depend_on_what_ran_before():
    """The pass is in training mode, where dropout draws from torch's global generator: wherever that stands, the
    statistics of a job are the same, so that numbers are the same on any number of processes."""
    model = Model(network="emnist_cnn", norm="sbn", dropout=0.25)
    environment = prepare(replace(tiny_with(SupervisedFL(batch_size=8), "everywhere"), model=model))
    network = environment.network()
    reader = JobReader(environment, network, 0, 1, torch_stream(0, "statistics"))
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        statistics, count = reader.statistics(weights_of(network), "unlabelled", 8, True)
        assert count > 8
        found.append(statistics)
    assert found[0] and agree(*found)


def test_a_reader_predicts_each_image_of_a_part():
    """Clients without images have no predictions."""
    environment = prepare(tiny_with(SupervisedFL(batch_size=8), "some_clients"))
    network = environment.network()
    for client, N in environment.world(1, None).sizes.items():  # type: ignore[arg-type]
        reader = JobReader(environment, network, client, 1, torch_stream(0, "predictions"))
        logits_ND = reader.predict(weights_of(network), "unlabelled", "plain")
        assert logits_ND.shape == (N - environment.labelled[client], 10)


def test_features_and_logits_are_passed_alike_in_bfloat16():
    network = prepare(tiny_with(SupervisedFL(batch_size=8), "everywhere")).network()
    layer = network.get_submodule("fc2")
    images_NCHW = torch.rand(4, 1, 8, 8)
    pass_in_bfloat16(network)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert network.features(images_NCHW).dtype == torch.float32  # type: ignore[operator]
        assert torch.equal(layer(network.features(images_NCHW)).float(), network(images_NCHW))  # type: ignore[operator]
