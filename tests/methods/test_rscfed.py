"""RSCFed and Fed-Consist: whole rounds against plain torch, subsets, aggregation."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from benchmark.federated.environment import weights_of
from benchmark.methods.fed_consist import FedConsist, MeanTeacherUpdate, Member
from benchmark.methods.protocol import Training
from benchmark.methods.rscfed import RSCFed
from tests.federated.helpers import difference
from tests.methods.plain_torch import experiment_of, rounds_by_plain_torch
from tests.methods.watch import watched

# By the letter of the paper but for its round, as the plain torch below has it; the defaults have lambda_u = .02, the
# released teacher and labelled_weight per_round.
BY_LETTER: dict[str, Any] = {"unlabelled_weight": 1.0, "ema_warm_up": "paper", "teacher_start": "paper"}
rscfed = partial(RSCFed, labelled_weight="per_subset", **BY_LETTER)
fed_consist = partial(FedConsist, **BY_LETTER)


ALPHA, LAMBDA_U = 0.3, 5.0


def sharpened_error(student, teacher, views, number):
    """Sharpening with tau = .5 is p^2 / sum p^2."""
    with torch.no_grad():
        target_ND = teacher(views["weak"]).softmax(1) ** 2
    errors_ND = target_ND / target_ND.sum(1, keepdim=True) - student(views["weak2"]).softmax(1)
    return LAMBDA_U * (errors_ND**2).sum(1).mean()


def weights_in(environment, states, share, beta):
    """By images, or `share` of the labelled client, and of the others by images; with beta by Eq. 6 of these."""
    sizes, labelled, clients = environment.sizes, environment.labelled, range(environment.K)
    others = sum(sizes[k] for k in clients if not labelled[k])
    plain = {k: sizes[k] / sum(sizes[k] for k in clients) for k in clients}
    if share is not None:
        plain = {k: share if labelled[k] else (1 - share) * sizes[k] / others for k in clients}
    flat = {k: torch.cat([w.double().flatten() for w in states[k].values()]) for k in clients}
    average = sum(plain[k] * flat[k] for k in clients)
    actual = {k: plain[k] * math.exp(-beta * float((flat[k] - average).norm()) / sizes[k]) for k in clients}
    return {k: weight / sum(actual.values()) for k, weight in actual.items()}


SAME: dict[str, Any] = {"batch_size": 8, "alpha": ALPHA, "unlabelled_weight": LAMBDA_U}


@pytest.mark.parametrize(
    "method, share, beta",
    [
        (fed_consist(**SAME), 0.5, 0.0),
        (fed_consist(labelled_share=None, **SAME), None, 0.0),
        (rscfed(M=1, subset=4, beta=0.0, labelled_weight="per_round", **SAME), 0.5, 0.0),
        (rscfed(M=1, subset=4, beta=200.0, labelled_weight="by_size", **SAME), None, 200.0),
        (rscfed(M=2, subset=4, beta=200.0, drawn_twice="reused", **SAME), 0.5, 200.0),
    ],
)
def test_four_rounds_by_plain_torch(method, share, beta):
    """Subsets of all clients, students and teachers alike: four rounds of weighted FedAvg, or of Eqs. 5 to 7."""
    experiment = experiment_of(method)
    module, _ = watched(experiment, 4)
    weights = partial(weights_in, share=share, beta=beta)
    mean, teachers = rounds_by_plain_torch(experiment, 4, weights=weights, loss_of=sharpened_error, alpha=ALPHA)
    assert difference(module.models()["student"], mean) < 1e-6
    for client, kept in module.state.clients.items():
        if "teacher" in kept:
            assert difference(kept["teacher"], teachers[int(client)]) < 1e-6
    unlabelled = [str(k) for k, labels in module.environment.labelled.items() if not labels and k >= 0]
    assert [k for k, kept in sorted(module.state.clients.items()) if "teacher" in kept] == unlabelled
    start = weights_of(module.environment.network())
    assert difference(mean, start) > 1e-2  # four rounds of something


@pytest.mark.parametrize("beta", [0.0, 30.0])
def test_labelled_clients_have_their_share_of_the_round(beta):
    """per_round, from the outcomes: Eq. 6 by size in each subset of three; then labelled draws scaled to .3 in sum, the
    others to .7."""
    method = rscfed(M=3, subset=3, batch_size=8, beta=beta, labelled_weight="per_round", labelled_share=0.3)
    module, watch = watched(experiment_of(method))
    environment, total = module.environment, {True: 0.0, False: 0.0}
    sums: dict[bool, Any] = {True: 0.0, False: 0.0}
    draws = [(job.key.client, outcome.sends["student"]) for job, outcome in watch.clients()]
    for first in (0, 3, 6):
        subset = draws[first : first + 3]
        n = [environment.sizes[k] for k, _ in subset]
        average = {name: sum(f * w[name] for f, (_, w) in zip(n, subset, strict=True)) / sum(n) for name in draws[0][1]}
        d = [math.sqrt(sum(float((w[name] - average[name]).square().sum()) for name in w)) for _, w in subset]
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
    """The server's 20 labels as one more client's, where others hold five to twenty times as many: Eq. 6 divides by
    N_i, so that its weight is 0 in float64 with beta = 1e6, and its share of the round is half all the same."""
    few, subset = (
        watched(experiment_of(rscfed(M=1, subset=5, batch_size=8, beta=1e6, labelled_weight=rule), "one_more_client"))
        for rule in ("per_round", "per_subset")
    )
    assert few[0].metrics["aggregation/labelled_share"] == 0.5
    assert subset[0].metrics["aggregation/labelled_share"] < 1e-300
    assert all(torch.isfinite(value).all() for value in few[0].models()["student"].values())


# Distance-reweighted aggregation, by hand on three clients with two weights each.
#
# The models lie on a line: t x (0.6, 0.8) with t = 0, 10, 30, so that one norm of a difference is |t - t'| and the sum
# of the two tensors' norms 1.4 |t - t'|. Clients: A (t = 0, N = 100, labelled), B (t = 10, N = 50), C (t = 30, N = 50).


LN2 = math.log(2)
A, B, C = Member(size=100, labelled=True), Member(size=50, labelled=False), Member(size=50, labelled=False)


def model(t):
    return {"one.weight": torch.tensor([0.6 * t]), "two.weight": torch.tensor([[0.8 * t]])}


MODELS = [model(0), model(10), model(30)]


def check(actual, expected):
    """Weights in these proportions, and the model that they give."""
    theta, weights = actual
    share = [value / sum(expected) for value in expected]
    assert weights == pytest.approx(share, rel=1e-6)
    t = 10 * share[1] + 30 * share[2]
    assert theta["one.weight"].tolist() == pytest.approx([0.6 * t], rel=1e-5)
    assert theta["two.weight"].tolist()[0] == pytest.approx([0.8 * t], rel=1e-5)


# Eq. 5's frequencies put theta_avg at t; beta |t_i - t| / N_i is a whole number of ln 2, so that exp is a power of 2.
# per_subset: 1/2, 1/4, 1/4 -> t = 10, distances 10, 0, 20; / N = .1, 0, .4; beta 10 ln 2: 1/2, 1, 1/16
# released_code, times 2: 200, 50, 50 -> t = 20/3, distances 20/3, 10/3, 70/3; beta 15 ln 2: 1/2, 1/2, 1/128; then 400
# released_command: 100, 50, 50 -> t = 10, as above; then 200.  by_size: the same without.
BY_HAND = {
    "per_subset": (10 * LN2, [0.5 / 2, 0.25, 0.25 / 16]),
    "released_code": (15 * LN2, [400 / 2, 50 / 2, 50 / 128]),
    "released_command": (10 * LN2, [200 / 2, 50, 50 / 16]),
    "by_size": (10 * LN2, [100 / 2, 50, 50 / 16]),
}


@pytest.mark.parametrize("rule", BY_HAND)
@pytest.mark.parametrize("distance, stretch", [("paper", 1.0), ("released_code", 1.4)])
def test_three_clients(rule, distance, stretch):
    """The sum of norms is 1.4 times the norm: beta / 1.4 gives the same powers of 2."""
    beta, expected = BY_HAND[rule]
    times: dict[str, Any] = {"labelled_times": 2.0} if rule.startswith("released") else {}
    method = rscfed(labelled_weight=rule, beta=beta / stretch, distance=distance, **times)
    check(method.consensus(MODELS, [A, B, C]), expected)


def test_the_beta_rules():
    """Both subsets by hand; only the released rule has two betas.

    A, B, C with beta = 10 ln 2: as above. B and C with N = 50, 100: t = 70/3, distances 40/3 and 20/3, / N = 4/15 and
    1/15; beta = 7.5 ln 2: 2^-2 and 2^-0.5, of 50 and 100.
    """
    C100 = replace(C, size=100)
    unlabelled_alone = [50 / 4, 100 * 2**-0.5]
    released = rscfed(beta=7.5 * LN2, beta_rule="released_code", beta_labelled=10 * LN2)
    paper = rscfed(beta=7.5 * LN2)
    check(released.consensus(MODELS, [A, B, C]), BY_HAND["per_subset"][1])
    for method in (released, paper):
        _, weights = method.consensus(MODELS[1:], [B, C100])
        assert weights == pytest.approx([value / sum(unlabelled_alone) for value in unlabelled_alone], rel=1e-6)
    # paper, A B C with 7.5 ln 2: 2^-.75, 1, 2^-3
    check(paper.consensus(MODELS, [A, B, C]), [0.5 * 2**-0.75, 0.25, 0.25 / 8])


# The mean teacher of RSCFed and Fed-Consist by hand: sharpening, both losses, the moving average.


class Constantly(nn.Module):
    """The same logits for any image."""

    def __init__(self, *logits):
        super().__init__()
        self.logits_D = nn.Parameter(torch.tensor(logits))

    def forward(self, images_NCHW):
        return self.logits_D.expand(len(images_NCHW), -1)


@pytest.mark.parametrize(
    "ema_warm_up, steps, expected",
    [
        # Eq. 4 with alpha = .25 and students 4, 8: 1, then .25 x 8 + .75 x 1
        ("paper", 0, [1.0, 2.75]),
        # the student's share 1, then 1/2: 4, then (8 + 4) / 2
        ("released_code", 0, [4.0, 6.0]),
        # 1/3 is more than alpha, 1/4 is not less: 4/3, then 8/4 + 3/4 x 4/3
        ("released_code", 2, [4 / 3, 3.0]),
        # long after: alpha
        ("released_code", 1000, [1.0, 2.75]),
    ],
)
def test_the_teacher_after_two_steps(ema_warm_up, steps, expected):
    """The teacher starts at 0."""
    student, teacher = Constantly(0.0), Constantly(0.0)
    training = Training(
        trainable=nn.ModuleDict({"student": student}),
        frozen=nn.ModuleDict({"teacher": teacher}),
        private={"teacher_steps": steps},
        step=0,
    )
    update = MeanTeacherUpdate(method=rscfed(alpha=0.25, ema_warm_up=ema_warm_up))
    for value, after in zip((4.0, 8.0), expected, strict=True):
        nn.init.constant_(student.logits_D, value)
        update.after_step(training)
        assert teacher.logits_D.item() == pytest.approx(after)
    assert training.private["teacher_steps"] == steps + 2
