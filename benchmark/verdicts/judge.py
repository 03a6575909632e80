"""Judge a paper's claims: `holds`, `contradicted`, `no effect of interest`, `no room` or `undecided`.

**Test.** All confirmatory seeds up to an interim analysis ("look", looks.py) are judged, and no
others. The test is the signed-rank interval of the typical difference (signed_ranks.py). "improves"
and "trend" hold if the interval is above zero, and "comparable" holds if it is within the margin.
If the interval of an improvement is within the margin, there is no effect of interest, or no room
for one (room.py). Both verdicts of equivalence need at least 20 seeds. "every" and "order" hold if
each of their contrasts is above zero, each tested at the claim's whole error, and are contradicted
if one contrast is, at its share of the error (intersection-union test).

**Collapse.** If more than a tenth of a cell's runs collapsed (collapse.py), the differences are not
symmetric, and the signed-rank test alone has too many errors. Then the exact sign test, which needs
no symmetry, must give the same verdict at the look's level; if not, the claim is undecided. Every
verdict shows the number of collapsed runs. Only claims about collapse test it, with the sign test.

**Error.** The error rate of a family of claims (families.py) is the probability of any false
verdict in it, at any look. It is .05 on a paper's first seed block and .05 / 2^k on block k for k
>= 2, so that all later blocks together have at most .025. Half of it is for the few primary claims
in a fixed order: each one has the whole half once all claims before it are rejected ("holds" or
"contradicted"). All other claims of the paper share the other half equally. If a family has only
one of these two kinds of claims, that kind has the whole error. The shares of an item's claims stay
within the item: if a claim is rejected, its share goes to the item's other claims (Holm). "No
effect of interest" does not reject the hypothesis of no difference, so that its share is not passed
on. No verdict therefore depends on the runs of a different item.

Example: a family on the first block has two primary claims and ten others, five of them in item X.
The first primary claim is tested at .025, and so is the second one if the first is rejected. Each
other claim begins with .0025. If one claim of X holds, the remaining four of X are tested at .0125
/ 4 = .0031.

Means are not tested: if one arm sometimes collapses, no test of a mean keeps its level with so few
seeds. tests/verdicts/test_error_rate.py simulates the whole rule.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import stdev
from typing import Literal, TypeAlias

from scipy.special import betaincinv

from benchmark.papers.computed import COMPUTED
from benchmark.papers.item import CONFIRMING, Claim, ClaimFamily, Item
from benchmark.verdicts.cell_results import Records, cell_result
from benchmark.verdicts.evidence import Evidence, gather_evidence, has_worst_value
from benchmark.verdicts.families import SeedBlock, assignments
from benchmark.verdicts.looks import Detectable, detectable, errors, smallest_look
from benchmark.verdicts.rule import EQUIVALENCE, FAMILY_ERROR, LOOKS, RUNS_FALL
from benchmark.verdicts.signed_ranks import DIGITS, Interval, Intervals, Signs, both_tests, interval, signs_of, typical
from benchmark.verdicts.statistics import contrast, in_unit

Verdict: TypeAlias = Literal[
    "holds", "contradicted", "no effect of interest", "no room", "undecided", "not judged yet", "not run"
]
REJECTIONS = ("holds", "contradicted")  # their share of the error goes to other claims
DECIDED = (*REJECTIONS, "no effect of interest")
JUDGED = (*DECIDED, "no room", "undecided")  # verdicts over confirmatory seeds


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The Hodges-Lehmann estimate over n seeds, in the metric's unit."""

    value: float
    n: int
    interval: Interval | None = None  # None if it is not judged, or has too few seeds for the claim's error
    is_range: bool = False  # whether the interval ends at the smallest and the largest difference


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and its verdict. If it has several contrasts, the estimates belong to the smallest one."""

    claim: Claim
    verdict: Verdict
    reason: str
    # Over the seeds of the last look. Before the first look, over all confirmatory seeds, or over exploratory seeds if
    # there are none. None if no seed has all cells of the claim.
    at_look: Estimate | None = None
    over_all: Estimate | None = None  # over all confirmatory seeds, if there are more than at the look
    pilots: Estimate | None = None  # over exploratory seeds, shown next to confirmatory ones; never judged
    level: float = 1 - FAMILY_ERROR  # of the intervals
    error: float = FAMILY_ERROR  # of all its looks together
    diverged: tuple[str, ...] = ()  # runs of the claim's cells: "fedavg/C=47 seed 1"
    looks: int = 0  # number of looks so far, up to the one that decided
    collapsed: Mapping[str, int] = field(default_factory=dict)  # cell -> how many of its n runs collapsed
    runs_fall: bool = False  # whether the sign test had to agree because many runs of a cell collapsed
    waits_for: str = ""  # a primary claim before it, which is not rejected and must be decided first
    blocked: bool = False  # whether that claim can no longer be rejected, so that no more seeds can decide this one
    could_decide: int = 0  # seeds of the next look that can decide, or 0 if it is decided or no look can decide
    evidence: Evidence | None = field(default=None, repr=False)  # seed by seed
    # "ssfl/tab2: Grouping wins", which judges the same contrast; empty if this claim is judged itself.
    judged_in: str = ""
    gaps: Mapping[int, str] = field(default_factory=dict)  # confirmatory seeds that can never count -> reason
    caveats: tuple[str, ...] = ()  # phrases that findings and pages show next to the verdict
    signs: Signs | None = None  # the exact sign test of the differences in `at_look`
    room: float | None = None  # room of the cells, in the metric's unit (room.py), or None if it is no accuracy
    no_room: bool = False  # whether the room is less than four margins
    detectable: Detectable | None = None  # of an open claim

    @property
    def estimate(self) -> float | None:
        return self.at_look.value if self.at_look else None

    @property
    def interval(self) -> Interval | None:
        return self.at_look.interval if self.at_look else None

    @property
    def n(self) -> int:
        return self.at_look.n if self.at_look else 0

    @property
    def is_decided(self) -> bool:
        return self.verdict in DECIDED

    @property
    def is_judged(self) -> bool:
        """Return whether the estimate is over confirmatory seeds, or computed."""
        return self.verdict in JUDGED


@dataclass(frozen=True, kw_only=True)
class ContrastReading:
    """The result of one look for one contrast."""

    verdict: Verdict = "undecided"  # if the claim only had this contrast, at its share of the error
    why: str
    interval: Interval | None = None
    level: float = 1 - FAMILY_ERROR
    above: bool = False  # whether it is above zero at the claim's error
    typical: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The result of all looks so far for a claim."""

    verdict: Verdict = "undecided"
    why: str
    interval: Interval | None = None  # of the contrast that is shown
    level: float = 1 - FAMILY_ERROR
    looks: int = 0  # number of the look that decided, or of the last look if undecided
    contrast: int = 0  # the contrast that is shown
    waits_for: str = ""
    blocked: bool = False  # whether the claim that it waits for can no longer be rejected
    error: float  # of all looks together


def judge(item: Item, records: Records) -> list[Judged]:
    """Judge every claim of the item, in the item's order. Raise KeyError if a claim names a label
    that the item does not have.
    """
    judged: dict[int, Judged] = {}
    families: dict[tuple[SeedBlock, ClaimFamily], dict[int, Evidence]] = {}
    for number, assigned in enumerate(assignments(item, records)):
        claim, judged_in = assigned.claim, assigned.judged_in
        evidence = gather_evidence(item, records, assigned)
        if judged_in:
            reason = f"the same contrast is judged in {judged_in}"
            judged[number] = Judged(
                claim=claim, verdict="not judged yet", reason=reason, evidence=evidence, judged_in=judged_in
            )
        elif claim.endpoint == "arithmetic":
            judged[number] = replace(_judge_exactly(item, records, claim), evidence=evidence)
        else:
            families.setdefault((evidence.block, evidence.family), {})[number] = evidence
    for (block, family), members in families.items():
        decisions = decide(list(members.values()), family, block.error)
        for (number, evidence), decision in zip(members.items(), decisions, strict=True):
            judged[number] = _judged(evidence, decision)
    return [judged[number] for number in sorted(judged)]


def decide(claims: Sequence[Evidence], family: ClaimFamily, error: float = FAMILY_ERROR) -> list[Decision]:
    """Return, for each of an item's claims in a family, the result of its looks.

    `error` is the error of the family (`SeedBlock.error`).
    """
    half = error / 2 if family.main and family.others else error
    main = {claim.hash: claim for claim in claims if claim.hash in family.main}
    others = [claim for claim in claims if claim.hash not in main]
    share = half * min(1.0, len(others) / max(1, len(family.others)))
    decisions = _main_in_order(main, family.main, half)
    decisions |= dict(zip((claim.hash for claim in others), _holm(others, share), strict=True))
    return [decisions[claim.hash] for claim in claims]


def _main_in_order(claims: Mapping[str, Evidence], order: Sequence[str], error: float) -> dict[str, Decision]:
    """Judge primary claims in order at the same error; after the first one that is not rejected,
    all are undecided.
    """
    decisions: dict[str, Decision] = {}
    waits_for, blocked = "", False
    for name in order:
        decision = looked_at(claims[name], error) if name in claims else None
        if decision is not None:
            decisions[name] = decision
            if waits_for:
                why = waiting(waits_for, blocked)
                decisions[name] = replace(decision, verdict="undecided", why=why, waits_for=waits_for, blocked=blocked)
        if decision is not None and decision.verdict in REJECTIONS:
            continue
        has_ended = decision is None or _has_ended(claims[name], decision)
        if not waits_for or (has_ended and not blocked):
            waits_for = "a claim that was reworded" if decision is None else repr(claims[name].claim.name)
            blocked = has_ended
    return decisions


def waiting(waits_for: str, blocked: bool) -> str:
    """Return a phrase on a claim that is tested after `waits_for`, which was not rejected."""
    if blocked:
        return f"no more seeds can decide it, since {waits_for}, a primary claim before it, can no longer be rejected"
    return f"waits for {waits_for}, a primary claim before it"


def _has_ended(evidence: Evidence, decision: Decision) -> bool:
    """Return whether more seeds cannot reject a claim that is not rejected.

    It has no effect of interest, no room, or no interim analysis left that can decide it. A seed that does not count
    ends nothing, since a second copy of a run may fill the gap.
    """
    alike = evidence.claim.form == "comparable"
    if decision.verdict != "undecided" or (evidence.lacks_room and not alike):
        return True
    return not smallest_look(decision.error, decision.looks, alike=alike)


def _holm(claims: Sequence[Evidence], error: float) -> list[Decision]:
    """Judge claims at equal shares of the error; the share of a rejected claim goes to the others."""
    decided: dict[int, Decision] = {}
    while True:
        rejected = sum(decision.verdict in REJECTIONS for decision in decided.values())
        share = error / max(1, len(claims) - rejected)
        judged = {n: looked_at(claim, share) for n, claim in enumerate(claims) if n not in decided}
        new = {n: decision for n, decision in judged.items() if decision.verdict != "undecided"}
        decided |= new
        if not any(decision.verdict in REJECTIONS for decision in new.values()):
            return [(judged | decided)[n] for n in range(len(claims))]


def looked_at(evidence: Evidence, error: float) -> Decision:
    """Return the result of the first look that decides; all looks together err with a probability
    of at most `error`.
    """
    seeds = evidence.confirming
    contrasts = range(len(evidence.differences))
    passed: set[int] = set()
    decision = Decision(why=f"{len(seeds)} seeds of at least {LOOKS[0]}", error=error)
    for look, n in enumerate(LOOKS):
        if n > len(seeds):
            break
        error_at_look = errors(error)[look]
        error_per_contrast = errors(error / len(contrasts))[look]
        readings = [
            _reading(evidence, contrast, seeds[:n], error_at_look, error_per_contrast) for contrast in contrasts
        ]
        passed |= {contrast for contrast, reading in enumerate(readings) if reading.above}
        decision = _together(readings, passed, look, error)
        if decision.verdict != "undecided":
            break
    return decision


def _reading(
    evidence: Evidence, contrast: int, seeds: Sequence[int], error: float, error_per_contrast: float
) -> ContrastReading:
    """Return the result of signed ranks, together with the sign test if runs collapsed.

    Claims about collapse are tested only by the sign test.
    """
    tested = both_tests(evidence.differences_at(seeds, contrast), error, error_per_contrast)
    if evidence.claim.endpoint == "collapse":
        return replace(_sign_reading(tested.signs, error, error_per_contrast), typical=tested.typical)
    n = len(seeds)
    ranks = replace(_interval_reading(evidence, tested.ranks, n, error, error_per_contrast), typical=tested.typical)
    if not runs_fall(evidence, contrast, seeds):
        return ranks
    signs = _interval_reading(evidence, tested.medians, n, error, error_per_contrast)
    fallen = _shares(evidence.collapsed_at(seeds, contrast), n)
    if (signs.verdict, signs.above) == (ranks.verdict, ranks.above):
        agrees = ", and the sign test agrees" if ranks.above or ranks.verdict != "undecided" else ""
        return replace(ranks, why=f"{ranks.why}; runs collapsed ({fallen}){agrees}")
    return replace(
        ranks, above=False, verdict="undecided", why=f"runs collapsed ({fallen}), and the sign test disagrees"
    )


def runs_fall(evidence: Evidence, contrast: int, seeds: Sequence[int]) -> bool:
    """Return whether so many of a cell's runs collapsed that the sign test has to agree with the signed ranks."""
    return max(evidence.collapsed_at(seeds, contrast).values(), default=0) > RUNS_FALL * len(seeds)


def _together(readings: Sequence[ContrastReading], passed: Collection[int], look: int, error: float) -> Decision:
    """Combine the results of the contrasts. `passed` lists the contrasts that were above zero at
    this look or before.

    If several contrasts decide, one that contradicts precedes one without an effect of interest,
    and among equals the smallest difference is shown. The order of the contrasts in the file is
    therefore irrelevant. A claim of several contrasts is false if one of them is, even if the
    others are not.
    """
    against = [contrast for contrast, reading in enumerate(readings) if reading.verdict == "contradicted"]
    deciding = against or [contrast for contrast, reading in enumerate(readings) if reading.verdict != "undecided"]
    waiting = [contrast for contrast in range(len(readings)) if contrast not in passed]
    shown = min(deciding or waiting or range(len(readings)), key=lambda contrast: readings[contrast].typical)
    reading = readings[shown]
    return Decision(
        verdict=reading.verdict if deciding or waiting else "holds",
        why=reading.why,
        interval=reading.interval,
        level=reading.level,
        looks=look + 1,
        contrast=shown,
        error=error,
    )


def _interval_reading(
    evidence: Evidence, intervals: Intervals, n: int, error: float, error_per_contrast: float
) -> ContrastReading:
    """Return the verdict from one test's intervals of n differences, at the claim's error and at
    the contrast's share of it.
    """
    claim = evidence.claim
    margin = in_unit(claim.metric, claim.least)
    at_error, at_share = intervals
    if at_error is None:
        return ContrastReading(why=f"{n} seeds are too few for an interval at this claim's error", level=1 - error)
    reading = ContrastReading(why="", interval=at_error, level=1 - error)
    if claim.form == "comparable":
        verdict, why = _alike(at_error, claim.least, margin, n, evidence.below)
        return replace(reading, verdict=verdict, why=why)
    low, high = at_share or (float("-inf"), float("inf"))
    inside = -claim.least < low and high < claim.least
    decided = replace(reading, interval=at_share, level=1 - error_per_contrast)
    if inside and n >= EQUIVALENCE:
        return replace(decided, verdict="no effect of interest", why=f"the interval lies within +-{margin}")
    if high < 0 and not inside:
        return replace(decided, verdict="contradicted", why="the interval lies below zero")
    if at_error[0] > 0 and at_error[1] >= claim.least:
        return replace(reading, above=True, why="the interval lies above zero")
    if inside:
        return replace(reading, why=f"any difference is below {margin}, but {n} seeds are fewer than {EQUIVALENCE}")
    return replace(reading, why="the interval includes zero" if at_error[0] <= 0 else f"any gain is below {margin}")


def _alike(within: Interval, least: float, margin: str, n: int, below: Sequence[str]) -> tuple[Verdict, str]:
    low, high = within
    if low > least or high < -least:
        return "contradicted", f"the interval lies outside +-{margin}"
    if not (-least < low and high < least):
        return "undecided", f"the interval crosses the margin of +-{margin}"
    if below:
        return "undecided", "cells below the supervised baseline are not called equivalent"
    if n < EQUIVALENCE:
        return "undecided", f"the interval lies within +-{margin}, but {n} seeds are fewer than {EQUIVALENCE}"
    return "holds", f"the interval lies within +-{margin}"


def _sign_reading(signs: Signs, error: float, error_per_contrast: float) -> ContrastReading:
    """Return the result of the sign test over the seeds with a collapse on one side of the contrast
    only.
    """
    why = f"{signs.better} seeds for and {signs.worse} against, sign test p = {signs.p:.2g}"
    if signs.worse > signs.better and signs.p <= error_per_contrast:
        return ContrastReading(verdict="contradicted", why=why)
    return ContrastReading(above=signs.better > signs.worse and signs.p <= error, why=why)


@cache
def share_text(count: int, n: int) -> str:
    """Return a share with its Clopper-Pearson interval: "3 of 16, 4 to 46 %"."""
    low = betaincinv(count, n - count + 1, FAMILY_ERROR / 2) if count else 0.0
    high = betaincinv(count + 1, n - count, 1 - FAMILY_ERROR / 2) if count < n else 1.0
    return f"{count} of {n}, {100 * low:.0f} to {100 * high:.0f} %"


def _shares(fallen: Mapping[str, int], n: int) -> str:
    """Return the cells with collapsed runs as a phrase: "SemiFL/K=2: 3 of 16, 4 to 46 %"."""
    return ", ".join(f"{label}: {share_text(count, n)}" for label, count in fallen.items() if count)


def _judge_exactly(item: Item, records: Records, claim: Claim) -> Judged:
    """Judge a claim on values that are computed, or equal in every run: exactly, with one value per cell.

    The networks of reduced profiles have other sizes than the paper's, so that their sizes judge
    nothing.
    """
    if item.profile != "paper" and claim.metric in COMPUTED:
        return Judged(claim=claim, verdict="not judged yet", reason="computed only at profile paper, with its networks")
    values: dict[str, dict[int, float]] = {}
    for cell in item.cells:
        value = cell.computed.get(claim.metric)
        if value is None:
            value = next(iter(cell_result(cell, records, item.seeds, claim.metric).values.values()), None)
        if value is not None and not isinstance(value, str):
            values[cell.label] = {0: float(value)}
    absent = [label for label in claim.labels if label not in values]
    if absent:
        return Judged(claim=claim, verdict="not judged yet", reason=f"{absent[0]} has no value yet")
    smallest = min(contrast(coefficients, values)[0] for coefficients in claim.contrasts)
    if claim.form == "comparable":
        holds = abs(smallest) <= claim.least
        relation = "within +-" if holds else "outside +-"
    else:
        holds = smallest >= claim.least
        relation = "at least " if holds else "less than "
    return Judged(
        claim=claim,
        verdict="holds" if holds else "contradicted",
        reason=f"computed, {relation}{in_unit(claim.metric, claim.least)}",
        at_look=Estimate(value=smallest, n=1),
        level=1.0,
    )


def _judged(evidence: Evidence, decision: Decision) -> Judged:
    """Return the decision with its estimates and caveats."""
    claim = evidence.claim
    if evidence.confirming:
        judged = _judged_at_looks(evidence, decision)
    elif evidence.pilots:
        contrasts = range(len(evidence.differences))
        shown = min((evidence.differences_at(evidence.pilots, contrast) for contrast in contrasts), key=typical)
        reason = f"exploratory seeds only: not judged (confirmatory seeds begin at {CONFIRMING.start})"
        judged = Judged(
            claim=claim, verdict="not judged yet", reason=reason, at_look=_estimate(shown), signs=_signs(shown)
        )
    else:
        judged = Judged(claim=claim, verdict="not run", reason="no seed has runs of all cells of this claim yet")
    verdict = without_room(judged.verdict, claim) if evidence.lacks_room else judged.verdict
    caveats = (*evidence.caveats, evidence.lacks_room) if evidence.lacks_room else evidence.caveats
    if decision.blocked and not evidence.confirming:
        judged = replace(judged, reason=f"{judged.reason}; {decision.why}")
    judged = replace(
        judged,
        verdict=verdict,
        reason="; ".join((*caveats, judged.reason)) + _diverged_in_words(evidence),
        diverged=evidence.diverged,
        error=decision.error,
        waits_for=decision.waits_for if evidence.confirming or decision.blocked else "",
        blocked=decision.blocked,
        evidence=evidence,
        gaps=evidence.gaps,
        caveats=caveats,
        room=evidence.room,
        no_room=bool(evidence.lacks_room),
    )
    if judged.is_decided or verdict == "no room" or decision.blocked:
        return judged
    return _open(judged, evidence)


def without_room(verdict: Verdict, claim: Claim) -> Verdict:
    """Return the verdict on a claim that has less than four margins of room.

    An improvement that was not found has "no room", because "no effect of interest" would blame the
    method for the setting. Effects that were found despite the setting stay, both "holds" and
    "contradicted". So do all verdicts on "comparable" cells: each of them could have become worse,
    and there was room for that.
    """
    absent = verdict in ("no effect of interest", "undecided")
    return "no room" if absent and claim.form != "comparable" else verdict


def _diverged_in_words(evidence: Evidence) -> str:
    if not evidence.diverged:
        return ""
    claim = evidence.claim
    if claim.endpoint == "reached":
        counts = "counted as never reaching it"
    elif claim.endpoint == "collapse":
        counts = "counted as collapsed"
    else:
        counts = "counted as 0" if has_worst_value(claim) else "left out"
    return f"; diverged and {counts}: {', '.join(evidence.diverged)}"


def _open(judged: Judged, evidence: Evidence) -> Judged:
    """Add the next look that can decide an open claim, and the smallest difference that the claim
    can detect; nothing if no look can decide it.

    The smallest detectable difference needs three seeds, including exploratory ones. If there are
    several contrasts, the largest spread is used.
    """
    look = next_look(judged, evidence.reachable)
    seeds = [*evidence.pilots, *evidence.confirming]
    if not look or len(seeds) < 3:
        return replace(judged, could_decide=look)
    spread = max(stdev(evidence.differences_at(seeds, n)) for n in range(len(evidence.differences)))
    smallest = detectable(spread, len(seeds), judged.error, evidence.reachable)
    return replace(judged, could_decide=look, detectable=smallest)


def next_look(judged: Judged, reachable: int) -> int:
    """Return the number of seeds of the smallest look that can decide an open claim, or 0 without
    such a look.

    `reachable` is the largest number of seeds that can be judged (`Evidence.reachable`).
    """
    alike = judged.claim.form == "comparable"
    return smallest_look(judged.error, judged.looks, alike=alike, reachable=reachable)


def _judged_at_looks(evidence: Evidence, decision: Decision) -> Judged:
    every = evidence.confirming
    seeds = every[: LOOKS[decision.looks - 1]] if decision.looks else every
    at_look = _estimate(evidence.differences_at(seeds, decision.contrast), decision.interval)
    reason = decision.why
    if decision.verdict == "undecided":
        if decision.looks and not decision.blocked:
            more = decision.looks < len(LOOKS)
            reason += (
                f"; the next interim analysis is at {LOOKS[decision.looks]} seeds"
                if more
                else "; this was the last interim analysis"
            )
    else:
        if decision.verdict == "holds" and evidence.claim.form != "comparable" and at_look.value < evidence.claim.least:
            margin = in_unit(evidence.claim.metric, evidence.claim.least)
            reason += f", but the estimate is below the smallest effect size of interest ({margin})"
        reason += f"; reached at interim analysis {decision.looks} of {len(LOOKS)}, with {len(seeds)} seeds"
    beyond = evidence.differences_at(every, decision.contrast) if len(every) > len(seeds) else []
    pilots = evidence.differences_at(evidence.pilots, decision.contrast)
    return Judged(
        claim=evidence.claim,
        verdict=decision.verdict,
        reason=reason,
        at_look=at_look,
        over_all=_estimate(beyond, interval(beyond, 1 - decision.level)) if beyond else None,
        pilots=_estimate(pilots) if pilots else None,
        level=decision.level,
        looks=decision.looks,
        collapsed=evidence.collapsed_at(seeds, decision.contrast),
        runs_fall=runs_fall(evidence, decision.contrast, seeds),
        signs=_signs(evidence.differences_at(seeds, decision.contrast)),
    )


def _signs(differences: Sequence[float]) -> Signs:
    """Return the sign test of the differences as shown to readers: a difference that is 0 except
    for rounding has no sign.
    """
    return signs_of([round(difference, DIGITS) for difference in differences])


def _estimate(differences: Sequence[float], within: Interval | None = None) -> Estimate:
    is_range = within == (round(min(differences), DIGITS), round(max(differences), DIGITS))
    return Estimate(value=typical(differences), n=len(differences), interval=within, is_range=is_range)
