"""CBAFed: whole rounds against plain torch, label by label."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.data.augment import Weak
from benchmark.experiment import Experiment
from benchmark.federated.environment import weights_of
from benchmark.methods.cbafed import CBAFed, LabelledUpdate
from benchmark.methods.protocol import Selected, Stream, Weights
from tests.methods.plain_torch import AlternatingRounds, batches, compared, experiment_of, mean, plain_images, step
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
    """Build an experiment of four clients, one of them labelled.

    Labels come from images without augmentation, and learning rates are .05 on labels and .02 on pseudo-labels.
    """
    e = experiment_of(method)
    plain = replace(e.data.augmentation, weak=Weak(flip=0.0, crop_padding=0.0))
    return replace(e, data=replace(e.data, augmentation=plain))


def mixed(old: Weights, new: Weights, share: float) -> Weights:
    return {name: share * value + (1 - share) * new[name] for name, value in old.items()}


class Plain(AlternatingRounds):
    """CBAFed in plain torch: `recorded` is the server's last average, `counts_D` the last round's images by class."""

    def begin(self) -> None:
        self.recorded = self.now
        self.counts_D = torch.zeros(10)

    def play(self, cohort: list[int]) -> None:
        method = self.method
        labelled = self.environment.labelled
        since = self.number - self.method.warm_start_rounds
        jobs = {
            k: (self.on_labels(k) if labelled[k] else self.on_own_labels(k)) for k in cohort if labelled[k] or since > 0
        }
        sent = {k: job for k, job in jobs.items() if len(job[0])}
        total = sum(len(labels_N) for labels_N, _ in sent.values())
        shares = [len(labels_N) / total for labels_N, _ in sent.values()]
        self.now = mean([w for _, w in sent.values()], shares)
        if since <= 0 or self.number == 1:
            self.recorded = self.now
        elif since > 1 and (since - 1) % method.residual_every == 0:
            self.now = self.recorded = mixed(self.recorded, self.now, method.global_residual)
        if since > 0 or method.first_histogram != "uniform":
            counted = [k for k in sent if since <= 0 or method.histogram == "all" or not labelled[k]]
            self.counts_D = torch.bincount(torch.cat([sent[k][0] for k in counted]), minlength=10).float()

    def on_labels(self, client: int) -> tuple[Tensor, Weights]:
        """Take three passes of T = 2 steps, with averages between them."""
        network = self.network().train()
        sgd = self.optimizer(client, network, lr=0.05)
        drawn = batches(self.environment, self.number, client, 6, {"labelled": Stream.whole("labelled", 8)})
        for index, batch in enumerate(drawn, start=1):
            step(sgd, F.cross_entropy(network(batch["labelled"].views["weak"]), batch["labelled"].labels_N))
            if index == 2:
                kept = weights_of(network)
            elif index % 2 == 0 and (index // 2 - 1) % self.method.residual_every == 0:
                kept = mixed(kept, weights_of(network), self.method.local_residual)
                network.load_state_dict(kept)
        self.keep(client, sgd)
        at_N = torch.as_tensor(self.environment.assignment.labelled[client])
        return self.environment.data.train_labels_N[at_N], weights_of(network)

    def on_own_labels(self, client: int) -> tuple[Tensor, Weights]:
        method = self.method
        network = self.network()
        with torch.no_grad():
            ranked = network.eval()(plain_images(self.environment, client)).softmax(1).sort(1, descending=True)
        pi_D = self.counts_D / self.counts_D.sum() if self.counts_D.any() else torch.full((10,), 0.1)
        cut_D = torch.minimum(pi_D + method.base - pi_D.std(), torch.tensor(method.cap))
        given = {}
        for place, (p, classes) in enumerate(zip(ranked.values, ranked.indices, strict=True)):
            if p[0] > cut_D[classes[0]]:
                given[place] = int(classes[0])
            elif pi_D[classes[1]] < method.tail:
                given[place] = int(classes[1])
        labels_N = torch.tensor([*given.values()], dtype=torch.int64)
        if given:
            streams: Any = {"unlabelled": Stream.whole("unlabelled", 8)}
            chosen = {"unlabelled": Selected(positions_N=torch.tensor([*given]), labels_N=labels_N)}
            sgd = self.optimizer(client, network)
            network = network.train()
            for batch in batches(self.environment, self.number, client, 2, streams, chosen):
                images = batch["unlabelled"]
                step(sgd, F.cross_entropy(network(images.views["weak"]), images.pseudo_labels_N))
            self.keep(client, sgd)
        return labels_N, weights_of(network)


@pytest.mark.parametrize("way", WAYS)
def test_rounds_by_plain_torch(way):
    """Compare two rounds with all clients (three with other averages), and an initial round on labels only."""
    rounds = 2 + WAYS[way].warm_start_rounds + ("averages" in way)
    module, _ = compared(Plain, on_digits(WAYS[way]), on_digits(METHOD), rounds, least=1e-4)
    assert module.metrics["pseudo/kept"] > 0 and 0 < module.metrics["aggregation/labelled_share"] < 1


def test_a_pass_is_one_over_the_client_s_own_images():
    """With epochs, a labelled client takes 3 passes over n images in batches of 8."""
    e = on_digits(METHOD)
    _, watch = watched(replace(e, federation=replace(e.federation, epochs=1)))
    ((job, outcome),) = watch.clients()
    n = int(outcome.sends["counts"].sum())
    assert isinstance(job.update, LabelledUpdate) and job.update.steps_a_pass == -(-n // 8)
    assert outcome.steps == 3 * -(-n // 8)
