"""Supervised FL: FedAvg or FedProx on the clients' labels alone.

The bounds of a semi-supervised method. McMahan et al. Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017, Algorithm 1 (mu = 0). Li et al. Federated Optimization in Heterogeneous Networks
(FedProx). MLSys 2020, Algorithm 2, Eq. 2 (mu > 0).

Where clients have the labels of all their images ("everywhere") it is the upper bound; where few labels are at clients,
only those that have some train, on these: the lower bound "labelled clients only" of RSCFed's Table 1.

Departures:
1. A cohort is the usual one without the clients that have no labels; if none is left, it is drawn from the clients with
   labels. In settings where everybody has some, all methods see equal cohorts.
2. Labelled images at the server are not used: it only averages. Its bound is the method server_only.
3. Training uses weak views, as everywhere in the suite; an incomplete last batch is trained on.
4. The rate is the clients' (`optimizer.lr`), also where the compared method learns from labels with `server_lr`.
5. `view` and `server_momentum` are ours: with SemiFL's network, static batch norms and its values of both it is the
   control of SemiFL's Table 3, supervised FedAvg with the techniques that section 4 there gives as a reason.
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
    """FedAvg with mu = 0, FedProx with mu > 0."""

    mu: NotNegative = 0.0  # mu  0: FedAvg
    proximal: Literal["half", "full"] = "half"  # FedProx Eq. 2 has mu/2; "full" is mu, as in FedSwitch's Algorithm 1
    batch_size: Count = 64  # B
    # "size": n_k / n with n_k the images trained on (FedAvg's Algorithm 1); "uniform": 1/m (FedSwitch, FedProx).
    weighting: Literal["size", "uniform"] = "size"
    view: Literal["weak", "strong"] = added("weak")  # that is trained on
    server_momentum: ShareBelow1 = added(0.0)  # beta_g of SemiFL: of the server's step towards the mean

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
    """Cross-entropy on one view, and FedProx's term where mu > 0. It pulls towards the weights received (FedProx Eq.
    2)."""

    method: SupervisedFL

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        student = received["student"]
        return fl.Local(trainable={"student": student}, frozen={"anchor": student} if self.method.mu else {})

    def loss(self, step: fl.Step) -> fl.Loss:
        student, mu = step.student, self.method.mu
        loss = supervised = labelled_loss(student, step.batch["labelled"], self.method.view)
        if mu:
            loss = supervised + proximal_term(student, step.frozen["anchor"], mu, half=self.method.proximal == "half")
        return loss, {"client/supervised_loss": supervised, "client/loss": loss}
