"""FedMatch: both losses in NumPy, helpers, and weights that are sent as changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, softmax
from torch import nn

from benchmark.data.pooled import gaussian_image
from benchmark.federated.environment import prepare
from benchmark.federated.local import load
from benchmark.federated.trees import tree_bytes
from benchmark.methods.changed_entries import changed_entries, with_changed_entries
from benchmark.methods.fedmatch import ClientUpdate, FedMatch, Lambdas, summed
from benchmark.methods.protocol import Batch, Step
from benchmark.optimizer import Optimizer
from tests.federated.helpers import difference, module_of
from tests.methods.watch import Watch, tiny_with

METHOD = FedMatch(batch_size=8, labelled_batch_size=4, server_batch_size=8, threshold=0.14, helper_interval=3)


def experiment(setting, **factors):
    return replace(tiny_with(METHOD, setting, **factors), optimizer=Optimizer(lr=0.005))


# Helpers.


@pytest.mark.parametrize("setting", ["server", "every_client"])
def test_helpers_are_the_nearest_seen_clients_every_third_round(setting):
    """Compare the helpers with distances that are computed again here, with C = 3 of K = 6.

    A client seen before has the psi of the two clients whose last models are nearest to its own, by their softmax on
    the same image of noise. New clients, and other rounds, have no helpers.
    """
    e = experiment(setting, K=6, C=3, rounds=6)
    module = module_of(e)
    data = prepare(e).data
    watch = Watch(module)
    states = [module.state.server]
    network = module.environment.network().eval()
    for number in range(1, 7):
        module.training_step(number, 0)
        states.append(module.state.server)
    noise_1CHW = gaussian_image(data.image_shape, data.mean, data.std, e.seed)
    last: dict[int, np.ndarray] = {}
    helped = 0
    for round_number in range(1, 7):
        known = states[round_number - 1]["known"]
        for job, _ in watch.clients(round_number):
            client = job.key.client
            has = job.receives.get("helpers", {})
            wanted = by_distance(client, last)[:2] if round_number % 3 == 0 and client in last else []
            for changed, helper in zip(has.values(), wanted, strict=True):
                psi = with_changed_entries(
                    with_changed_entries(known[str(client)]["psi"], job.receives["psi"]), changed
                )
                assert difference(psi, known[str(helper)]["psi"]) <= METHOD.delta_threshold * 1.01
                helped += 1
        for job, _ in watch.clients(round_number):
            sets = states[round_number]["known"][str(job.key.client)]
            load(network, summed(sets["sigma"], sets["psi"]))
            with torch.no_grad():
                last[job.key.client] = softmax(network(noise_1CHW)[0].double().numpy())
    assert helped >= 4


def by_distance(client, outputs):
    """List the other clients, nearest first."""
    return sorted(outputs.keys() - {client}, key=lambda other: np.linalg.norm(outputs[other] - outputs[client]))


# The losses of FedMatch, on linear networks that NumPy can reproduce.
#
# Legend: N images, D classes.


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
    """Compare with 1/H sum KL(p_h

    p) and the cross-entropy of the vote, plus two norms of psi.||The first two are means over images with a confidence
    of at least tau.
    """
    lambdas = Lambdas(i=0.3, a=0.7, l2=0.02, l1=0.05)
    update = ClientUpdate(method=FedMatch(lambdas=lambdas, threshold=threshold))
    trainable, frozen = networks("psi"), networks("sigma", *helpers)
    loss, aux = update.without_labels(Step(trainable=trainable, frozen=frozen, batch=unlabelled()))

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
    """Check that

    sigma - psi||^2 only has a gradient for psi, and the loss on labels only for sigma.
    """
    update = ClientUpdate(method=FedMatch())
    both = networks("sigma", "psi")
    update.without_labels(Step(trainable=both, frozen=networks("helper 0"), batch=unlabelled()))[0].backward()
    assert both["sigma"].weight.grad is None and both["psi"].weight.grad is not None
    both = networks("sigma", "psi")
    labelled = Batch(views={"plain": torch.tensor(PLAIN)}, labels_N=torch.arange(6) % 4)
    loss, aux = update.on_labels(Step(trainable=both, frozen=networks(), batch={"labelled": labelled}))
    loss.backward()
    assert both["psi"].weight.grad is None
    log_p = log_softmax(PLAIN @ (SETS["sigma"] + SETS["psi"]).T, axis=1)
    cross_entropy = -log_p[np.arange(6), np.arange(6) % 4].mean()
    assert (loss.item(), aux["client/supervised_loss"].item()) == pytest.approx((10 * cross_entropy, cross_entropy))
    # d CE / d W = (p - onehot)^T x / N, at sigma + psi
    by_hand = 10 * (np.exp(log_p) - np.eye(4)[np.arange(6) % 4]).T @ PLAIN / 6
    np.testing.assert_allclose(both["sigma"].weight.grad.numpy(), by_hand, atol=1e-12)


# Weights that are sent as changes: bytes by hand, and the received weights.


NUMBERS = st.floats(-4, 4, width=32)


@pytest.mark.parametrize(
    ("changed", "size"),
    [
        (0, 0),
        (1, 8),
        (2, 16),  # of two equal sizes the positions are used
        (3, 20),  # 8 bytes for 64 bits and 3 x 4 bytes; positions need 24
        (61, 252),
        (62, 256),  # 8 + 62 x 4 = 256: of two equal sizes the whole tensor is used
    ],
)
def test_bytes_by_hand(changed, size):
    """Count the bytes of a tensor of 8 x 8 four-byte entries.

    The whole tensor has 256 bytes. An entry has 8 bytes with its position, and 4 with a bit map, which has 8 bytes.
    """
    before = {"w": torch.zeros(8, 8)}
    after = {"w": torch.cat([torch.ones(changed), torch.zeros(64 - changed)]).reshape(8, 8)}
    assert tree_bytes(changed_entries(before, after, 0.5)) == size


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=80), st.sampled_from([0.0, 0.3, 2.0]))
def test_entries_that_moved_take_the_new_value_and_others_the_old(pairs, threshold):
    old, new = (torch.tensor(column, dtype=torch.float32) for column in zip(*pairs, strict=True))
    before, after = {"w": old, "same": torch.ones(3)}, {"w": new, "same": torch.ones(3)}
    sent = changed_entries(before, after, threshold)
    got = with_changed_entries(before, sent)["w"]
    far = (new - old).abs() > threshold
    assert torch.equal(got[far], new[far]) and torch.equal(got[~far], old[~far])
    assert "same" not in sent and tree_bytes(sent) <= tree_bytes({"w": new})
    if threshold == 0.0:
        assert torch.equal(got, new)
