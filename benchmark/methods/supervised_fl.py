"""Supervised FL: FedAvg or FedProx on the clients' labels only.

This method gives the lower and upper bounds of semi-supervised methods. McMahan et al. Communication-Efficient Learning
of Deep Networks from Decentralized Data. AISTATS 2017, Algorithm 1 (mu = 0). Li et al. Federated Optimization in
Heterogeneous Networks (FedProx). MLSys 2020, Algorithm 2, Eq. 2 (mu > 0).

If clients have the labels of all their images ("everywhere"), it is the upper bound. If clients have few labels, only
clients with labels train, on their labelled images; this is the supervised baseline "labelled clients only" of RSCFed's
Table 1.

Deviations:
1. A cohort is the usual cohort without the clients that have no labels; if none is left, it is drawn from the clients
   with labels. If all clients have labels, all methods have equal cohorts.
2. Labelled images at the server are not used, since the server only averages. For their baseline use server_only.
3. Training uses weak views, as everywhere in the suite, and incomplete last batches.
4. The learning rate is the clients' (`optimizer.lr`), even if the compared method learns from labels with `server_lr`.
5. `view` and `server_momentum` are additions of this suite. With SemiFL's network, its static batch norms and its
   values of both fields, the method is the control of SemiFL's Table 3: supervised FedAvg with the techniques that, by
   section 4 of that paper, explain the result.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.config import Count, NotNegative, ShareBelow1, added
from benchmark.losses import proximal_term
from benchmark.methods import protocol as fl
from benchmark.methods.shared import labelled_loss, mean_of, momentum_step, trained_on_labels
from benchmark.methods.static_norm import with_static_statistics


@dataclass(frozen=True, kw_only=True)
class SupervisedFL(fl.Method):
    """Supervised federated learning: FedAvg with mu = 0, FedProx with mu > 0."""

    mu: NotNegative = 0.0  # mu  0: FedAvg
    proximal: Literal["half", "full"] = "half"  # FedProx Eq. 2 has mu/2; "full" is mu, as in FedSwitch's Algorithm 1
    batch_size: Count = 64  # B
    # "size": n_k / n, where n_k counts the client's labelled images (FedAvg's Algorithm 1); "uniform": 1/m (FedSwitch,
    # FedProx).
    weighting: Literal["size", "uniform"] = "size"
    view: Literal["weak", "strong"] = added("weak")  # the view of the training images
    server_momentum: ShareBelow1 = added(0.0)  # beta_g of SemiFL, the momentum of the server's step towards the mean

    needs = frozenset({"drawn_apart", "everywhere", "every_client", "some_clients", "share", "one_more_client"})
    asks_for_statistics = True

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        outcomes = trained_on_labels(FedProxUpdate(method=self), student, world, self.batch_size, self.view)
        mean = mean_of(outcomes, student, lambda client: world.labelled[client] if self.weighting == "size" else 1.0)
        kept: fl.Tree = {}
        if self.server_momentum:
            mean, kept["velocity"] = momentum_step(
                student, mean, state.server.get("velocity"), self.server_momentum, world.buffers()
            )
        return fl.State(server={"student": with_static_statistics(mean, world, range(world.K)), **kept}), {}


@dataclass(frozen=True, kw_only=True)
class FedProxUpdate(fl.LocalUpdate):
    """Local work of a client: the cross-entropy on one view and, if mu > 0, the proximal term of FedProx (Eq. 2).

    The proximal term pulls the weights towards the received weights.
    """

    method: SupervisedFL

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        student = received["student"]
        return fl.Local(trainable={"student": student}, frozen={"anchor": student} if self.method.mu else {})

    def loss(self, step: fl.Step) -> fl.Loss:
        student = step.student
        mu = self.method.mu
        loss = supervised = labelled_loss(student, step.batch["labelled"], self.method.view)
        if mu:
            loss = supervised + proximal_term(student, step.frozen["anchor"], mu, half=self.method.proximal == "half")
        return loss, {"client/supervised_loss": supervised, "client/loss": loss}
