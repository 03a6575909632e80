"""FedDB: pseudo-labels and the average are freed of the model's bias to classes.

Zhu, Liu, Wu, Tang, Tang, Niu, Su. Estimating before Debiasing: A Bayesian Approach to Detaching Prior Bias in Federated
Semi-Supervised Learning. IJCAI 2024, arXiv:2405.19789. Released code: GuogangZhu/FedDB, 9f9248e (src/modules).

A client measures its bias q, the mean prediction of its unlabelled images by the model received (APP-U). It labels them
once by p / q, scaled to sum to 1, and keeps those that are sure (modules.py:137-182). It learns its labels and, on the
strong view, the kept images alone; without any, labels alone. After each step q <- (q + mean prediction of the batch) /
2 (Client.train). It sends weights and q. The server chooses the clients' shares a in the mean so that sum_k a_k q_k is
nearest to uniform, and takes an SGD step of rate 1 with momentum towards that mean (modules.py:51-88).

The local step is that of `sage`, whose protocol ProxyFL runs it in, and whose switches it has.

Departures:
1. Batches are `batch_size` and `labelled_batch_size`. Released: all labelled and all kept images in each of 5 steps
   (modules.py, Client.train), which larger batches than a client's images give.
2. Released: the two kinds of images pass apart (`forward`), through batch norms that have no running statistics.
3. Released: momentum buffers stay with the client (`momentum`, which here is reset).
4. A client without unlabelled images has no q, and sits out. So does one that has neither labels nor a kept image.

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

RIDGE = 1e-6  # of shares that are equally good, those nearest to 1 / K
KEEP = 0.5  # of q in a step


@dataclass(frozen=True, kw_only=True)
class FedDB(TwoLabellers):
    """One round: clients free their labels of bias, the server its mean."""

    server_momentum: ShareBelow1 = 0.5  # README's control_name, the last number
    # Shares of the clients. "paper": the least squares. "released_code": 100 steps that hardly leave 1 / K, as each is
    # a new optimizer's and passes through a softmax of shares, not of logits. "equal": 1 / K. Default: the code. By the
    # paper nearly all goes to the client whose predictions say least, and the model stays untrained (digits, alpha .1,
    # 60 rounds, one seed: 10 % against 94, with a largest share of .94).
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
    """Labels once, from the model received."""

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
        # A stream needs an image: where none is kept, `loss` leaves out the one that stands in.
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
        """Of kept images alone. Moves q, too."""
        strong_ND = logits["strong"]
        batch_D = torch.softmax(strong_ND.detach(), dim=-1).mean(dim=0)
        step.notes["q"] = KEEP * step.notes["q"] + (1 - KEEP) * batch_D
        return supervised_loss(strong_ND, step.batch["unlabelled"].given_N), {}

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), "q": local.notes["q"]}


def least_biased(q_KD: Tensor) -> Tensor:
    """shares_K, at least 0 and 1 in all, with the least distance of sum_k a_k q_k to uniform.

    Every q_k sums to 1, so that this is the shortest sum_k a_k q_k: least squares of sum_k x_k q_k to 0 and of sum_k
    x_k to 1, scaled to sum to 1.
    """
    from scipy.optimize import nnls  # half a second to load

    K, D = q_KD.shape
    rows = np.vstack([q_KD.T.numpy(), RIDGE**0.5 * np.eye(K), np.ones((1, K))])
    x_K, _ = nnls(rows, np.concatenate([np.zeros(D + K), [1.0]]))
    return torch.from_numpy(x_K / x_K.sum())


def released_shares(q_KD: Tensor) -> Tensor:
    """shares_K of the release (modules.py:51-69). SGD of rate 1 with Nesterov momentum .9 and decay .9, whose first
    step is 1.9 times the gradient, on the mean squared error; then a softmax. 100 times."""
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
