"""EASGD and Overlap-Local-SGD: clients' own models are pulled towards a common one.

After T local steps on its labels a client goes on from its own model; it is never replaced by the common one, z. SSFL
quotes both methods in Table 5 from Overlap-Local-SGD's paper. Released code: JYWa/Overlap_Local_SGD, distoptim/.

Departures: reports/ssfl/departures.md, entry 23. Besides, for both:
1. Both papers have p workers in every round. With C < K a client's model stays while others train, and z moves on.
2. Batch-norm statistics are pulled as weights are; counters of batches are the client's own.
3. Training uses weak views; an incomplete last batch is trained on; labelled images at the server are not used.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.config import Checked, Count, Share, ShareBelow1
from benchmark.methods import protocol as fl
from benchmark.methods.shared import SupervisedUpdate, ema, mean_of, momentum_step, trained_on_labels


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
            for_finish={"common": common},
        )

    def finish(self, local: fl.Local) -> fl.Tree:
        trained = local.trainable["student"]
        pulled = ema(local.for_finish["common"], trained, self.alpha)
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
    """EASGD: clients keep their own models, and a common center is averaged.

    Zhang, Choromanska, LeCun. Deep Learning with Elastic Averaging SGD. NeurIPS 2015. Sections 2 and 3, Eqs. 2, 5, 6,
    Algorithm 1 (communication every tau = T local steps); released: EASGD.py, the same update.

    With the same old center z in both lines (the Jacobi form of Eqs. 5 and 6):

        x_i <- x_i - alpha (x_i - z)          z <- z + beta (mean_i x_i - z)

    Elastic symmetry is beta = p alpha with p the clients of a round; the paper's experiments have beta = 0.9 and alpha
    = beta / p (section 5).

    Departures: it is synchronous, as the suite's rounds are; the paper's Algorithm 1 is asynchronous, with Eqs. 5 and 6
    its other form. alpha is set, not computed from Eq. 2's rho = alpha / eta; a schedule of the rate leaves it alone.
    """

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


@dataclass(frozen=True, kw_only=True)
class OverlapSGD(ElasticMethod):
    """Overlap-Local-SGD: clients are pulled towards an anchor one round old.

    Wang, Liang, Joshi. Overlap Local-SGD: An Algorithmic Approach to Hide Communication Delays in Distributed SGD.
    ICASSP 2020, arXiv:2002.09539. Released: OverlapLocalSGD.py, `average`. "OverlapSGD" of SSFL's Table 5.

    With the anchor z that the models of the round before gave:

        x_i <- x_i - alpha (x_i - z)          v <- beta v + (mean_i x_i - z)          z <- z + v

    The mean is of the pulled models, and is taken while the clients already run their next T steps. beta = 0 is EASGD
    with the rates alpha and 1 - alpha.

    Departures: v is in units of weights. The released code divides by the learning rate when it adds and multiplies by
    it when it moves: the same at a constant rate. The anchor is evaluated, the pulled models' mean plus momentum. The
    released code tests each worker's own model.
    """

    alpha: Share = 0.6  # alpha   pullback (as launched: launch_baseline.sh)
    beta: ShareBelow1 = 0.7  # beta    momentum of the anchor (as launched: gmf); 0: none

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"anchor": setup.initial_weights(), "velocity": None})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {"anchor": state.server["anchor"]}

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        anchor, velocity = state.server["anchor"], state.server["velocity"]
        update = ElasticUpdate(alpha=self.alpha, sends="pulled", keeps_momentum=self.momentum == "kept")
        mean = mean_of(trained_on_labels(update, anchor, world, self.batch_size), otherwise=None)
        anchor, velocity = momentum_step(anchor, mean, velocity, self.beta)
        return fl.State(server={"anchor": anchor, "velocity": velocity}), {}
