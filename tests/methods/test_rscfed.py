"""RSCFed and Fed-Consist: whole rounds against plain torch, subsets, and aggregation."""

import math
from functools import partial
from typing import Any

import pytest
import torch

from benchmark.methods.fed_consist import FedConsist, Member
from benchmark.methods.rscfed import RSCFed
from tests.federated.helpers import difference
from tests.methods.plain_torch import MeanTeachers, compared, experiment_of
from tests.methods.watch import watched

# The settings of the paper, except for its round, as in the plain torch below. The defaults are lambda_u = .02, the
# released teacher and labelled_weight per_round.
BY_LETTER: dict[str, Any] = {"unlabelled_weight": 1.0, "ema_warm_up": "paper", "teacher_start": "paper"}
rscfed = partial(RSCFed, labelled_weight="per_subset", **BY_LETTER)


class Plain(MeanTeachers):
    def loss_of(self, student, teacher, views):
        """Compute the loss; sharpening with tau = .5 is p^2 / sum p^2."""
        with torch.no_grad():
            target_ND = teacher(views["weak"]).softmax(1) ** 2
        errors_ND = target_ND / target_ND.sum(1, keepdim=True) - student(views["weak2"]).softmax(1)
        return self.method.unlabelled_weight * (errors_ND**2).sum(1).mean()

    def weights(self, states):
        """Weigh one subset with the frequencies in Eq. 5, and in Eq. 6, which also has beta and the distances."""
        sizes, labelled, method = self.environment.sizes, self.environment.labelled, self.method
        times = getattr(method, "labelled_times", 1.0)
        rule = getattr(method, "labelled_weight", "per_subset")
        others = sum(sizes[k] for k in states if not labelled[k])
        by_share = {k: 0.5 if labelled[k] else 0.5 * sizes[k] / others for k in states}
        power = {"by_size": (0, 0), "released_command": (0, 1), "released_code": (1, 2)}.get(rule)
        if getattr(method, "labelled_share", 0.5) is None:
            power = (0, 0)
        first = second = by_share
        if power is not None:
            first = {k: sizes[k] * times ** (labelled[k] and power[0]) for k in states}
            second = {k: sizes[k] * times ** (labelled[k] and power[1]) for k in states}
        beta = getattr(method, "beta", 0.0)
        if getattr(method, "beta_rule", "paper") == "released_code":
            beta = method.beta_labelled
        flat = {}
        for k, state in states.items():
            flat[k] = torch.cat([w.double().flatten() for w in state.values()])
        average = sum(first[k] * flat[k] for k in states) / sum(first.values())
        distance = {k: float((flat[k] - average).norm()) for k in states}
        if getattr(method, "distance", "paper") == "released_code":
            sections = [w.numel() for w in states[0].values()]
            for k in states:
                distance[k] = sum(float(part.norm()) for part in (flat[k] - average).split(sections))
        weights = {k: second[k] * math.exp(-beta * distance[k] / sizes[k]) for k in states}
        return {k: weight / sum(weights.values()) for k, weight in weights.items()}


SAME: dict[str, Any] = {"batch_size": 8, "alpha": 0.3, "unlabelled_weight": 5.0}
FAR: dict[str, Any] = {"M": 1, "subset": 4, "beta": 200.0, **SAME}
fed_consist = partial(FedConsist, **{**BY_LETTER, **SAME})


@pytest.mark.parametrize(
    "method",
    [
        fed_consist(),
        fed_consist(labelled_share=None),
        fed_consist(ema_warm_up="released_code"),
        rscfed(M=1, subset=4, beta=0.0, labelled_weight="per_round", **SAME),
        rscfed(labelled_weight="by_size", **FAR),
        rscfed(labelled_weight="by_size", distance="released_code", **FAR),
        rscfed(labelled_weight="released_command", labelled_times=2.0, **FAR),
        rscfed(labelled_weight="released_code", labelled_times=2.0, **FAR),
        rscfed(beta_rule="released_code", beta_labelled=300.0, **FAR),
        rscfed(drawn_twice="reused", **{**FAR, "M": 2}),
    ],
)
def test_four_rounds_by_plain_torch(method):
    """Compare students and teachers after four rounds of weighted FedAvg, or of Eqs. 5 to 7.

    All subsets contain all clients.
    """
    module, plain = compared(Plain, experiment_of(method), experiment_of(method), 4)
    kept = {int(client): tree["teacher"] for client, tree in module.state.clients.items() if "teacher" in tree}
    assert sorted(kept) == [k for k in range(4) if not module.environment.labelled[k]]
    for client, teacher in kept.items():
        assert difference(teacher, plain.teachers[client].state_dict()) < 1e-6


@pytest.mark.parametrize("beta", [0.0, 30.0])
def test_labelled_clients_have_their_share_of_the_round(beta):
    """Compute `per_round` from the outcomes.

    The weights are Eq. 6 by size in each subset of three; then those of labelled draws are scaled to sum to .3, and the
    others to .7.
    """
    method = rscfed(M=3, subset=3, batch_size=8, beta=beta, labelled_weight="per_round", labelled_share=0.3)
    module, watch = watched(experiment_of(method))
    environment = module.environment
    total = {True: 0.0, False: 0.0}
    sums: dict[bool, Any] = {True: 0.0, False: 0.0}
    draws = [(job.key.client, outcome.sends["student"]) for job, outcome in watch.clients()]
    for first in (0, 3, 6):
        subset = draws[first : first + 3]
        n = [environment.sizes[k] for k, _ in subset]
        average = {}
        for name in draws[0][1]:
            average[name] = sum(f * w[name] for f, (_, w) in zip(n, subset, strict=True)) / sum(n)
        d = []
        for _, w in subset:
            d.append(math.sqrt(sum(float((w[name] - average[name]).square().sum()) for name in w)))
        e = [size * math.exp(-beta * distance / size) for size, distance in zip(n, d, strict=True)]
        for (k, w), weight in zip(subset, e, strict=True):
            labelled = bool(environment.labelled[k])
            sums[labelled] = sums[labelled] + weight / sum(e) * w["fc2.bias"].double()
            total[labelled] += weight / sum(e)
    expected = 0.3 * sums[True] / total[True] + 0.7 * sums[False] / total[False]
    assert torch.allclose(module.models()["student"]["fc2.bias"].double(), expected, atol=1e-6)
    assert module.metrics["aggregation/labelled_share"] == 0.3
    assert sum(bool(environment.labelled[k]) for k, _ in draws) >= 2


def test_a_labelled_client_of_few_images_keeps_its_share():
    """Expect half of the round for a client with the server's 20 labels.

    Other clients have five to twenty times as many images. Eq. 6 divides by N_i, so that with beta = 1e6 the client's
    weight is 0 in float64.
    """
    few, subset = (
        watched(experiment_of(rscfed(M=1, subset=5, batch_size=8, beta=1e6, labelled_weight=rule), "one_more_client"))
        for rule in ("per_round", "per_subset")
    )
    assert few[0].metrics["aggregation/labelled_share"] == 0.5
    assert subset[0].metrics["aggregation/labelled_share"] < 1e-300
    assert all(torch.isfinite(value).all() for value in few[0].models()["student"].values())


def test_the_released_beta_of_a_subset_depends_on_its_clients():
    """Expect `beta_labelled` for a subset with a labelled client, and `beta` for a subset without one."""
    models = [{"w": torch.tensor([t])} for t in (0.0, 10.0, 30.0)]
    members = [Member(size=100, labelled=True), Member(size=50, labelled=False), Member(size=80, labelled=False)]
    released = rscfed(beta=5.0, beta_rule="released_code", beta_labelled=7.0)
    for first, beta, other in ((0, 7.0, 5.0), (1, 5.0, 7.0)):
        subset = models[first:], members[first:]
        _, weights = released.consensus(*subset)
        assert weights == rscfed(beta=beta).consensus(*subset)[1] != rscfed(beta=other).consensus(*subset)[1]
