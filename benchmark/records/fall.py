"""A fall of the accuracy while training: noted in the result, and named on pages."""

from collections.abc import Iterable, Mapping
from typing import Any

FALL = 0.2  # of accuracy (a fraction) below the run's own best before it
AGAINST_A_FALL = (
    "clients may be learning wrong pseudo-labels; what usually helps: a longer warm start "
    "(method.warm_start_rounds), a lower learning rate, smaller batches, more labels"
)


def fall_of(rounds: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The deepest fall of the accuracy below the best before it: its rounds and accuracies; None below `FALL`."""
    best: tuple[float, int] | None = None
    deepest: dict[str, Any] | None = None
    for line in rounds:
        accuracy = line.get("test/accuracy", line.get("validation/accuracy"))
        if accuracy is None:
            continue
        if best is None or accuracy > best[0]:
            best = accuracy, line["round"]
        depth = best[0] - accuracy
        if depth > max(FALL, deepest["depth"] if deepest else 0.0):
            deepest = {"depth": depth, "round": line["round"], "accuracy": accuracy, "from": best[0], "best": best[1]}
    return deepest


def fall_in_words(fall: Mapping[str, Any]) -> str:
    """ "accuracy fell from 91.0 % (round 30) to 44.3 % (round 40)" """
    return (
        f"accuracy fell from {100 * fall['from']:.1f} % (round {fall['best']}) "
        f"to {100 * fall['accuracy']:.1f} % (round {fall['round']})"
    )
