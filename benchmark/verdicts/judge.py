"""Whether the numbers bear a paper's claims out: `holds`, `contradicted` or `undecided`, with the reason in words.

Judged are claims of the forms improves, comparable and trend about the last round. Any other claim is `not judged yet`:
its rule is not built.

The rule is fixed before a run (benchmark/papers/item.py). Intervals are t intervals of the claim's contrast, paired by
seed, at level 1 - 0.05 / m for the m claims of an item (Bonferroni: the chance of any false verdict in the item stays
below 5 %, whatever the claims have to do with each other). The level counts all claims, also those that are not yet run
or not judged: a rule that is added later makes no interval wider.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmark.papers.item import Claim, Item
from benchmark.verdicts.results import Records, cell_result
from benchmark.verdicts.statistics import Summary, contrast, seeds_for, summary
from benchmark.verdicts.units import in_unit

Verdict: TypeAlias = Literal["holds", "contradicted", "undecided", "not judged yet"]
FORMS = ("improves", "comparable", "trend")
FAMILY_ERROR = 0.05
HIGHER_IS_BETTER = ("test/accuracy", "test/auroc", "test/precision", "test/recall", "pseudo/accuracy")
LOWER_IS_BETTER = ("test/loss",)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what the records say of it. `estimate` and `interval` are in the metric's unit."""

    claim: Claim
    verdict: Verdict
    estimate: float | None  # None: no seed has all cells of the claim
    interval: tuple[float, float] | None  # None: fewer than two such seeds, or all of them the same
    n: int  # seeds that have all cells of the claim
    level: float  # of the interval, after correction
    reason: str
    seeds_needed: int | None  # seeds that would decide it if the spread stayed as seen; None: decided or unknown
    diverged: tuple[str, ...]  # "fedavg/C=47 seed 1": runs the claim needs and that diverged


def judge(item: Item, records: Records) -> list[Judged]:
    """Every claim of the item, in the item's order. Raises KeyError for a claim on a label the item does not have."""
    level = 1 - FAMILY_ERROR / max(1, len(item.claims))
    return [
        _judge_one(item, records, claim, level) if is_judged(claim) else _not_judged(claim, level)
        for claim in item.claims
    ]


def is_judged(claim: Claim) -> bool:
    """Whether there is a rule for it."""
    return claim.form in FORMS and claim.endpoint == "last" and bool(claim.contrast)


def _not_judged(claim: Claim, level: float) -> Judged:
    what = f"the form {claim.form!r}" if claim.form not in FORMS else f"the endpoint {claim.endpoint!r}"
    return Judged(
        claim=claim,
        verdict="not judged yet",
        estimate=None,
        interval=None,
        n=0,
        level=level,
        reason=f"{what} has no rule yet",
        seeds_needed=None,
        diverged=(),
    )


def _judge_one(item: Item, records: Records, claim: Claim, level: float) -> Judged:
    results = {label: cell_result(item.cell(label), records, item.seeds, claim.metric) for label in claim.contrast}
    diverged = tuple(f"{label} seed {seed}" for label, result in results.items() for seed in result.diverged)
    values = contrast(claim.contrast, {label: result.values for label, result in results.items()})
    seen = summary(values.values(), level) if values else None
    verdict, reason = _verdict(claim, seen)
    needed = _seeds_needed(claim, seen) if verdict == "undecided" else None
    if diverged:
        hidden = _flattered_by_divergence(claim, [label for label, result in results.items() if result.diverged])
        if verdict in hidden:
            reason = f"would be '{verdict}' without the diverged runs, but leaving those out favours that"
            verdict, needed = "undecided", None
        reason += f"; diverged and left out: {', '.join(diverged)}"
    return Judged(
        claim=claim,
        verdict=verdict,
        estimate=seen.mean if seen else None,
        interval=seen.interval if seen and _knows_spread(claim, seen) else None,
        n=seen.n if seen else 0,
        level=level,
        reason=reason,
        seeds_needed=needed,
        diverged=diverged,
    )


def _verdict(claim: Claim, seen: Summary | None) -> tuple[Verdict, str]:
    if seen is None:
        return "undecided", "no seed has all the cells of this claim yet"
    if seen.interval is None:
        return "undecided", "one seed: no interval"
    if not _knows_spread(claim, seen):
        return "undecided", f"the {seen.n} seeds agree to the last digit, so their spread is unknown"
    rule = _within if claim.form == "comparable" else _beyond
    return rule(claim, seen.mean, *seen.interval)


def _knows_spread(claim: Claim, seen: Summary) -> bool:
    """Seeds that all agree leave the spread of a measurement unknown. What is counted (bytes) does agree, exactly."""
    return seen.has_spread or claim.metric.startswith("comm/")


def _beyond(claim: Claim, estimate: float, low: float, high: float) -> tuple[Verdict, str]:
    margin = in_unit(claim.metric, claim.least)
    if low > 0:
        small = f", though below the least difference of interest ({margin})" if estimate < claim.least else ""
        return "holds", f"the interval lies above zero{small}"
    if high < 0:
        return "contradicted", "the interval lies below zero"
    if high < claim.least and low > -claim.least:
        return "undecided", f"the interval holds zero; any difference is below the least of interest ({margin})"
    return "undecided", "the interval holds zero"


def _within(claim: Claim, estimate: float, low: float, high: float) -> tuple[Verdict, str]:
    margin = in_unit(claim.metric, claim.least)
    if -claim.least < low and high < claim.least:
        return "holds", f"the interval lies within +-{margin}"
    if low > claim.least or high < -claim.least:
        return "contradicted", f"the interval lies outside +-{margin}"
    return "undecided", f"the interval reaches across the margin of +-{margin}"


def _seeds_needed(claim: Claim, seen: Summary | None) -> int | None:
    """Seeds after which the interval would decide, were estimate and spread to stay as seen. For "improves" an estimate
    near zero asks for no more than telling zero from the least difference of interest."""
    if seen is None or seen.n < 3 or seen.std is None or not seen.has_spread:
        return None
    beyond = max(abs(seen.mean), claim.least)
    target = abs(claim.least - abs(seen.mean)) if claim.form == "comparable" else beyond
    return seeds_for(target, seen.std, seen.level)


def _flattered_by_divergence(claim: Claim, diverged: list[str]) -> set[Verdict]:
    """The verdicts that leaving out the diverged runs makes more likely. A diverged run is worse than any that ended:
    in a cell with a positive coefficient it would have pulled an accuracy contrast down."""
    if claim.form == "comparable" or claim.metric not in HIGHER_IS_BETTER + LOWER_IS_BETTER:
        return {"holds", "contradicted"}
    sign = 1 if claim.metric in HIGHER_IS_BETTER else -1
    return {"holds" if sign * claim.contrast[label] > 0 else "contradicted" for label in diverged}
