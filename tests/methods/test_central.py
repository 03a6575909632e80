"""Centralised methods: each loss in NumPy, the average of the weights, and the ramp."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.federated.environment import prepare, weights_of
from benchmark.federated.jobs import JobRunner
from benchmark.methods import central
from benchmark.methods.protocol import CENTRAL, Batch, Step
from tests.methods.watch import tiny_with, watched

RAMP = 0.25
RNG = np.random.default_rng(3)
X, U, V = (RNG.normal(size=(n, 1, 2, 2)) for n in (3, 5, 5))  # labelled images, and two views of unlabelled ones
LABELS = np.array([0, 2, 1])
W, AVERAGE = RNG.normal(size=(2, 3, 4))  # weights of the network and of its average, without bias
SHARES = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])


def linear(weight):
    layer = nn.Linear(4, 3, bias=False).double()
    layer.weight.data.copy_(torch.from_numpy(weight))
    return nn.Sequential(nn.Flatten(), layer)


def step(method):
    views = {name: torch.from_numpy(images) for name, images in zip(method.views, (U, V), strict=False)}
    labelled = Batch(views={"weak": torch.from_numpy(X)}, labels_N=torch.from_numpy(LABELS))
    batch = {"labelled": labelled, "unlabelled": Batch(views=views, labels_N=None)}
    update = central.CentralUpdate(method=method, keeps_momentum=True)
    drawn = update.draws(torch.Generator().manual_seed(7), batch)
    return Step(
        trainable=nn.ModuleDict({"student": linear(W)}),
        frozen=nn.ModuleDict({"average": linear(AVERAGE).eval()}),
        notes={"ramp": torch.tensor(RAMP, dtype=torch.float64), "shares_2D": torch.from_numpy(SHARES)},
        drawn=drawn,
        batch=batch,
    )


def logits(images, weight=W):
    return images.reshape(len(images), -1) @ weight.T


def cross_entropy(images, targets):
    return -(targets * log_softmax(logits(images), axis=1)).sum(axis=1)


def one_hot(labels):
    return np.eye(3)[labels]


PROBS, STRONG = softmax(logits(U), axis=1), softmax(logits(V), axis=1)  # predictions on the two views
KEPT = PROBS.max(axis=1) >= 0.7
SURE = one_hot(PROBS.argmax(axis=1))


def sharpened(probs, temperature):
    powers = probs ** (1 / temperature)
    return powers / powers.sum(axis=1, keepdims=True)


def mixed(guess, alpha):
    """Mix images and labels: x' = l x + (1 - l) other with l = max(lambda, 1 - lambda).

    Each of the 13 images is mixed with one of all 13.
    """
    images, targets = np.concatenate([X, U, V]), np.concatenate([one_hot(LABELS), guess, guess])
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(7)))
    rng = np.random.default_rng(seed)
    lam = rng.beta(alpha, alpha, size=13)
    lam = np.maximum(lam, 1 - lam)
    other = rng.permutation(13)
    part = lam[:, None, None, None]
    return part * images + (1 - part) * images[other], lam[:, None] * targets + (1 - lam[:, None]) * targets[other]


def uda():
    target = softmax(logits(U) / 0.4, axis=1)
    divergence = (target * (np.log(target) - log_softmax(logits(V), axis=1))).sum(axis=1)
    return 2.0 * (divergence * KEPT).mean()


def mixmatch():
    images, targets = mixed(sharpened((PROBS + STRONG) / 2, 0.5), 0.5)
    unlabelled = ((softmax(logits(images[3:]), axis=1) - targets[3:]) ** 2).mean()
    return cross_entropy(images[:3], targets[:3]).mean(), 100 * unlabelled


def remixmatch():
    weighted = PROBS * (SHARES[0] + 1e-6) / (SHARES[1] + 1e-6)
    guess = sharpened(weighted / weighted.sum(axis=1, keepdims=True), 0.5)
    images, targets = mixed(guess, 0.75)
    unlabelled = 1.5 * cross_entropy(images[3:], targets[3:]).mean() + 0.5 * cross_entropy(V, guess).mean()
    return cross_entropy(images[:3], targets[:3]).mean(), unlabelled


def both(unlabelled):
    return cross_entropy(X, one_hot(LABELS)).mean(), unlabelled


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (central.FixMatch(threshold=0.7), both((cross_entropy(V, SURE) * KEPT).mean())),
        (central.UDA(threshold=0.7, temperature=0.4, unlabelled_weight=2.0), both(uda())),
        (central.PseudoLabeling(threshold=0.7), both((cross_entropy(U, SURE) * KEPT).mean())),
        (central.PiModel(), both(10 * ((STRONG - PROBS) ** 2).mean())),
        (central.MeanTeacher(), both(50 * ((STRONG - softmax(logits(U, AVERAGE), axis=1)) ** 2).mean())),
        (central.MixMatch(), mixmatch()),
        (central.ReMixMatch(), remixmatch()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_loss_in_numpy(method, expected):
    """Compare with the labelled part plus ramp x unlabelled part."""
    assert 0 < KEPT.sum() < 5
    supervised, unlabelled = expected
    loss, aux = method.loss(step(method))
    assert loss.item() == pytest.approx(supervised + RAMP * unlabelled, rel=1e-6)
    assert aux["server/loss"].item() == pytest.approx(supervised, rel=1e-6)


@pytest.mark.parametrize("method", [central.FixMatch, central.MeanTeacher])
def test_the_average_of_weights_is_tested(method):
    """Compute a <- .9 a + .1 w after each step, in two rounds of one step; the first entry of `models` is a."""
    e = tiny_with(method(batch_size=8, unlabelled_ratio=1, ema=0.9), T=1)
    average = weights_of(prepare(e).network())
    for rounds in (1, 2):
        module, _ = watched(e, rounds)
        average = {name: 0.9 * average[name] + 0.1 * w for name, w in module.state.server["student"].items()}
    (first, *_) = module.models().values()
    torch.testing.assert_close(first, average, rtol=1e-5, atol=1e-7)


def test_the_ramp_rises_over_its_share_of_the_run():
    """Expect 0, 1/4, 1/2, 3/4, 1, 1 for .4 of 10 rounds; methods without a ramp begin at 1."""
    ramps = {}
    for method in (central.PiModel(batch_size=8), central.UDA(batch_size=8)):
        _, watch = watched(tiny_with(method, rounds=10, T=1), 6)
        updates = [job.update for number in watch.seen for job in watch.jobs(number)]
        ramps[type(method)] = [update.ramp for update in updates if isinstance(update, central.CentralUpdate)]
    assert ramps == {central.PiModel: pytest.approx([0, 0.25, 0.5, 0.75, 1, 1]), central.UDA: [1.0] * 6}


def test_remixmatch_s_shares_are_of_all_images():
    """Compare the class shares of the labels and the mean softmax over unlabelled images.

    There are two labels of each of the ten classes, and the softmax is computed with the first weights.
    """
    method = central.ReMixMatch(batch_size=8)
    module, watch = watched(tiny_with(method))
    (job,) = watch.jobs()
    shares = method.notes(job.receives, JobRunner(module.environment)._reader(job, 1, "train"))["shares_2D"]
    assert job.key.client == CENTRAL and shares.shape == (2, 10)
    assert shares[0].tolist() == pytest.approx([0.1] * 10)
    assert float(shares[1].sum()) == pytest.approx(1.0) and float(shares[1].std()) > 0
