"""The "batch non-i.i.d." clients of FedMatch (Jeong et al. 2021), which FedSwitch's labelled settings use, too.

Source: data/generator.py, `split_u` (the table `ten_types_of_class_imbalanced_dist`): ten types of clients, client k of
type k mod 10, each with one main class (0.50), two neighbours (0.15 each), six others (0.03 each) and one rare (0.02).

Departures from the released code: it draws each client's class counts from its type's probabilities and hands images
out client by client from the front of each class, so that late clients find a class short or empty, and what is left
over goes to nobody. Here class j is shared in proportion to p_kj / sum_k p_kj, rounded: every image has one holder.
With K a multiple of ten and equal classes that is each client's N/K images in its type's proportions.

Shapes: K clients, d = 10 classes; `n_d` counts the images left in each class.
"""

from dataclasses import dataclass
from fractions import Fraction

from benchmark.data.tables import IntArray, Shares, round_table
from benchmark.errors import ConfigError

# Of type 0, in hundredths; type t is this moved t places to the right.
PERCENT_10 = (50, 15, 3, 3, 3, 2, 3, 3, 3, 15)


@dataclass(frozen=True, kw_only=True)
class FedMatchSkew:
    """Ten types of clients around ten main classes."""

    @property
    def R_nominal(self) -> float | None:
        return None

    def shares(self, n_d: IntArray, K: int, seed: int) -> Shares:
        """Counts for K clients; draws nothing. Raises ConfigError unless there are ten classes."""
        d = len(PERCENT_10)
        if len(n_d) != d:
            raise ConfigError(
                f"partition: FedMatchSkew is made for {d} classes, not {len(n_d)}: take ClassSkew(R=0.58)"
            )
        weights_Kd = [[PERCENT_10[(label - client) % d] for label in range(d)] for client in range(K)]
        sums_d = [sum(column) for column in zip(*weights_Kd, strict=True)]
        exact_Kd = [
            [Fraction(int(n) * weight, total) for n, weight, total in zip(n_d, weights, sums_d, strict=True)]
            for weights in weights_Kd
        ]
        return Shares(round_table(exact_Kd), 0)
