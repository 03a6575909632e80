"""FedMatch's losses, on linear networks that NumPy can follow.

Legend: N images, D classes.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.methods.fedmatch import ClientUpdate, FedMatch, Lambdas, consistency_of_clients, vote
from benchmark.methods.protocol import Batch

RNG = np.random.default_rng(4)
PLAIN, STRONG = RNG.normal(size=(6, 3)), RNG.normal(size=(6, 3))
SETS = {name: RNG.normal(size=(4, 3)) for name in ("sigma", "psi", "helper 0", "helper 1")}


def linear(weights_DC):
    layer = nn.Linear(3, 4, bias=False).double()
    layer.weight.data = torch.tensor(weights_DC)
    return layer


def networks(*names):
    return nn.ModuleDict({name: linear(SETS[name]) for name in names})


def unlabelled():
    return {"unlabelled": Batch(views={"plain": torch.tensor(PLAIN), "strong": torch.tensor(STRONG)}, labels_N=None)}


@pytest.mark.parametrize("threshold", [0.0, 0.6, 0.999999])
@pytest.mark.parametrize("helpers", [[], ["helper 0", "helper 1"]])
def test_psi_s_loss_by_numpy(threshold, helpers):
    """1/H sum KL(p_h || p) and the cross-entropy of the vote, means over images at least tau sure; two norms of psi."""
    lambdas = Lambdas(i=0.3, a=0.7, l2=0.02, l1=0.05)
    update = ClientUpdate(method=FedMatch(lambdas=lambdas, threshold=threshold))
    trainable, frozen = networks("psi"), networks("sigma", *helpers)
    loss, aux = update.without_labels(trainable, frozen, unlabelled(), torch.Generator())

    theta = SETS["sigma"] + SETS["psi"]
    own_ND = PLAIN @ theta.T
    kept_N = softmax(own_ND, axis=1).max(axis=1) >= threshold
    others = [PLAIN @ SETS[name].T for name in helpers]
    votes_ND = sum(np.eye(4)[logits.argmax(axis=1)] for logits in [own_ND, *others])
    labels_N = votes_ND.argmax(axis=1)
    M = max(1, kept_N.sum())
    p_own = log_softmax(own_ND, axis=1)
    kl = sum((softmax(o, axis=1) * (log_softmax(o, axis=1) - p_own)).sum(axis=1) for o in others)
    inter_client = (kl / len(helpers) * kept_N).sum() / M if helpers else 0.0
    agreement = (-log_softmax(STRONG @ theta.T, axis=1)[np.arange(6), labels_N] * kept_N).sum() / M
    norms = 0.02 * ((SETS["sigma"] - SETS["psi"]) ** 2).sum() + 0.05 * abs(SETS["psi"]).sum()
    assert loss.item() == pytest.approx(0.3 * inter_client + 0.7 * agreement + norms)
    assert aux["labels_N"].tolist() == labels_N.tolist() and aux["kept_N"].tolist() == kept_N.tolist()
    assert aux["client/inter_client_loss"].item() == pytest.approx(inter_client)


def test_each_loss_has_a_gradient_for_its_own_weights_alone():
    """Also ||sigma - psi||^2 pulls psi and not sigma; labels reach sigma and not psi."""
    update, both = ClientUpdate(method=FedMatch()), networks("sigma", "psi")
    update.without_labels(both, networks("helper 0"), unlabelled(), torch.Generator())[0].backward()
    assert both["sigma"].weight.grad is None and both["psi"].weight.grad is not None
    both = networks("sigma", "psi")
    labelled = Batch(views={"plain": torch.tensor(PLAIN)}, labels_N=torch.arange(6) % 4)
    loss, aux = update.on_labels(both, networks(), {"labelled": labelled}, torch.Generator())
    loss.backward()
    assert both["psi"].weight.grad is None
    log_p = log_softmax(PLAIN @ (SETS["sigma"] + SETS["psi"]).T, axis=1)
    cross_entropy = -log_p[np.arange(6), np.arange(6) % 4].mean()
    assert (loss.item(), aux["client/supervised_loss"].item()) == pytest.approx((10 * cross_entropy, cross_entropy))
    # d CE / d W = (p - onehot)^T x / N, at sigma + psi
    by_hand = 10 * (np.exp(log_p) - np.eye(4)[np.arange(6) % 4]).T @ PLAIN / 6
    np.testing.assert_allclose(both["sigma"].weight.grad.numpy(), by_hand, atol=1e-12)


def test_inter_client_consistency_is_zero_where_a_helper_equals_the_client():
    own_ND = torch.tensor(PLAIN @ SETS["psi"].T)
    other_ND = torch.tensor(PLAIN @ SETS["sigma"].T)
    kept_N = torch.ones(6, dtype=torch.bool)
    assert consistency_of_clients(own_ND, [own_ND, own_ND], kept_N).item() == pytest.approx(0.0, abs=1e-12)
    one = consistency_of_clients(own_ND, [other_ND], kept_N).item()
    assert one > 0.01
    assert consistency_of_clients(own_ND, [other_ND, own_ND], kept_N).item() == pytest.approx(one / 2)
    assert consistency_of_clients(own_ND, [other_ND], ~kept_N).item() == 0.0


def test_the_vote_by_hand():
    """Own 0, 1, 2; first helper 0, 2, 1; second 1, 2, 0: two for 0; two for 2; one each: the lowest class."""
    logits = [F.one_hot(torch.tensor(labels), 3).double() for labels in ([0, 1, 2], [0, 2, 1], [1, 2, 0])]
    assert vote(logits).tolist() == [0, 2, 0]
    assert vote(logits[:1]).tolist() == [0, 1, 2]
