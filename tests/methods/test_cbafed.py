"""CBAFed: whole rounds against plain torch, label by label."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmark.data.augment import Weak
from benchmark.experiment import Experiment
from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.cbafed import CBAFed, LabelledUpdate
from benchmark.methods.protocol import Selected, Stream
from tests.federated.helpers import difference
from tests.methods.plain_torch import batches, experiment_of, mean, step
from tests.methods.watch import watched

METHOD = CBAFed(base=0.05, tail=0.06, labelled_epochs_each=3, residual_every=1, batch_size=8, warm_start_rounds=1)
WAYS = {
    "default": METHOD,
    "released momentum": replace(METHOD, momentum="released_code"),
    "pseudo-labels alone": replace(METHOD, histogram="pseudo_labels"),
    "equal classes first": replace(METHOD, first_histogram="uniform"),
    "no second-best class": replace(METHOD, tail=0.0),
    "other averages": replace(METHOD, local_residual=0.5, global_residual=0.2),
    "averages every second time": replace(METHOD, residual_every=2),
    "without a warm start": replace(METHOD, warm_start_rounds=0, base=0.035),
}


def on_digits(method: CBAFed) -> Experiment:
    """Four clients, one of them labelled; labels come from images as they are, and rates are .05 on labels, .02."""
    e = experiment_of(method)
    plain = replace(e.data.augmentation, weak=Weak(flip=0.0, crop_padding=0.0))
    return replace(e, data=replace(e.data, augmentation=plain))


def mixed(old: dict[str, Tensor], new: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    return {name: share * value + (1 - share) * new[name] for name, value in old.items()}


@functools.cache
def by_plain_torch(method: CBAFed, rounds: int) -> dict[str, Tensor]:
    environment = prepare(on_digits(method))
    data, clients, every = environment.data, range(environment.K), method.residual_every
    networks = {k: environment.network() for k in clients}
    rates = {k: 0.05 if environment.labelled[k] else 0.02 for k in clients}
    sgds: dict[int, torch.optim.SGD] = {}
    weights = recorded = weights_of(environment.network())
    counts_D: Tensor | None = None
    for number in range(1, rounds + 1):
        since, sent, of_round = number - method.warm_start_rounds, [], torch.zeros(10)
        for k in clients:
            network, labelled = networks[k], bool(environment.labelled[k])
            if since <= 0 and not labelled:
                continue
            network.load_state_dict(weights)
            if k not in sgds or method.momentum != "released_code":
                sgds[k] = torch.optim.SGD(network.parameters(), lr=rates[k], momentum=0.9)
            chosen = {}
            if labelled:
                labels_N = data.train_labels_N[torch.as_tensor(environment.held.labelled[k])]
            else:
                at_N = torch.as_tensor(environment.held.unlabelled[k])
                images = (data.train_images_NCHW[at_N].float() / 255 - data.mean[0]) / data.std[0]
                with torch.no_grad():
                    ranked = network.eval()(images).softmax(1).sort(1, descending=True)
                pi_D = torch.full((10,), 0.1) if counts_D is None else counts_D / counts_D.sum()
                cut_D = torch.minimum(pi_D + method.base - pi_D.std(), torch.tensor(method.cap))
                labels, places = [], []
                for place, (p, classes) in enumerate(zip(ranked.values, ranked.indices, strict=True)):
                    if p[0] > cut_D[classes[0]]:
                        labels.append(int(classes[0]))
                    elif pi_D[classes[1]] < method.tail:
                        labels.append(int(classes[1]))
                    else:
                        continue
                    places.append(place)
                if not places:
                    continue
                labels_N = torch.tensor(labels)
                chosen = {"unlabelled": Selected(positions_N=torch.tensor(places), labels_N=labels_N)}
            part: Any = "labelled" if labelled else "unlabelled"
            streams, network = {part: Stream.whole(part, 8)}, network.train()
            drawn = batches(environment, number, k, 6 if labelled else 2, streams, chosen)
            for index, batch in enumerate(drawn, start=1):
                images = batch[part]
                given_N = images.labels_N if labelled else images.pseudo_labels_N
                step(sgds[k], nn.functional.cross_entropy(network(images.views["weak"]), given_N))
                if labelled and index == 2:  # of T = 2 steps a pass
                    kept = weights_of(network)
                elif labelled and index % 2 == 0 and (index // 2 - 1) % every == 0:
                    kept = mixed(kept, weights_of(network), method.local_residual)
                    network.load_state_dict(kept)
            sent.append((len(labels_N), weights_of(network)))
            if since <= 0 or method.histogram == "all" or not labelled:
                of_round += torch.bincount(labels_N, minlength=10)
        total = sum(n for n, _ in sent)
        weights = mean([w for _, w in sent], [n / total for n, _ in sent])
        if since <= 0 or number == 1:
            recorded = weights
        elif since > 1 and (since - 1) % every == 0:
            weights = recorded = mixed(recorded, weights, method.global_residual)
        if of_round.sum() and not (since <= 0 and method.first_histogram == "uniform"):
            counts_D = of_round
    return weights


@pytest.mark.parametrize("way", WAYS)
def test_rounds_by_plain_torch(way):
    """Two rounds with all clients (three with other averages), and one of labels alone before them."""
    method = WAYS[way]
    rounds = 2 + method.warm_start_rounds + ("averages" in way)
    module, watch = watched(on_digits(method), rounds)
    expected = by_plain_torch(method, rounds)
    assert difference(module.models()["student"], expected) < 1e-6
    kept = [outcome.metrics["pseudo/count"] for job, outcome in watch.clients() if "unlabelled" in job.data]
    assert sum(kept) > 0 and 0 < module.metrics["aggregation/labelled_share"] < 1
    if way != "default":
        assert difference(expected, by_plain_torch(METHOD, rounds)) > 1e-4


def test_a_pass_is_one_over_the_client_s_own_images():
    """Epochs: 3 passes of a labelled client over n images in batches of 8."""
    e = on_digits(METHOD)
    _, watch = watched(replace(e, federation=replace(e.federation, epochs=1)))
    ((job, outcome),) = watch.clients()
    n = int(outcome.sends["counts"].sum())
    assert isinstance(job.update, LabelledUpdate) and job.update.steps_a_pass == -(-n // 8)
    assert outcome.steps == 3 * -(-n // 8)
