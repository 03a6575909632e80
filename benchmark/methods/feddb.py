"""FedDB: the model's bias towards some classes is removed from pseudo-labels and from the average.

Zhu, Liu, Wu, Tang, Tang, Niu, Su. Estimating before Debiasing: A Bayesian Approach to Detaching Prior Bias in Federated
Semi-Supervised Learning. IJCAI 2024, arXiv:2405.19789. Released code: GuogangZhu/FedDB, 9f9248e (src/modules).

A client measures its bias q, the mean prediction of the received model on its unlabelled images (APP-U). It labels
these images once by p / q, scaled to sum to 1, and selects the images with a confidence of at least the threshold
(modules.py:137-182). It learns its labels and, on the strong view, only the selected images; if none is selected, it
only learns its labels. After each step q <- (q + mean prediction of the batch) / 2 (Client.train). It sends its weights
and q. The server chooses the clients' shares a in the mean such that sum_k a_k q_k is nearest to uniform, and takes an
SGD step of rate 1 with momentum towards this mean (modules.py:51-88).

ProxyFL runs FedDB in the protocol of `sage`. Therefore it uses the local step and the implementation choices of `sage`.

Deviations:
1. Batches have `batch_size` and `labelled_batch_size` images. Released code: all labelled and all selected images in
   each of 5 steps (modules.py, Client.train), which batch sizes above a client's number of images reproduce.
2. Released code: labelled and unlabelled images have separate forward passes (`forward`), through batch norms without
   running statistics.
3. Released code: the client keeps its momentum buffers; by default, `momentum` resets them.
4. A client without unlabelled images has no q and skips the round, and so does a client with neither labels nor a
   selected image.

Legend: K clients that sent something.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from benchmark.config import ShareBelow1
from benchmark.losses import supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.sage import ClientUpdate, Logits, TwoLabellers
from benchmark.methods.shared import mean, momentum_step, sent

RIDGE = 1e-6  # weight of a ridge term, which selects the shares nearest to 1 / K among equally good ones
KEEP = 0.5  # the share of the old q that remains after a step


@dataclass(frozen=True, kw_only=True)
class FedDB(TwoLabellers):
    """FedDB: clients remove the bias from their pseudo-labels, and the server removes it from the mean."""

    server_momentum: ShareBelow1 = 0.5  # the last number of control_name in the README
    # The clients' shares in the mean. "paper": the least-squares solution. "released_code": 100 steps that hardly
    # change 1 / K, since each step uses a new optimizer and a softmax of the shares instead of logits. "equal": 1 / K.
    # Default: the code. With the paper's shares, nearly all weight goes to the client with the least informative
    # predictions, and the model does not learn: 10 % against 94 % with a largest share of .94 (digits, alpha .1, 60
    # rounds, one seed).
    shares: Literal["paper", "released_code", "equal"] = "released_code"

    needs = frozenset({"drawn_apart", "every_client", "share"})
    views = ("strong",)
    uses_global = False

    def update(self, world: fl.World, client: int) -> "FedDBUpdate":
        return FedDBUpdate(method=self, keeps_momentum=self.keeps_momentum)

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        trees = [sends for _, sends in sent(world.fit(self.jobs(student, world)))]
        if not trees:
            return state, {}
        q_KD = torch.stack([sends["q"] for sends in trees]).double().cpu()
        shares_K = SHARES[self.shares](q_KD)
        target = mean([sends["student"] for sends in trees], shares_K.tolist())
        student, velocity = momentum_step(
            student, target, state.server.get("velocity"), self.server_momentum, world.buffers()
        )
        bias = float((shares_K @ q_KD - 1 / q_KD.shape[1]).norm())
        server = {"student": student, "velocity": velocity}
        return fl.State(server=server), {"feddb/bias": bias, "feddb/largest_share": float(shares_K.max())}


@dataclass(frozen=True, kw_only=True)
class FedDBUpdate(ClientUpdate):
    """Local work of a client, which labels its images once with the received model."""

    method: FedDB

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        p_ND = torch.softmax(reader.predict(received["student"], "unlabelled", "weak"), dim=-1)
        if not len(p_ND):
            return None
        q_D = p_ND.mean(dim=0)
        confidence_N, labels_N = (p_ND / q_D / (p_ND / q_D).sum(dim=-1, keepdim=True)).max(dim=-1)
        kept_N = confidence_N >= self.method.threshold
        mine_N = reader.labels("labelled")
        if not kept_N.any() and (mine_N is None or not len(mine_N)):
            return None
        # A stream needs at least one image. If none is selected, it gets the first one, and `loss` leaves this one out.
        sure_N = kept_N.nonzero().flatten() if kept_N.any() else torch.zeros(1, dtype=torch.int64)
        local = self.begin(received, private, reader)
        local.notes = {"q": q_D, "any_kept": bool(kept_N.any())}
        local.pseudo = fl.PseudoLabelled(labels_N=labels_N, kept_N=kept_N)
        local.selected["unlabelled"] = fl.Selected(positions_N=sure_N, labels_N=labels_N[sure_N])
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        if not step.notes["any_kept"]:
            step.batch = {"labelled": step.batch["labelled"]}
        return super().loss(step)

    def consistency(self, logits: Logits, step: fl.Step) -> fl.Loss:
        """Compute the cross-entropy of the selected images on the strong view, and update q."""
        strong_ND = logits["strong"]
        batch_D = torch.softmax(strong_ND.detach(), dim=-1).mean(dim=0)
        step.notes["q"] = KEEP * step.notes["q"] + (1 - KEEP) * batch_D
        return supervised_loss(strong_ND, step.batch["unlabelled"].given_N), {}

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), "q": local.notes["q"]}


def least_biased(q_KD: Tensor) -> Tensor:
    """Compute shares_K, at least 0 and with sum 1, that minimise the distance of sum_k a_k q_k from uniform.

    Every q_k sums to 1, so that this minimises the norm of sum_k a_k q_k. It is solved as a least-squares problem that
    fits sum_k x_k q_k to 0 and sum_k x_k to 1; the solution is scaled to sum to 1.
    """
    from scipy.optimize import nnls  # imported late because it needs half a second to load

    K, D = q_KD.shape
    rows = np.vstack([q_KD.T.numpy(), RIDGE**0.5 * np.eye(K), np.ones((1, K))])
    x_K, _ = nnls(rows, np.concatenate([np.zeros(D + K), [1.0]]))
    return torch.from_numpy(x_K / x_K.sum())


def released_shares(q_KD: Tensor) -> Tensor:
    """Compute shares_K as in the released code (modules.py:51-69).

    Each of 100 steps is the first step of SGD on the mean squared error with rate 1, Nesterov momentum .9 and decay .9,
    that is, 1.9 times the gradient, followed by a softmax.
    """
    K, D = q_KD.shape
    shares_K = torch.full((K,), 1 / K, dtype=q_KD.dtype)
    for _ in range(100):
        gradient_K = 2 / D * q_KD @ (shares_K @ q_KD - 1 / D)
        shares_K = torch.softmax(shares_K - 1.9 * (gradient_K + 0.9 * shares_K), dim=0)
    return shares_K


SHARES = {
    "paper": least_biased,
    "released_code": released_shares,
    "equal": lambda q_KD: torch.full((len(q_KD),), 1 / len(q_KD), dtype=q_KD.dtype),
}
