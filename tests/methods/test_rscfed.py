"""RSCFed and Fed-Consist: whole rounds against plain torch, subsets, aggregation."""

import math
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


def weights_in(environment, states, method):
    """Of all clients in one subset: their frequencies in Eq. 5, and in Eq. 6, which also has beta and the distances."""
    sizes, labelled, clients = environment.sizes, environment.labelled, range(environment.K)
    times, rule = getattr(method, "labelled_times", 1.0), getattr(method, "labelled_weight", "per_subset")
    others = sum(sizes[k] for k in clients if not labelled[k])
    by_share = {k: 0.5 if labelled[k] else 0.5 * sizes[k] / others for k in clients}
    power = {"by_size": (0, 0), "released_command": (0, 1), "released_code": (1, 2)}.get(rule)
    if getattr(method, "labelled_share", 0.5) is None:
        power = (0, 0)
    first, second = (
        by_share if power is None else {k: sizes[k] * times ** (labelled[k] and p) for k in clients}
        for p in (power or (0, 0))
    )
    beta = getattr(method, "beta", 0.0)
    if getattr(method, "beta_rule", "paper") == "released_code":
        beta = method.beta_labelled
    flat = {k: torch.cat([w.double().flatten() for w in states[k].values()]) for k in clients}
    sections = [w.numel() for w in states[0].values()]
    average = sum(first[k] * flat[k] for k in clients) / sum(first.values())
    apart = {k: (flat[k] - average).split(sections) for k in clients}
    norm = {
        k: sum(float(part.norm()) for part in parts)
        if getattr(method, "distance", "paper") == "released_code"
        else float(torch.cat(parts).norm())
        for k, parts in apart.items()
    }
    actual = {k: second[k] * math.exp(-beta * norm[k] / sizes[k]) for k in clients}
    return {k: weight / sum(actual.values()) for k, weight in actual.items()}


SAME: dict[str, Any] = {"batch_size": 8, "alpha": ALPHA, "unlabelled_weight": LAMBDA_U}
FAR: dict[str, Any] = {"M": 1, "subset": 4, "beta": 200.0, **SAME}


@pytest.mark.parametrize(
    "method",
    [
        fed_consist(**SAME),
        fed_consist(labelled_share=None, **SAME),
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
    """Subsets of all clients, students and teachers alike: four rounds of weighted FedAvg, or of Eqs. 5 to 7."""
    experiment = experiment_of(method)
    module, _ = watched(experiment, 4)
    weights = partial(weights_in, method=method)
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


def test_the_released_beta_of_a_subset_depends_on_its_clients():
    """That of labelled ones for a subset that holds one, the other for a subset that holds none."""
    models = [{"w": torch.tensor([t])} for t in (0.0, 10.0, 30.0)]
    members = [Member(size=100, labelled=True), Member(size=50, labelled=False), Member(size=80, labelled=False)]
    released = rscfed(beta=5.0, beta_rule="released_code", beta_labelled=7.0)
    for first, beta, other in ((0, 7.0, 5.0), (1, 5.0, 7.0)):
        subset = models[first:], members[first:]
        _, weights = released.consensus(*subset)
        assert weights == rscfed(beta=beta).consensus(*subset)[1] != rscfed(beta=other).consensus(*subset)[1]


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
