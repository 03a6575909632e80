"""FedDyn: a dynamic regulariser moves each client's minimum to the global minimum.

The method is supervised. Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic
Regularization. ICLR 2021, Algorithm 1. Released code: alpemreacar/FedDyn, utils_methods.py: train_FedDyn.

A client minimises L_k(theta) - <g_k, theta> + alpha/2 ||theta - theta^{t-1}||^2, sets
g_k <- g_k - alpha (theta_k - theta^{t-1}), and keeps g_k. The server sets h <- h - alpha/m sum_k (theta_k -
theta^{t-1}), where the sum is over the clients of the round and m is the number of all clients, and sends theta^t =
mean_k theta_k - h / alpha.

Deviations (for its runs see reports/semifl/departures.md, entry 16):
1. The minimum is approximated by E passes or T steps of SGD, as in section 4 and the released code.
2. With alpha = 0 there is no regulariser, and g_k and h stay 0: this is FedAvg. As alpha approaches 0, the server's
   h / alpha does not vanish: for every alpha, -h / alpha is the mean over all clients of their summed changes.
3. The mean of the round's clients is evaluated, as in the released code; theta^t is only sent.
4. The released code divides alpha by a client's share of the images (its weight). This division is left out; it has no
   effect if all clients have the same size.
5. Running statistics of batch norms are averaged. They are part of neither g_k nor h.
"""

from dataclasses import dataclass

import torch

from benchmark.config import Count, NotNegative
from benchmark.losses import proximal_term, sum_over_weights
from benchmark.methods import protocol as fl
from benchmark.methods.shared import RunningMean, is_statistic, labelled_loss, sent, trained_on_labels
from benchmark.methods.static_norm import with_static_statistics


@dataclass(frozen=True, kw_only=True)
class FedDyn(fl.Method):
    """FedDyn (Algorithm 1)."""

    alpha: NotNegative = 0.01  # alpha  from the released CIFAR-10 example
    batch_size: Count = 50  # B

    needs = frozenset({"everywhere", "every_client", "share"})  # settings with labels at every client
    asks_for_statistics = True

    def init(self, setup: fl.Setup) -> fl.State:
        theta = setup.initial_weights()
        return fl.State(server={"theta": theta, "h": None, "student": theta})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        theta, h = state.server["theta"], state.server["h"]
        clients = RunningMean()
        for _, sends in sent(trained_on_labels(ClientUpdate(method=self), theta, world, self.batch_size)):
            clients.add(sends["student"])
        if not clients.total:
            return state, {}
        mean = with_static_statistics(clients.value(), world, range(world.K))
        if not self.alpha:
            return fl.State(server={"theta": mean, "h": h, "student": mean}), {}
        h = moved(h, theta, mean, self.alpha * clients.total / world.K)
        theta = {name: (w.double() - h[name] / self.alpha).to(w.dtype) if name in h else w for name, w in mean.items()}
        return fl.State(server={"theta": theta, "h": h, "student": mean}), {}


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(fl.LocalUpdate):
    """Local work of a client (its lines of Algorithm 1). The client keeps g_k."""

    method: FedDyn

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        theta = received["student"]
        if not self.method.alpha:
            return fl.Local(trainable={"student": theta})
        gradient = private["gradient"] if private else {name: torch.zeros_like(w) for name, w in theta.items()}
        return fl.Local(trainable={"student": theta}, frozen={"anchor": theta, "gradient": gradient})

    def loss(self, step: fl.Step) -> fl.Loss:
        student = step.student
        alpha = self.method.alpha
        loss = supervised = labelled_loss(student, step.batch["labelled"])
        if alpha:
            pull = proximal_term(student, step.frozen["anchor"], alpha, half=True)
            inner_product = sum_over_weights(lambda g, w: (g.detach() * w).sum(), step.frozen["gradient"], student)
            loss = supervised - inner_product + pull
        return loss, {"client/supervised_loss": supervised, "client/loss": loss}

    def finish(self, local: fl.Local) -> fl.Tree:
        student = local.trainable["student"]
        if self.method.alpha:
            new = moved(local.frozen["gradient"], local.frozen["anchor"], student, self.method.alpha)
            like = local.frozen["gradient"]
            local.private = {"gradient": {name: new.get(name, old).to(old.dtype) for name, old in like.items()}}
        return {"student": student}


def moved(old: fl.Weights | None, start: fl.Weights, end: fl.Weights, rate: float) -> fl.Weights:
    """Compute old - rate (end - start) for every trained parameter, in float64. If `old` is None, it counts as 0."""
    return {
        name: (0.0 if old is None else old[name].double()) - rate * (end[name].double() - value.double())
        for name, value in start.items()
        if not is_statistic(name)
    }
