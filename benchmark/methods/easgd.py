"""EASGD: clients keep their own models, and a common center is averaged.

Zhang, Choromanska, LeCun. Deep Learning with Elastic Averaging SGD. NeurIPS 2015. Sections 2 and 3, Eqs. 2, 5, 6,
Algorithm 1 (communication every tau = T local steps). SSFL quotes it in Table 5 from Overlap-Local-SGD's paper, whose
released distoptim/EASGD.py (JYWa/Overlap_Local_SGD) is the same update.

After T local steps on its labels, with the same old center z in both lines (the Jacobi form of Eqs. 5 and 6):

    x_i <- x_i - alpha (x_i - z)          z <- z + beta (mean_i x_i - z)

Elastic symmetry is beta = p alpha with p the clients of a round; the paper's experiments have beta = 0.9 and alpha =
beta / p (section 5). A client goes on from its own model; it is never replaced by z.

Departures: reports/ssfl/departures.md, entry 23. Besides (the first three for `overlap_sgd`, too):
1. Both papers have p workers in every round. With C < K a client's model stays while others train, and z moves on.
2. Batch-norm statistics are pulled as weights are; counters of batches are the client's own.
3. Training uses weak views; an incomplete last batch is trained on; labelled images at the server are not used.
4. Synchronous, as the suite's rounds are; the paper's Algorithm 1 is asynchronous, with Eqs. 5 and 6 its other form.
5. alpha is set, not computed from Eq. 2's rho = alpha / eta; a schedule of the rate leaves it alone.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.config import Checked, Count, Share
from benchmark.methods import protocol as fl
from benchmark.methods.shared import SupervisedUpdate, ema, mean_of, trained_on_labels


@dataclass(frozen=True, kw_only=True)
class ElasticUpdate(SupervisedUpdate):
    """T local steps from the client's own model, then the pull. x <- x - alpha (x - z)."""

    reports: str = "client/supervised_loss"
    alpha: float  # of this round
    # Which x the server gets: that of the local steps (EASGD Eq. 6), or the pulled one (Overlap-Local-SGD).
    sends: Literal["trained", "pulled"] = "trained"

    starts_from_received = False

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        """From the client's own model; from z the first time."""
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
    """The fields and the local work that EASGD and Overlap-Local-SGD share."""

    batch_size: Count = 64  # B
    # Momentum buffers of a client: its process never ends in either paper, so that they stay with it (EAMSGD of the
    # first; distoptim/OverlapLocalSGD.py of the second). Default: kept.
    momentum: Literal["kept", "reset"] = "kept"

    needs = frozenset({"everywhere", "every_client", "some_clients", "share", "one_more_client"})


@dataclass(frozen=True, kw_only=True)
class MovingRate(Checked):
    """Elastic symmetry from the center's rate (section 5): alpha = beta / C."""

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
