"""Whether the numbers support a paper's claims: `holds`, `contradicted`, `no effect of interest` or `undecided`.

Only confirming seeds are judged (looks.py), and all of them. The typical difference is judged by its signed-rank
interval (signed_ranks.py). "improves" and "trend" hold where it lies above zero, "comparable" where it lies within the
margin; an improvement whose interval lies within the margin is no effect of interest, or has "no room" (room.py). Both
verdicts of "no difference" need at least 20 seeds. "every" and "order" hold where each of their contrasts holds, each
at the claim's whole error, and fail where one fails, at its share of the error (intersection-union).

Where more than a tenth of a cell's runs collapsed (collapse.py), the differences are not symmetric, and signed ranks
alone err. There the exact sign test, which needs no symmetry, must give the same verdict at the look's level; else the
claim is undecided. Collapse is counted with every verdict. Only claims about collapse judge it, by the sign test.

The error of a family of claims (families.py) is the probability of any false verdict in it at any look. It is .05 on a
paper's first hundred of seeds and .05 / 2^k on its k-th, so that all later ones together have at most .025. Half of it
is for the few main claims, one after another: each has all of that half once those before it are rejected ("holds" or
"contradicted"). All other claims of the paper share the other half. An item has the shares of its claims, and the share
of a rejected claim goes to the others of the item (Holm). "No effect of interest" rejects no difference, and its share
stays. So no verdict depends on the runs of another item. Means are not judged: where one arm collapses now and then, no
test of a mean holds its level at so few seeds. tests/verdicts/test_error_rate.py simulates the whole rule.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import stdev
from typing import Literal, TypeAlias

from scipy.special import betaincinv

from benchmark.papers.item import CONFIRMING, Claim, ClaimFamily, Item
from benchmark.papers.table import COMPUTED
from benchmark.verdicts.cell_results import Records, cell_result
from benchmark.verdicts.evidence import HIGHER_IS_BETTER, Evidence, evidence
from benchmark.verdicts.families import assignments
from benchmark.verdicts.looks import Detectable, detectable, errors, smallest_look
from benchmark.verdicts.rule import EQUIVALENCE, FAMILY_ERROR, LOOKS, RUNS_FALL
from benchmark.verdicts.signed_ranks import DIGITS, Interval, Intervals, Signs, both_tests, interval, signs_of, typical
from benchmark.verdicts.statistics import contrast, in_unit

Verdict: TypeAlias = Literal[
    "holds", "contradicted", "no effect of interest", "no room", "undecided", "not judged yet", "not run"
]
REJECTIONS = ("holds", "contradicted")  # their share of the error goes to other claims
DECIDED = (*REJECTIONS, "no effect of interest")


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The typical difference over n seeds, in the metric's unit."""

    value: float
    n: int
    interval: Interval | None = None  # None: not judged, or too few seeds at the claim's error
    is_range: bool = False  # the interval ends at the least and the largest difference


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what the records say of it; of several contrasts, the estimates are of the smallest."""

    claim: Claim
    verdict: Verdict
    reason: str
    # Over the last look's seeds; before the first look over all confirming seeds, or over pilots. None: no seed has all
    # of the claim's cells.
    seen: Estimate | None = None
    over_all: Estimate | None = None  # over all confirming seeds, where they are more than the look's
    pilots: Estimate | None = None  # shown with confirming seeds; never judged
    level: float = 1 - FAMILY_ERROR  # of the intervals
    error: float = FAMILY_ERROR  # of all its looks together
    diverged: tuple[str, ...] = ()  # runs of the claim's cells: "fedavg/C=47 seed 1"
    looks: int = 0  # at which it was judged so far
    collapsed: Mapping[str, int] = field(default_factory=dict)  # cell -> how many of its n runs collapsed
    runs_fall: bool = False  # so many runs of a cell collapsed that the sign test had to agree
    waits_for: str = ""  # an open main claim before it; this one is undecided until that is decided
    could_decide: int = 0  # seeds of the next look that can decide; 0: it is decided, or none can
    evidence: Evidence | None = field(default=None, repr=False)  # seed by seed
    judged_in: str = ""  # "ssfl/tab2: Grouping wins": where the same contrast is judged; empty: here
    gaps: Mapping[int, str] = field(default_factory=dict)  # confirmatory seeds that can never count -> why, in words
    caveats: tuple[str, ...] = ()  # what findings and pages print beside the verdict, a phrase each
    signs: Signs | None = None  # the exact sign test of the differences of `seen`
    room: float | None = None  # what the cells leave above them, in the metric's unit (room.py); None: no accuracy
    no_room: bool = False  # the room is less than four margins
    detectable: Detectable | None = None  # of an open claim

    @property
    def estimate(self) -> float | None:
        return self.seen.value if self.seen else None

    @property
    def interval(self) -> Interval | None:
        return self.seen.interval if self.seen else None

    @property
    def n(self) -> int:
        return self.seen.n if self.seen else 0

    @property
    def is_decided(self) -> bool:
        return self.verdict in DECIDED


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a look says of one contrast, or what the looks so far say of a claim."""

    verdict: Verdict = "undecided"  # of a contrast: of the claim by it alone, at its share of the error
    why: str
    interval: Interval | None = None
    level: float = 1 - FAMILY_ERROR
    # Of a contrast:
    above: bool = False  # whether it is above zero, at the claim's error
    typical: float = 0.0
    # Of a claim:
    looks: int = 0  # the number of the look that decided; undecided: of the last look
    contrast: int = 0  # the one that is shown
    waits_for: str = ""


def judge(item: Item, records: Records) -> list[Judged]:
    """Every claim of the item, in the item's order. Raises KeyError for a claim on a label the item does not have."""
    judged: dict[int, Judged] = {}
    families: dict[tuple[int, ClaimFamily], dict[int, Evidence]] = {}
    for number, assigned in enumerate(assignments(item, records)):
        claim, judged_in = assigned.claim, assigned.judged_in
        seen = evidence(item, records, assigned)
        if judged_in:
            reason = f"the same contrast is judged in {judged_in}"
            judged[number] = Judged(
                claim=claim, verdict="not judged yet", reason=reason, evidence=seen, judged_in=judged_in
            )
        elif claim.endpoint == "arithmetic":
            judged[number] = replace(_counted(item, records, claim), evidence=seen)
        else:
            families.setdefault((seen.hundred, seen.family), {})[number] = seen
    for (hundred, family), members in families.items():
        decisions = decide(list(members.values()), family, hundred)
        for (number, seen), (decision, error) in zip(members.items(), decisions, strict=True):
            judged[number] = _judged(seen, decision, error)
    return [judged[number] for number in sorted(judged)]


def family_error(hundred: int) -> float:
    """The error of the claims on a paper's k-th hundred of confirming seeds, k = 1, 2, ..."""
    return FAMILY_ERROR if hundred == 1 else FAMILY_ERROR / 2**hundred


def decide(claims: Sequence[Evidence], family: ClaimFamily, hundred: int = 1) -> list[tuple[Reading, float]]:
    """For each of an item's claims in a family: what its looks say, and the error at which they judged it."""
    error = family_error(hundred)
    half = error / 2 if family.main and family.others else error
    main = {claim.hash: claim for claim in claims if claim.hash in family.main}
    others = [claim for claim in claims if claim.hash not in main]
    share = half * min(1.0, len(others) / max(1, len(family.others)))
    decisions = _main_in_order(main, family.main, half)
    decisions |= dict(zip((claim.hash for claim in others), _holm(others, share), strict=True))
    return [decisions[claim.hash] for claim in claims]


def _main_in_order(
    claims: Mapping[str, Evidence], order: Sequence[str], error: float
) -> dict[str, tuple[Reading, float]]:
    """Main claims one after another at the same error; none after the first without a rejection is decided."""
    decisions: dict[str, tuple[Reading, float]] = {}
    waits_for = ""
    for name in order:
        decision = looked_at(claims[name], error) if name in claims else None
        if decision is not None:
            if waits_for:
                why = f"waits for {waits_for}, a main claim before it"
                decision = replace(decision, verdict="undecided", why=why, waits_for=waits_for)
            decisions[name] = decision, error
        if not waits_for and (decision is None or decision.verdict not in REJECTIONS):
            waits_for = repr(claims[name].claim.name) if name in claims else "one that was reworded"
    return decisions


def _holm(claims: Sequence[Evidence], error: float) -> list[tuple[Reading, float]]:
    """Claims at equal shares of the error; the share of a rejected claim goes to the others."""
    decided: dict[int, tuple[Reading, float]] = {}
    while True:
        rejected = sum(decision.verdict in REJECTIONS for decision, _ in decided.values())
        each = error / max(1, len(claims) - rejected)
        judged = {n: (looked_at(claim, each), each) for n, claim in enumerate(claims) if n not in decided}
        new = {n: pair for n, pair in judged.items() if pair[0].verdict != "undecided"}
        decided |= new
        if not any(decision.verdict in REJECTIONS for decision, _ in new.values()):
            return [(judged | decided)[n] for n in range(len(claims))]


def looked_at(seen: Evidence, error: float) -> Reading:
    """The verdict of the first look that decides; all looks together err no more than `error`."""
    seeds, many = seen.confirming, range(len(seen.differences))
    passed: set[int] = set()
    decision = Reading(why=f"{len(seeds)} seeds of at least {LOOKS[0]}")
    for look, n in enumerate(LOOKS):
        if n > len(seeds):
            break
        whole, share = errors(error)[look], errors(error / len(many))[look]
        readings = [_reading(seen, contrast, seeds[:n], whole, share) for contrast in many]
        passed |= {contrast for contrast, reading in enumerate(readings) if reading.above}
        decision = _together(readings, passed, look)
        if decision.verdict != "undecided":
            break
    return decision


def _reading(seen: Evidence, contrast: int, seeds: Sequence[int], whole: float, share: float) -> Reading:
    """Signed ranks, and the sign test where runs collapsed; for claims about collapse the sign test alone."""
    tested = both_tests(seen.differences_at(seeds, contrast), whole, share)
    if seen.claim.endpoint == "collapse":
        return replace(_sign_reading(tested.signs, whole, share), typical=tested.typical)
    n = len(seeds)
    ranks = replace(_interval_reading(seen, tested.ranks, n, whole, share), typical=tested.typical)
    if not runs_fall(seen, contrast, seeds):
        return ranks
    signs = _interval_reading(seen, tested.medians, n, whole, share)
    fallen = _shares(seen.collapsed_at(seeds, contrast), n)
    if (signs.verdict, signs.above) == (ranks.verdict, ranks.above):
        agrees = ", and the sign test agrees" if ranks.above or ranks.verdict != "undecided" else ""
        return replace(ranks, why=f"{ranks.why}; runs fall ({fallen}){agrees}")
    return replace(ranks, above=False, verdict="undecided", why=f"runs fall ({fallen}), and the sign test disagrees")


def runs_fall(seen: Evidence, contrast: int, seeds: Sequence[int]) -> bool:
    """Whether so many of a cell's runs collapsed that signed ranks alone do not judge."""
    return max(seen.collapsed_at(seeds, contrast).values(), default=0) > RUNS_FALL * len(seeds)


def _together(readings: Sequence[Reading], passed: Collection[int], look: int) -> Reading:
    """What the contrasts say of the claim. `passed`: those that were above zero at this look or before.

    Of several that decide, one that contradicts goes before one without an effect of interest, and of equals the
    smallest difference is shown. So the order of the contrasts in the file decides nothing: a claim of several
    contrasts is false if one of them is, however small the others are.
    """
    against = [contrast for contrast, reading in enumerate(readings) if reading.verdict == "contradicted"]
    deciding = against or [contrast for contrast, reading in enumerate(readings) if reading.verdict != "undecided"]
    waiting = [contrast for contrast in range(len(readings)) if contrast not in passed]
    shown = min(deciding or waiting or range(len(readings)), key=lambda contrast: readings[contrast].typical)
    verdict = readings[shown].verdict if deciding or waiting else "holds"
    return replace(readings[shown], verdict=verdict, looks=look + 1, contrast=shown)


def _interval_reading(seen: Evidence, intervals: Intervals, n: int, whole: float, share: float) -> Reading:
    """What one test's intervals of n differences say, at the whole error and at the contrast's share of it."""
    claim, margin = seen.claim, in_unit(seen.claim.metric, seen.claim.least)
    wide, apart = intervals
    if wide is None:
        return Reading(why=f"{n} seeds are too few for an interval at this claim's error", level=1 - whole)
    reading = Reading(why="", interval=wide, level=1 - whole)
    if claim.form == "comparable":
        verdict, why = _alike(wide, claim.least, margin, n, seen.below)
        return replace(reading, verdict=verdict, why=why)
    low, high = apart or (float("-inf"), float("inf"))
    inside = -claim.least < low and high < claim.least
    decided = replace(reading, interval=apart, level=1 - share)
    if inside and n >= EQUIVALENCE:
        return replace(decided, verdict="no effect of interest", why=f"the interval lies within +-{margin}")
    if high < 0 and not inside:
        return replace(decided, verdict="contradicted", why="the interval lies below zero")
    if wide[0] > 0 and wide[1] >= claim.least:
        return replace(reading, above=True, why="the interval lies above zero")
    if inside:
        return replace(reading, why=f"any difference is below {margin}, by {n} seeds of at least {EQUIVALENCE}")
    return replace(reading, why="the interval includes zero" if wide[0] <= 0 else f"any gain is below {margin}")


def _alike(within: Interval, least: float, margin: str, n: int, below: Sequence[str]) -> tuple[Verdict, str]:
    low, high = within
    if low > least or high < -least:
        return "contradicted", f"the interval lies outside +-{margin}"
    if not (-least < low and high < least):
        return "undecided", f"the interval reaches across the margin of +-{margin}"
    if below:
        return "undecided", "cells below labels alone are not called alike"
    if n < EQUIVALENCE:
        return "undecided", f"the interval lies within +-{margin}, by {n} seeds of at least {EQUIVALENCE}"
    return "holds", f"the interval lies within +-{margin}"


def _sign_reading(signs: Signs, whole: float, share: float) -> Reading:
    """Read the sign test of the seeds at which one side of the contrast collapsed and the other did not."""
    why = f"{signs.better} seeds for and {signs.worse} against, sign test p = {signs.p:.2g}"
    if signs.worse > signs.better and signs.p <= share:
        return Reading(verdict="contradicted", why=why)
    return Reading(above=signs.better > signs.worse and signs.p <= whole, why=why)


@cache
def share_text(count: int, n: int) -> str:
    """A share with the interval of Clopper and Pearson: "3 of 16, 4 to 46 %"."""
    low = betaincinv(count, n - count + 1, FAMILY_ERROR / 2) if count else 0.0
    high = betaincinv(count + 1, n - count, 1 - FAMILY_ERROR / 2) if count < n else 1.0
    return f"{count} of {n}, {100 * low:.0f} to {100 * high:.0f} %"


def _shares(fallen: Mapping[str, int], n: int) -> str:
    """The cells with collapsed runs: "SemiFL/K=2: 3 of 16, 4 to 46 %"."""
    return ", ".join(f"{label}: {share_text(count, n)}" for label, count in fallen.items() if count)


def _counted(item: Item, records: Records, claim: Claim) -> Judged:
    """A claim on what is computed, or is the same in every run: exact, by one value a cell.

    The networks of reduced profiles have other sizes than the paper's, so their sizes judge nothing.
    """
    if item.profile != "paper" and claim.metric in COMPUTED:
        return Judged(claim=claim, verdict="not judged yet", reason="counted at profile paper, on the paper's networks")
    values: dict[str, dict[int, float]] = {}
    for cell in item.cells:
        value = cell.computed.get(claim.metric)
        if value is None:
            value = next(iter(cell_result(cell, records, item.seeds, claim.metric).values.values()), None)
        if value is not None and not isinstance(value, str):
            values[cell.label] = {0: float(value)}
    absent = [label for label in claim.labels if label not in values]
    if absent:
        return Judged(claim=claim, verdict="not judged yet", reason=f"nothing is counted yet for {absent[0]}")
    least = min(contrast(coefficients, values)[0] for coefficients in claim.contrasts)
    if claim.form == "comparable":
        holds = abs(least) <= claim.least
        counted = "within +-" if holds else "outside +-"
    else:
        holds = least >= claim.least
        counted = "at least " if holds else "less than "
    return Judged(
        claim=claim,
        verdict="holds" if holds else "contradicted",
        reason=f"counted, {counted}{in_unit(claim.metric, claim.least)}",
        seen=Estimate(value=least, n=1),
        level=1.0,
    )


def _judged(seen: Evidence, decision: Reading, error: float) -> Judged:
    """The decision with its estimates, and what a reader has to know before it."""
    if seen.confirming:
        judged = _judged_at_looks(seen, decision)
    elif seen.pilots:
        shown = min((seen.differences_at(seen.pilots, n) for n in range(len(seen.differences))), key=typical)
        reason = f"pilot seeds only: not judged (seeds from {CONFIRMING.start} confirm)"
        judged = Judged(
            claim=seen.claim, verdict="not judged yet", reason=reason, seen=_estimate(shown), signs=_signs(shown)
        )
    else:
        judged = Judged(claim=seen.claim, verdict="not run", reason="no seed has all the cells of this claim yet")
    verdict = without_room(judged.verdict, seen.claim) if seen.lacks_room else judged.verdict
    caveats = (*seen.caveats, seen.lacks_room) if seen.lacks_room else seen.caveats
    judged = replace(
        judged,
        verdict=verdict,
        reason="; ".join((*caveats, judged.reason)) + _diverged_in_words(seen),
        diverged=seen.diverged,
        error=error,
        evidence=seen,
        gaps=seen.gaps,
        caveats=caveats,
        room=seen.room,
        no_room=bool(seen.lacks_room),
    )
    if judged.is_decided or verdict == "no room":
        return judged
    return _open(judged, seen)


def without_room(verdict: Verdict, claim: Claim) -> Verdict:
    """The verdict on a claim whose cells leave less than four margins of room.

    An improvement that did not come has "no room": to call it absent would reproach the method for the setting. What
    was found in spite of the setting stays, "holds" as well as "contradicted", and so does all that is said of
    "comparable" cells: each of them could have fallen, for which there was room.
    """
    absent = verdict in ("no effect of interest", "undecided")
    return "no room" if absent and claim.form != "comparable" else verdict


def _diverged_in_words(seen: Evidence) -> str:
    if not seen.diverged:
        return ""
    counts = "counted as accuracy 0" if seen.claim.metric in HIGHER_IS_BETTER else "left out"
    return f"; diverged and {counts}: {', '.join(seen.diverged)}"


def _open(judged: Judged, seen: Evidence) -> Judged:
    """Add what further seeds can find of a claim that is not decided; nothing if no interim analysis can decide.

    The smallest detectable difference needs three seeds, exploratory ones too; of several contrasts the spread is the
    largest.
    """
    look, seeds = next_look(judged, seen.reachable), [*seen.pilots, *seen.confirming]
    if not look or len(seeds) < 3:
        return replace(judged, could_decide=look)
    spread = max(stdev(seen.differences_at(seeds, n)) for n in range(len(seen.differences)))
    smallest = detectable(spread, len(seeds), judged.error, seen.reachable)
    return replace(judged, could_decide=look, detectable=smallest)


def next_look(judged: Judged, reachable: int) -> int:
    """Seeds of the smallest interim analysis that can decide an open claim; 0 if none can.

    `reachable`: how many seeds can be judged at most (`Evidence.reachable`, or `reachable_on` a kind of device).
    """
    alike = judged.claim.form == "comparable"
    return smallest_look(judged.error, judged.looks, alike=alike, reachable=reachable)


def _judged_at_looks(seen: Evidence, decision: Reading) -> Judged:
    every = seen.confirming
    seeds = every[: LOOKS[decision.looks - 1]] if decision.looks else every
    at_look = _estimate(seen.differences_at(seeds, decision.contrast), decision.interval)
    reason = decision.why
    if decision.verdict == "undecided":
        if decision.looks:
            more = decision.looks < len(LOOKS)
            reason += f"; the next look is at {LOOKS[decision.looks]} seeds" if more else "; this was the last look"
    else:
        if decision.verdict == "holds" and seen.claim.form != "comparable" and at_look.value < seen.claim.least:
            margin = in_unit(seen.claim.metric, seen.claim.least)
            reason += f", though it is typically below the least difference of interest ({margin})"
        reason += f"; reached at look {decision.looks} of {len(LOOKS)}, at {len(seeds)} seeds"
    beyond = seen.differences_at(every, decision.contrast) if len(every) > len(seeds) else []
    pilots = seen.differences_at(seen.pilots, decision.contrast)
    return Judged(
        claim=seen.claim,
        verdict=decision.verdict,
        reason=reason,
        seen=at_look,
        over_all=_estimate(beyond, interval(beyond, 1 - decision.level)) if beyond else None,
        pilots=_estimate(pilots) if pilots else None,
        level=decision.level,
        looks=decision.looks,
        collapsed=seen.collapsed_at(seeds, decision.contrast),
        runs_fall=runs_fall(seen, decision.contrast, seeds),
        waits_for=decision.waits_for,
        signs=_signs(seen.differences_at(seeds, decision.contrast)),
    )


def _signs(differences: Sequence[float]) -> Signs:
    """The sign test of the differences that a reader sees: one that is 0 but for rounding has no sign."""
    return signs_of([round(difference, DIGITS) for difference in differences])


def _estimate(differences: Sequence[float], within: Interval | None = None) -> Estimate:
    is_range = within == (round(min(differences), DIGITS), round(max(differences), DIGITS))
    return Estimate(value=typical(differences), n=len(differences), interval=within, is_range=is_range)
