"""SemiFL against Algorithm 1: a step by hand, its two sets, labels, statistics."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from benchmark.data.augment import Augmentation, Gentle, Weak
from benchmark.data.partition import Iid
from benchmark.experiment import Data, Experiment, Federation
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare, weights_of
from benchmark.federated.jobs import JobRunner
from benchmark.federated.module import FederatedModule
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Stream
from benchmark.methods.semifl import NO_LABEL, ClientUpdate, SemiFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD
from benchmark.streams import numpy_stream
from tests.conftest import tiny_experiment
from tests.federated.helpers import difference, module_of

UNCHANGED = Augmentation(
    weak=Weak(flip=0.0, crop_padding=0.0),
    strong=Gentle(geometry_probability=0.0, brightness_probability=0.0, contrast_probability=0.0, cutout=0.0),
)


class LinearEnvironment(Environment):
    """The same images, classified by one matrix."""

    def network(self, model: Model | None = None, device: str | torch.device = "cpu") -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_one_step_on_a_linear_model_by_hand():
    """lambda = 0, tau = 0, no server momentum, one client, one full batch, views that change nothing, plain SGD.

    Every image is kept with label argmax X W, and D- plays no part, so a round is one gradient step of the mean
    cross-entropy: W <- W - lr / N X^T (softmax(X W + b) - onehot(argmax)), b <- b - lr mean(softmax - onehot).
    Eq. 9 over one client is that client. The server's rate of 1e-30 moves nothing in float32.
    """
    experiment = Experiment(
        data=Data(name="digits", N_s=20, augmentation=UNCHANGED),
        partition=Iid(),
        method=SemiFL(threshold=0.0, mix_weight=0.0, server_momentum=0.0, batch_size=10_000),
        federation=Federation(K=1, C=1, T=1, rounds=2),
        optimizer=SGD(lr=0.1, server_lr=1e-30, momentum=0.0, nesterov=False, weight_decay=0.0),
    )
    made = prepare(experiment)
    environment = LinearEnvironment(experiment=experiment, data=made.data, split=made.split, held=made.held)
    before = {name: value.double().numpy() for name, value in environment.network().state_dict().items()}
    module = FederatedModule(environment, ReferenceEngine(environment))
    module.training_step(1, 0)
    after = module.models()["student"]

    part, data = environment.part(0, "unlabelled"), environment.data
    images_NP = part.images_NCHW[part.positions_N].flatten(1).double().numpy() / 255
    x_NP = (images_NP - data.mean[0]) / data.std[0]
    logits_ND = x_NP @ before["1.weight"].T + before["1.bias"]
    error_ND = softmax(logits_ND, axis=1) - np.eye(10)[logits_ND.argmax(axis=1)]
    assert np.allclose(after["1.weight"], before["1.weight"] - 0.1 / len(x_NP) * error_ND.T @ x_NP, atol=1e-6)
    assert np.allclose(after["1.bias"], before["1.bias"] - 0.1 * error_ND.mean(axis=0), atol=1e-6)
    assert np.abs(error_ND.T @ x_NP).max() > 1  # the step changes something


class Told:
    """A `Reader` whose predictions are given."""

    def __init__(self, logits_ND: torch.Tensor) -> None:
        self.logits_ND, self.draw = logits_ND, torch.Generator().manual_seed(0)

    def predict(self, weights, part, view):
        assert (part, view) == ("unlabelled", "weak")
        return self.logits_ND

    def labels(self, part):
        raise AssertionError("SemiFL's clients have no labels")

    def statistics(self, weights, part, batch_size, pooled):
        raise AssertionError("SemiFL's clients ask for no statistics")

    def on_noise(self, weights):
        raise AssertionError("SemiFL's clients see no noise")


SURE, UNSURE = [9.0, 0.0, 0.0], [0.0, 0.1, 0.0]  # softmax .9998 for class 0; .355 for class 1


def started(rows, **changes):
    told: Any = Told(torch.tensor(rows))
    local = ClientUpdate(method=SemiFL(**changes)).start({"student": {}}, None, told)
    assert local is not None
    return local


def test_the_sets_of_equations_3_and_4():
    """Images 0 and 2 are sure: D+ = {0, 2} with label 0; D- are as many, drawn from {1, 3, 4} with label 1."""
    local = started([SURE, UNSURE, SURE, UNSURE, UNSURE])
    fix, mix = local.selected["fix"], local.selected["mix"]
    assert fix.positions_N.tolist() == [0, 2] and fix.labels_N is not None and fix.labels_N.tolist() == [0, 0]
    assert len(mix.positions_N) == 2 and set(mix.positions_N.tolist()) <= {1, 3, 4}
    assert mix.labels_N is not None and mix.labels_N.tolist() == [1, 1]
    assert local.pseudo is not None and local.pseudo.kept_N.tolist() == [True, False, True, False, False]


@pytest.mark.parametrize(("rule", "labels"), [("skip_mix", {NO_LABEL}), ("draw_from_all", {0})])
def test_nothing_below_the_threshold(rule, labels):
    actual = started([SURE, SURE], nothing_below=rule).selected["mix"].labels_N
    assert actual is not None and set(actual.tolist()) == labels


def tiny(**changes) -> Experiment:
    return tiny_experiment(method=SemiFL(threshold=0.14, batch_size=8, server_batch_size=8, **changes))


def test_nobody_is_sure_and_the_server_goes_on_alone():
    """tau = 1: every client sits out, sends nothing; W_s is the server's own, and no velocity comes up."""
    experiment = tiny_experiment(method=SemiFL(threshold=1.0, batch_size=8, server_batch_size=8))
    module = module_of(experiment)
    module.training_step(1, 0)
    assert module.metrics["comm/sat_out"] == 4 and module.metrics["comm/bytes_up"] == 0
    assert module.metrics["pseudo/kept"] == 0 and module.metrics["local_steps"] == experiment.federation.T
    assert module.state.server["velocity"] is None
    assert difference(module.models()["student"], weights_of(module.environment.network())) > 0


def test_labels_are_fixed_on_receipt():
    """Over three passes every image keeps the label it got, although the student has changed."""
    experiment = tiny()
    environment = prepare(experiment)
    seen: dict[float, set[int]] = {}

    class Watching(ClientUpdate):
        def loss(self, trainable, frozen, batch, draw):
            for image, label in zip(batch["fix"].views["plain"], batch["fix"].pseudo_labels_N, strict=True):
                seen.setdefault(float(image.double().square().sum()), set()).add(int(label))
            return super().loss(trainable, frozen, batch, draw)

    stream = Stream(part="unlabelled", batch_size=8, views=("plain", "weak", "strong"), drop_last=False)
    job = Job(
        key=Key(client=0),
        update=Watching(method=SemiFL(threshold=0.13)),
        receives={"student": weights_of(environment.network())},
        data={"fix": stream, "mix": stream},
        limit=Limit(epochs=3),
    )
    outcome = JobRunner(environment).run(job, 1, None)
    kept = outcome.metrics["pseudo/count"]
    assert 0.3 < kept / outcome.metrics["pseudo/seen"] < 0.9
    assert outcome.steps == 3 * -(-int(kept) // 8)  # known only once the labels were
    assert all(len(labels) == 1 for labels in seen.values()) and len(seen) == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize("moments", ["pooled", "released_code"])
@pytest.mark.parametrize("who", ["server", "server_and_clients", "server_and_cohort"])
def test_static_statistics_come_from_everyone_or_from_the_server(who, moments):
    """Over all images together, or as released the means of batches' means and variances. Asking clients costs."""
    e = replace(tiny(statistics=who, moments=moments, warm_start_rounds=1), model=Model(network="tiny_cnn", norm="sbn"))
    module = module_of(replace(e, federation=replace(e.federation, C=2)))
    module.training_step(1, 0)
    weights = module.models()["student"]
    cohort = [int(k) for k in numpy_stream(0, "round", 1, "cohort").permutation(4)[:2]]
    outs = first_layer(weights, module.environment, {"server": (), "server_and_cohort": cohort}.get(who, range(4)))
    parts = [torch.cat(outs)] if moments == "pooled" else outs
    mean = torch.stack([part.mean(dim=(0, 2, 3)) for part in parts]).mean(dim=0)
    unbiased = int(moments == "released_code")
    var = torch.stack([part.var(dim=(0, 2, 3), correction=unbiased) for part in parts]).mean(dim=0)
    assert torch.allclose(weights["norm1.running_mean"], mean, atol=1e-4)
    assert torch.allclose(weights["norm1.running_var"], var, atol=1e-4, rtol=1e-4)
    assert (module.metrics["comm/bytes_down"] > 0) == (who != "server")


def first_layer(weights, environment, clients):
    """What the first layer, whose input no weight changes, makes of plain images of the server and of these clients, in
    batches of 250."""
    data, outs = environment.data, []
    for holder, name in [(SERVER, "labelled"), *((k, "unlabelled") for k in clients)]:
        part = environment.part(holder, name)
        for at_N in part.positions_N.split(250):
            images = (part.images_NCHW[at_N].float() / 255 - data.mean[0]) / data.std[0]
            outs.append(nn.functional.conv2d(images, weights["conv1.weight"], weights["conv1.bias"], padding=1))
    return outs
