"""Overlap-Local-SGD: clients are pulled towards an anchor that was averaged while they trained, one round late.

Wang, Liang, Joshi. Overlap Local-SGD: An Algorithmic Approach to Hide Communication Delays in Distributed SGD. ICASSP
2020, arXiv:2002.09539. Released code: JYWa/Overlap_Local_SGD, distoptim/OverlapLocalSGD.py, `average`. SSFL quotes it
in Table 5 ("OverlapSGD").

After the T local steps of a round, with the anchor z that the models of the round before gave:

    x_i <- x_i - alpha (x_i - z)          v <- beta v + (mean_i x_i - z)          z <- z + v

where the mean is of the pulled models, and is taken while the clients already run their next T steps: nobody waits.
beta = 0 is the version without momentum: then z <- z + (1 - alpha) (mean_i x_i before the pull - z), which is EASGD
with these two rates (a test holds them together). alpha = 1 never leaves the first anchor; alpha = 0 never talks.

Departures and choices: the first three of `easgd`, and
1. v is in units of weights. The released code divides by the learning rate when it adds and multiplies by it when it
   moves: the same at a constant rate.
2. The anchor is evaluated: the mean of the models after the pull, which the paper's virtual sequence follows, plus
   momentum. The released code tests each worker's own model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.methods.averaging import momentum_step
from benchmark.methods.easgd import ElasticMethod, ElasticUpdate
from benchmark.methods.objectives import check_range
from benchmark.methods.protocol import Setup, State, Weights, World


@dataclass(frozen=True, kw_only=True)
class OverlapSGD(ElasticMethod):
    """The anchor model, its pull and its momentum."""

    alpha: float = 0.6  # alpha   pullback (as launched: launch_baseline.sh)
    beta: float = 0.7  # beta    momentum of the anchor (as launched: gmf); 0: none

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha, "[0, 1]", 0.0 <= self.alpha <= 1.0)
        check_range("beta", self.beta, "[0, 1)", 0.0 <= self.beta < 1.0)

    def init(self, setup: Setup) -> State:
        return State(server={"anchor": setup.initial_weights(), "velocity": None})

    def models(self, state: State) -> dict[str, Weights]:
        return {"anchor": state.server["anchor"]}

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        anchor, velocity = state.server["anchor"], state.server["velocity"]
        update = ElasticUpdate(alpha=self.alpha, sends="pulled", keeps_momentum=self.momentum == "kept")
        mean = self.mean_of_clients(update, anchor, world)
        if mean is not None:
            anchor, velocity = momentum_step(anchor, mean, velocity, self.beta)
        return State(server={"anchor": anchor, "velocity": velocity}, clients=state.clients), {}
