"""EASGD: clients keep their own models, which are elastically coupled to a common center.

Zhang, Choromanska, LeCun. Deep Learning with Elastic Averaging SGD. NeurIPS 2015. Sections 2 and 3, Eqs. 2, 5, 6,
Algorithm 1 (communication every tau = T local steps). Table 5 of SSFL cites its result from the paper of
Overlap-Local-SGD, and the file distoptim/EASGD.py that was released with it (JYWa/Overlap_Local_SGD) has the same
update.

After T local steps on the client's labels, with the same old center z in both lines (the Jacobi form of Eqs. 5 and 6):

    x_i <- x_i - alpha (x_i - z)          z <- z + beta (mean_i x_i - z)

Elastic symmetry is beta = p alpha, where p is the number of clients in a round; the paper's experiments have beta = 0.9
and alpha = beta / p (section 5). A client continues from its own model, which is never replaced by z.

Deviations: reports/ssfl/departures.md, entry 23. In addition (the first three also apply to `overlap_sgd`):
1. Both papers have p workers in every round. With C < K, the model of a client that is not drawn does not change, while
   z does.
2. Batch-norm statistics are pulled like weights; each client keeps separate counters of batches.
3. Training uses weak views and incomplete last batches; labelled images at the server are not used.
4. Rounds are synchronous, as in the whole suite. The paper's Algorithm 1 is asynchronous; Eqs. 5 and 6 are the
   synchronous form.
5. alpha is a field and not computed from rho = alpha / eta of Eq. 2, so that a learning-rate schedule does not change
   it.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.config import Checked, Count, Share
from benchmark.methods import protocol as fl
from benchmark.methods.shared import SupervisedUpdate, ema, mean_of, trained_on_labels


@dataclass(frozen=True, kw_only=True)
class ElasticUpdate(SupervisedUpdate):
    """T local steps from the client's own model, followed by the pull x <- x - alpha (x - z)."""

    reports: str = "client/supervised_loss"
    alpha: float  # the rate in this round
    # The x that the server receives: the result of the local steps (EASGD Eq. 6) or the pulled x (Overlap-Local-SGD).
    sends: Literal["trained", "pulled"] = "trained"

    starts_from_received = False

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        """Start from the client's own model; in the client's first round, from z."""
        kept: fl.Tree = private or {}
        common: fl.Weights = received["student"]
        return fl.Local(
            trainable={"student": kept.get("student", common)},
            momentum=kept.get("momentum"),
            notes={"common": common},
        )

    def finish(self, local: fl.Local) -> fl.Tree:
        trained = local.trainable["student"]
        pulled = ema(local.notes["common"], trained, self.alpha)
        momentum = {"momentum": local.momentum} if self.keeps_momentum else {}
        local.private = {"student": pulled, **momentum}
        return {"student": trained if self.sends == "trained" else pulled}


@dataclass(frozen=True, kw_only=True)
class ElasticMethod(fl.Method):
    """The fields that EASGD and Overlap-Local-SGD share."""

    batch_size: Count = 64  # B
    # Momentum buffers of a client. In both papers a client is a process that runs throughout training and so keeps its
    # buffers (EAMSGD in the first paper; distoptim/OverlapLocalSGD.py in the second). Default: kept.
    momentum: Literal["kept", "reset"] = "kept"

    needs = frozenset({"everywhere", "every_client", "some_clients", "share", "one_more_client"})


@dataclass(frozen=True, kw_only=True)
class MovingRate(Checked):
    """Elastic symmetry: the clients' rate follows from the center's rate by alpha = beta / C (section 5)."""

    beta: Share = 0.9  # beta


@dataclass(frozen=True, kw_only=True)
class EASGD(ElasticMethod):
    """Synchronous elastic averaging."""

    elastic: MovingRate = MovingRate()

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"center": setup.initial_weights()})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {"center": state.server["center"]}

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        center = state.server["center"]
        beta = self.elastic.beta
        update = ElasticUpdate(alpha=beta / world.C, keeps_momentum=self.momentum == "kept")
        mean = mean_of(trained_on_labels(update, center, world, self.batch_size), otherwise=None)
        return fl.State(server={"center": center if mean is None else ema(center, mean, 1.0 - beta)}), {}
