"""EASGD: clients keep their own models, which a spring ties to a center; the center moves by the mean of the clients.

Zhang, Choromanska, LeCun. Deep Learning with Elastic Averaging SGD. NeurIPS 2015. Sections 2 and 3, Eqs. 2, 5, 6,
Algorithm 1 (communication every tau = T local steps). SSFL quotes it in Table 5 from Overlap-Local-SGD's paper, whose
released distoptim/EASGD.py (JYWa/Overlap_Local_SGD) is the same update: z <- (1 - m alpha) z + alpha sum x_i.

After T local steps, with the same old center z in both lines (the Jacobi form of Eqs. 5 and 6):

    x_i <- x_i - alpha (x_i - z)          z <- z + beta (mean_i x_i - z)

Elastic symmetry is beta = p alpha with p the clients of a round; the paper's experiments have beta = 0.9 and alpha =
beta / p (section 5). The spring's constant rho of Eq. 2 is alpha / eta with eta the learning rate.

Departures and choices: those of `elastic`, and
1. Synchronous, as the suite's rounds are; the paper's Algorithm 1 is asynchronous, with Eqs. 5 and 6 its other form.
2. alpha = eta rho takes the eta that is written down beside rho; a schedule that moves the rate leaves alpha alone, as
   the paper's constant rate does.
3. The center is evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.errors import ConfigError
from benchmark.methods.averaging import ema
from benchmark.methods.elastic import ElasticMethod, ElasticUpdate
from benchmark.methods.protocol import Setup, State, Weights, World


@dataclass(frozen=True, kw_only=True)
class MovingRate:
    """Elastic symmetry from the center's rate (section 5): alpha = beta / C."""

    beta: float = 0.9  # beta

    def rates(self, C: int) -> tuple[float, float]:
        """alpha and beta for rounds of C clients."""
        return self.beta / C, self.beta


@dataclass(frozen=True, kw_only=True)
class Spring:
    """Elastic symmetry from the spring of Eq. 2: alpha = eta rho (Eq. 5), beta = C alpha (Eq. 6)."""

    rho: float  # rho
    eta: float  # eta   the learning rate that rho was chosen for

    def rates(self, C: int) -> tuple[float, float]:
        alpha = self.eta * self.rho
        return alpha, C * alpha


@dataclass(frozen=True, kw_only=True)
class Asymmetric:
    """alpha and beta by themselves."""

    alpha: float  # alpha
    beta: float  # beta

    def rates(self, C: int) -> tuple[float, float]:
        return self.alpha, self.beta


@dataclass(frozen=True, kw_only=True)
class EASGD(ElasticMethod):
    """Synchronous elastic averaging."""

    elastic: MovingRate | Spring | Asymmetric = MovingRate()

    def check(self, setup: Setup) -> None:
        super().check(setup)
        alpha, beta = self.elastic.rates(setup.C)
        for name, share in (("alpha", alpha), ("beta", beta)):
            if not 0.0 <= share <= 1.0:
                raise ConfigError(
                    f"method.elastic: {name} = {share:g} with C = {setup.C} is outside [0, 1]; "
                    f"beta = 0.9, alpha = {0.9 / setup.C:g} are the paper's"
                )

    def init(self, setup: Setup) -> State:
        return State(server={"center": setup.initial_weights()})

    def models(self, state: State) -> dict[str, Weights]:
        return {"center": state.server["center"]}

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        center = state.server["center"]
        alpha, beta = self.elastic.rates(world.C)
        update = ElasticUpdate(alpha=alpha, sends="trained", keeps_momentum=self.momentum == "kept")
        mean = self.mean_of_clients(center, world, update)
        moved = center if mean is None else ema(center, mean, 1.0 - beta)
        return State(server={"center": moved}, clients=state.clients), {}
