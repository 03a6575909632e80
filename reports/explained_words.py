"""Sentences on what explains SSFL's results, made from the numbers: no more certain than their intervals."""

from collections.abc import Sequence

from benchmark.verdicts.statistics import summary
from reports.association import Association, ratio_interval
from reports.explained import Explained, Gain, Twin
from reports.words import points, points_interval

NAMES = {
    "diversity/delta/l2/squared/clients": "diversity of the local updates",
    "diversity/gradient/l2/squared/clients": "diversity of exact gradients",
}
STRONG = 0.3  # an interval within +-this leaves room for a weak association only


def coefficient(found: Association) -> str:
    """ "-0.41 [-0.63, -0.12]", with what is missing said."""
    if found.estimate is None:
        return "not defined"
    if found.interval is None:
        return f"{found.estimate:+.2f} (no interval)"
    low, high = found.interval
    return f"{found.estimate:+.2f} [{low:+.2f}, {high:+.2f}]"


def on_diversity(found: Explained) -> str:
    """What the partial correlation says, for people who will quote it."""
    name, held = NAMES[found.measure], found.held
    if not held.n:
        return f"No cell has measured the {name} yet."
    over = f"over {_count(held.n, 'cell')} in {_count(held.clusters, 'setting')}"
    if held.estimate is None:
        return f"Whether the {name} goes with accuracy cannot be said {over}: one of them does not vary."
    numbers = f"the rank correlation of the {name} with accuracy is {held.estimate:+.2f}"
    if held.interval is None:
        return f"With the server's weight held fixed, {numbers} {over}: too few settings to say more."
    low, high = held.interval
    told = f"With the server's weight held fixed, {numbers} (95 % interval {low:+.2f} to {high:+.2f}, {over})"
    if high < 0:
        return (
            f"{told}: cells of larger diversity tend to have a lower accuracy, as the paper's explanation would have"
            " it. That is an association over these settings, and no proof of a cause."
        )
    if low > 0:
        return (
            f"{told}: cells of larger diversity tend to have a higher accuracy, the opposite of what the paper's"
            " explanation would have. That is an association over these settings, and no proof of a cause."
        )
    if low > -STRONG and high < STRONG:
        return f"{told}: at most a weak association, in either direction."
    return (
        f"{told}: these records do not show that diversity predicts accuracy once the server's weight is fixed, nor"
        " that it does not; the interval allows for both."
    )


def on_gain(gains: Sequence[Gain]) -> str:
    """How much of grouping's gain the control has, over settings of equal weight in the mean."""
    if not gains:
        return "No setting has finished runs of FedAvg, the control and grouping yet."
    whole = summary(gain.whole.mean for gain in gains)
    part, rest = summary(gain.by_weight.mean for gain in gains), summary(gain.rest.mean for gain in gains)
    over = f"over {_count(len(gains), 'setting')}"
    told = (
        f"In the mean {over}, grouping gains {points(whole.mean)} points on FedAvg{_interval(whole.interval)}; FedAvg "
        f"with the server's weight of a group gains {points(part.mean)}{_interval(part.interval)}; what is left to "
        f"grouping itself is {points(rest.mean)}{_interval(rest.interval)}."
    )
    share = ratio_interval([gain.by_weight.mean for gain in gains], [gain.whole.mean for gain in gains])
    if share is None or whole.mean <= 0:
        return f"{told} The gain is not told from zero over settings, so that no share of it is given."
    value, (low, high) = share
    percent = f"{100 * value:.0f} % of the gain (95 % interval {100 * low:.0f} to {100 * high:.0f} %)"
    return f"{told} The server's weight alone gives {percent}."


def on_twins(found: Sequence[Twin]) -> str:
    """Grouping against its control: the server's weight is the same to the last digit, and all else but the groups."""
    if not found:
        return "No setting has grouping and its control measured yet."
    lower = sum(twin.diversity < 0 for twin in found)
    better = sum(twin.accuracy > 0 for twin in found)
    both = sum(twin.diversity < 0 and twin.accuracy > 0 for twin in found)
    return (
        f"Grouping and its control share the server's weight exactly. In {_count(len(found), 'such pair')} grouping "
        f"has the lower diversity of local updates in {lower}, the higher accuracy in {better}, and both in {both}."
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" {points_interval(interval)}"
