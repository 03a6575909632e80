"""Overlap-Local-SGD: clients are pulled towards an anchor model from the previous round.

Wang, Liang, Joshi. Overlap Local-SGD: An Algorithmic Approach to Hide Communication Delays in Distributed SGD. ICASSP
2020, arXiv:2002.09539. Released code: JYWa/Overlap_Local_SGD, distoptim/OverlapLocalSGD.py, `average`. SSFL quotes it
in Table 5 ("OverlapSGD").

After the T local steps of a round, with the anchor z from the models of the previous round:

    x_i <- x_i - alpha (x_i - z)          v <- beta v + (mean_i x_i - z)          z <- z + v

The mean is over the pulled models, and is computed while the clients already run their next T steps. With beta = 0 this
is EASGD with the rates alpha and 1 - alpha.

Deviations: reports/ssfl/departures.md, entry 23, and the first three of `easgd`. In addition:
1. v has the unit of weights. The released code divides by the learning rate when it updates v, and multiplies by it
   when it moves z, which is equal at a constant learning rate.
2. The anchor is evaluated, which is the mean of the pulled models plus momentum. The released code evaluates the model
   of each worker.
"""

from dataclasses import dataclass

from benchmark.config import Share, ShareBelow1
from benchmark.methods import protocol as fl
from benchmark.methods.easgd import ElasticMethod, ElasticUpdate
from benchmark.methods.shared import mean_of, momentum_step, trained_on_labels


@dataclass(frozen=True, kw_only=True)
class OverlapSGD(ElasticMethod):
    """Overlap-Local-SGD: the anchor model, its pull and its momentum."""

    alpha: Share = 0.6  # alpha   pullback (value in launch_baseline.sh)
    beta: ShareBelow1 = 0.7  # beta    momentum of the anchor (gmf in launch_baseline.sh); 0 for none

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"anchor": setup.initial_weights(), "velocity": None})

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {"anchor": state.server["anchor"]}

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        anchor, velocity = state.server["anchor"], state.server["velocity"]
        update = ElasticUpdate(alpha=self.alpha, sends="pulled", keeps_momentum=self.momentum == "kept")
        mean = mean_of(trained_on_labels(update, anchor, world, self.batch_size), otherwise=None)
        anchor, velocity = momentum_step(anchor, mean, velocity, self.beta, world.buffers())
        return fl.State(server={"anchor": anchor, "velocity": velocity}), {}
