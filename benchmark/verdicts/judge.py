"""Whether the numbers bear a paper's claims out: `holds`, `contradicted`, `no effect of interest` or `undecided`, with
the reason in words.

Only confirming seeds are judged (looks.py). The typical difference is judged by its signed-rank interval
(signed_ranks.py): improves and trend hold above zero, comparable holds within the margin; an improvement whose interval
lies within the margin is no effect of interest. Nothing is called alike below twenty seeds. "every" and "order" hold
where each of their contrasts does, each at the claim's whole error, and fail where one fails, at its share of it
(intersection-union). Runs that ended below labels alone have collapsed, and collapse is another question than the
typical difference: up to a fifth of a cell's runs, their seeds are left out, and their share is told; where more have,
a contrast with that cell is judged by collapse alone: of the seeds on which one side alone stood, on how many it was
the one that should win. Were their differences kept, no rule would hold its error at nine seeds: where three runs in
ten of one arm collapse, nine show none or one of them in a fifth of all cases, and what the others gain passes for
typical.

The error of a family of claims (records/families.py), some false verdict in it at any look, is .05. Half of it is for
the few main claims, one after another: each has all of that half, once those before it are decided. The other half is
shared by all other claims of the paper: an item has its claims' shares, and what a decided claim leaves is shared by
the others of the item (Holm's). So no verdict moves by the runs of another item. A mean is not judged: where one arm
collapses now and then, no test of a mean keeps its level at so few seeds (tests/verdicts/test_error_rate.py).
"""

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from scipy.special import bdtr, betaincinv

from benchmark.papers.item import CONFIRMING, Cell, Claim, Item
from benchmark.papers.table import COMPUTED
from benchmark.records.families import Family, declared, owner
from benchmark.verdicts.evidence import HIGHER_IS_BETTER, Evidence, contrasts, evidence
from benchmark.verdicts.looks import EQUIVALENCE, FUTILE, LOOKS, POWER, errors, power
from benchmark.verdicts.results import Records, cell_result
from benchmark.verdicts.signed_ranks import interval, typical
from benchmark.verdicts.statistics import contrast
from benchmark.verdicts.units import in_unit

Verdict: TypeAlias = Literal["holds", "contradicted", "no effect of interest", "undecided", "not judged yet", "not run"]
OPEN = ("undecided", "not judged yet", "not run")  # the last two: no seed that confirms, and no seed at all
Interval: TypeAlias = tuple[float, float]
FAMILY_ERROR = 0.05
# Of a cell's runs: above it collapse alone is judged; below it their seeds are left out of the typical difference.
COLLAPSE_ALONE = 0.2


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A claim and what the records say of it. `estimate` and `interval` are in the metric's unit; of a claim with
    several contrasts they are those of the least one."""

    claim: Claim
    verdict: Verdict
    estimate: float | None = None  # the typical difference; None: no seed has all cells of the claim
    interval: Interval | None = None
    # Seeds that the estimate is of: those of the last look less those set aside; before it, all that confirm, or pilots
    n: int = 0
    level: float = 1 - FAMILY_ERROR  # of the interval
    error: float = FAMILY_ERROR  # of all its looks together
    reason: str
    powers: Mapping[int, float] = field(default_factory=dict)  # seeds of looks to come -> chance to decide, as is seen
    diverged: tuple[str, ...] = ()  # "fedavg/C=47 seed 1": runs the claim needs and that diverged
    looks: int = 0  # that it has had
    futile: bool = False  # not even the last look is likely to decide it
    by_collapse: bool = False  # judged by collapse alone: no interval
    # Judged so: the cells of which more than a fifth ended below labels alone, with how many of the n runs did
    collapsed: Mapping[str, int] = field(default_factory=dict)
    waits_for: str = ""  # a main claim before it that is open; until it is decided, seeds do not settle this one

    @property
    def seeds_needed(self) -> int | None:
        """Of the first look that would decide with a power of 80 %."""
        return next((n for n, chance in self.powers.items() if chance >= POWER), None)

    @property
    def next_look(self) -> int:
        """Confirming seeds of the next look; 0 where there is no more to look at."""
        open_ = self.verdict in OPEN and self.looks < len(LOOKS)
        return LOOKS[self.looks] if open_ else 0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the looks so far say at a claim's error."""

    verdict: Verdict
    why: str
    looks: int  # the one at which it was decided; undecided: all that there were
    least: int = 0  # the contrast that is shown
    interval: Interval | None = None
    level: float = 1 - FAMILY_ERROR
    by_collapse: bool = False
    waits_for: str = ""


def judge(item: Item, records: Records) -> list[Judged]:
    """Every claim of the item, in the item's order. Raises KeyError for a claim on a label the item does not have."""
    judged: dict[int, Judged] = {}
    families: dict[Family, dict[int, Evidence]] = {}
    for number, claim in enumerate(item.claims):
        place, one = owner(item, claim)
        if (place.name, one.name) != (item.name, claim.name):
            judged[number] = Judged(
                claim=claim, verdict="not judged yet", reason=f"the same contrast is judged in {place.name}: {one.name}"
            )
        elif claim.endpoint == "arithmetic":
            judged[number] = _counted(item, records, claim)
        else:
            found = evidence(item, records, claim)
            families.setdefault(found.family or declared(item), {})[number] = found
    for family, members in families.items():
        for (number, evidence_of), (decision, error) in zip(
            members.items(), decide(list(members.values()), family), strict=True
        ):
            judged[number] = _told(evidence_of, decision, error)
    return [judged[number] for number in sorted(judged)]


def decide(claims: Sequence[Evidence], family: Family) -> list[tuple[Decision, float]]:
    """Of each of an item's claims in a family what its looks say, and the error at which they were judged."""
    half = FAMILY_ERROR / 2 if family.main and family.others else FAMILY_ERROR
    main = {one.hash: one for one in claims if one.hash in family.main}
    others = [one for one in claims if one.hash not in main]
    share = half * min(1.0, len(others) / max(1, len(family.others)))
    found = _in_order(main, family.main, half)
    found |= dict(zip((one.hash for one in others), _by_holm(others, share), strict=True))
    return [found[one.hash] for one in claims]


def _in_order(claims: Mapping[str, Evidence], order: Sequence[str], error: float) -> dict[str, tuple[Decision, float]]:
    """One after another at the same error; behind the first that is open none is decided."""
    found: dict[str, tuple[Decision, float]] = {}
    waits_for = ""
    for one in order:
        decision = looked_at(claims[one], error) if one in claims else None
        if decision is not None:
            if waits_for:
                why = f"waits for {waits_for}, a main claim before it"
                decision = replace(decision, verdict="undecided", why=why, waits_for=waits_for)
            found[one] = decision, error
        if not waits_for and (decision is None or decision.verdict == "undecided"):
            waits_for = repr(claims[one].claim.name) if one in claims else "one that was reworded"
    return found


def _by_holm(claims: Sequence[Evidence], error: float) -> list[tuple[Decision, float]]:
    """What a decided claim leaves is shared by the others."""
    decided: dict[int, tuple[Decision, float]] = {}
    while True:
        each = error / max(1, len(claims) - len(decided))
        left = {n: looked_at(one, each) for n, one in enumerate(claims) if n not in decided}
        new = {n: (decision, each) for n, decision in left.items() if decision.verdict != "undecided"}
        decided |= new
        if not new:
            undecided = {n: (decision, each) for n, decision in left.items()}
            return [(decided | undecided)[n] for n in range(len(claims))]


def looked_at(one: Evidence, error: float) -> Decision:
    """The verdict of the first look that decides, at that error for all looks together."""
    seeds = one.confirming
    passed: set[int] = set()
    decision = Decision(verdict="undecided", why=f"{len(seeds)} seeds of at least {LOOKS[0]}", looks=0)
    for look, n in enumerate(LOOKS):
        if n > len(seeds):
            break
        seen = seen_at(one, error, look)
        passed |= {contrast for contrast, it in enumerate(seen) if it.above}
        decision = _together(seen, passed, look)
        if decision.verdict != "undecided":
            break
    return decision


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a look says of one contrast."""

    above: bool = False  # zero, at the claim's error
    verdict: Verdict = "undecided"  # that it gives to the claim whatever the others say, at its share of the error
    why: str
    typical: float
    interval: Interval | None = None
    level: float = 1 - FAMILY_ERROR
    by_collapse: bool = False


def seen_at(one: Evidence, error: float, look: int) -> list[Seen]:
    """What that look says of each contrast, at that error for all looks together."""
    many, seeds = range(len(one.differences)), one.confirming[: LOOKS[look]]
    whole, share = errors(error)[look], errors(error / len(many))[look]
    return [_seen(one, contrast, seeds, whole, share) for contrast in many]


def _seen(one: Evidence, contrast: int, seeds: Sequence[int], whole: float, share: float) -> Seen:
    """By collapse alone where one of the contrast's cells has too many such runs, else by the seeds without any."""
    if _collapse_alone(one, contrast, seeds):
        return _by_collapse(one, contrast, seeds, whole, share)
    return _by_differences(one, contrast, seeds, whole, share)


def _collapse_alone(one: Evidence, contrast: int, seeds: Sequence[int]) -> bool:
    return max(one.collapsed_of(seeds, contrast).values(), default=0) > COLLAPSE_ALONE * len(seeds)


def _told_by(one: Evidence, contrast: int, seeds: Sequence[int]) -> Sequence[int]:
    """The seeds of the typical difference. Where collapse alone is judged it is all of them: the few at which nothing
    has collapsed can show a gain where most runs are a loss."""
    return seeds if _collapse_alone(one, contrast, seeds) else one.standing(seeds, contrast) or seeds


def _together(seen: Sequence[Seen], passed: Collection[int], look: int) -> Decision:
    """What the contrasts say of the claim. `passed`: those seen above zero, at this look or before."""
    deciding = [contrast for contrast, it in enumerate(seen) if it.verdict != "undecided"]
    waiting = [contrast for contrast in range(len(seen)) if contrast not in passed]
    shown = min(deciding[:1] or waiting or range(len(seen)), key=lambda contrast: seen[contrast].typical)
    it = seen[shown]
    verdict = it.verdict if deciding or waiting else "holds"
    collapsed = sum(other.by_collapse for other in seen)
    why = it.why
    if collapsed and not it.by_collapse:
        why += f"; {collapsed} of {len(seen)} contrasts are judged by collapse alone"
    decision = Decision(verdict=verdict, why=why, looks=look + 1, least=shown)
    return replace(decision, interval=it.interval, level=it.level, by_collapse=it.by_collapse)


def _by_differences(one: Evidence, contrast: int, seeds: Sequence[int], whole: float, share: float) -> Seen:
    claim, margin = one.claim, in_unit(one.claim.metric, one.claim.least)
    differences = one.of(one.standing(seeds, contrast), contrast)
    n = len(differences)
    if not n:
        return Seen(why="at every seed a run has collapsed", typical=typical(one.of(seeds, contrast)))
    wide, apart = interval(differences, whole), interval(differences, share)
    seen = Seen(why="", typical=typical(differences), interval=wide, level=1 - whole)
    if wide is None:
        return replace(seen, why=f"{n} seeds are too few for an interval at this claim's error")
    if claim.form == "comparable":
        verdict, why = _alike(wide, claim.least, margin, n, one.below)
        return replace(seen, verdict=verdict, why=why)
    low, high = apart or (-math.inf, math.inf)
    inside = -claim.least < low and high < claim.least
    decided = replace(seen, interval=apart, level=1 - share)
    if inside and n >= EQUIVALENCE:
        return replace(decided, verdict="no effect of interest", why=f"the interval lies within +-{margin}")
    if high < 0 and not inside:
        return replace(decided, verdict="contradicted", why="the interval lies below zero")
    if wide[0] > 0 and wide[1] >= claim.least:
        return replace(seen, above=True, why="the interval lies above zero")
    if inside:
        return replace(seen, why=f"any difference is below {margin}, by {n} seeds of at least {EQUIVALENCE}")
    return replace(seen, why="the interval includes zero" if wide[0] <= 0 else f"any gain is below {margin}")


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


def _by_collapse(one: Evidence, contrast: int, seeds: Sequence[int], whole: float, share: float) -> Seen:
    """The sign test on the seeds on which one side of the contrast alone has collapsed."""
    fallen = one.collapsed_of(seeds, contrast)
    shares = ", ".join(_share(label, count, len(seeds)) for label, count in fallen.items())
    text = f"judged by collapse alone, as more than a fifth of the runs of a cell ended below labels alone ({shares})"
    seen = Seen(why=text, typical=typical(one.of(seeds, contrast)), by_collapse=True)
    if one.claim.form == "comparable":
        return replace(seen, why=f"{text}; no two such cells are called alike")
    signs = one.survival[contrast]
    better, worse = (sum(sign * signs[seed] > 0 for seed in seeds) for sign in (1, -1))
    p = _sign_test(better, better + worse)
    if worse > better and p <= share:
        return replace(seen, verdict="contradicted")
    return replace(seen, above=better > worse and p <= whole)


@functools.cache
def _sign_test(count: int, n: int) -> float:
    """Two-sided p-value of so many of one sign."""
    return min(1.0, float(2 * bdtr(min(count, n - count), n, 0.5)))


@functools.cache
def _share(label: str, count: int, n: int) -> str:
    """With the interval of Clopper and Pearson."""
    low = betaincinv(count, n - count + 1, FAMILY_ERROR / 2) if count else 0.0
    high = betaincinv(count + 1, n - count, 1 - FAMILY_ERROR / 2) if count < n else 1.0
    return f"{label}: {count} of {n}, {100 * low:.0f} to {100 * high:.0f} %"


def _counted(item: Item, records: Records, claim: Claim) -> Judged:
    """A claim on what is computed, or on what every run counts alike: exact, by one value a cell. Sizes of a reduced
    profile's networks are no paper's."""
    if item.profile != "paper" and claim.metric in COMPUTED:
        return Judged(claim=claim, verdict="not judged yet", reason="counted at profile paper, on the paper's networks")
    values: dict[str, dict[int, float]] = {}
    for one in (*item.cells, *item.shown):
        known: Iterable[float | str] = (one.computed[claim.metric],) if claim.metric in one.computed else ()
        if isinstance(one, Cell) and not known:
            known = cell_result(one, records, item.seeds, claim.metric).values.values()
        values[one.label] = dict(enumerate(float(value) for value in list(known)[:1] if not isinstance(value, str)))
    known_all = all(values[label] for label in claim.labels)
    if not known_all:
        absent = next(label for label in claim.labels if not values[label])
        return Judged(claim=claim, verdict="not judged yet", reason=f"nothing is counted yet for {absent}")
    least = min(contrast(one, values)[0] for one in contrasts(claim))
    margin = in_unit(claim.metric, claim.least)
    verdict: Verdict
    if claim.form == "comparable":
        verdict, why = ("holds", "within") if abs(least) <= claim.least else ("contradicted", "outside")
        reason = f"counted, {why} +-{margin}"
    elif least < claim.least:
        verdict, reason = "contradicted", f"counted, less than {margin}"
    else:
        verdict, reason = "holds", f"counted, at least {margin}"
    return Judged(claim=claim, verdict=verdict, estimate=least, n=1, level=1.0, reason=reason)


# In words


def _told(one: Evidence, decision: Decision, error: float) -> Judged:
    """The decision with what a reader has to know first, the estimate, and the seeds that would decide."""
    if one.unjudged:
        return Judged(claim=one.claim, verdict="not judged yet", reason=one.unjudged)
    if one.confirming:
        judged = _of_looks(one, decision, error)
    elif one.pilots:
        judged = _of_pilots(one, error)
    else:
        judged = Judged(claim=one.claim, verdict="not run", reason="no seed has all the cells of this claim yet")
    reason = "; ".join((*one.said_first, judged.reason))
    if one.diverged:
        counts = "counted as accuracy 0" if one.claim.metric in HIGHER_IS_BETTER else "left out"
        reason += f"; diverged and {counts}: {', '.join(one.diverged)}"
    return replace(judged, reason=reason, diverged=one.diverged, error=error)


def _of_looks(one: Evidence, decision: Decision, error: float) -> Judged:
    seeds = one.confirming[: LOOKS[decision.looks - 1]] if decision.looks else one.confirming
    up = one.standing(seeds, decision.least)
    told_by = _told_by(one, decision.least, seeds)
    estimate = typical(one.of(told_by, decision.least))
    reason, powers, futile = decision.why, dict[int, float](), False
    if 0 < len(up) < len(seeds) and not decision.by_collapse and "collapse" not in reason:
        fallen = one.collapsed_of(seeds, decision.least)
        left_out = ", ".join(_share(label, k, len(seeds)) for label, k in fallen.items() if k)
        reason += f"; of the {len(up)} seeds at which no run ended below labels alone ({left_out})"
    if decision.verdict == "undecided":
        if decision.looks and decision.looks < len(LOOKS):
            reason += f"; the next look is at {LOOKS[decision.looks]} seeds"
            powers = {} if decision.waits_for else _powers(one, seeds, decision.looks, error, confirming=True)
            futile = bool(powers) and powers[LOOKS[-1]] < FUTILE
            reason += f", and not even {LOOKS[-1]} would be likely to settle it" if futile else ""
        elif decision.looks:
            reason += f"; this was the last look, at {LOOKS[-1]} seeds"
    else:
        if decision.verdict == "holds" and one.claim.form != "comparable" and estimate < one.claim.least:
            margin = in_unit(one.claim.metric, one.claim.least)
            reason += f", though it is typically below the least difference of interest ({margin})"
        reason += f"; reached at look {decision.looks} of {len(LOOKS)}, at {len(seeds)} seeds"
    fallen = one.collapsed_of(seeds, decision.least) if decision.by_collapse else {}
    return Judged(
        claim=one.claim,
        verdict=decision.verdict,
        estimate=estimate,
        interval=decision.interval,
        n=len(told_by),
        level=decision.level,
        reason=reason,
        powers=powers,
        looks=decision.looks,
        futile=futile,
        by_collapse=decision.by_collapse,
        collapsed={label: k for label, k in fallen.items() if k > COLLAPSE_ALONE * len(seeds)},
        waits_for=decision.waits_for,
    )


def _of_pilots(one: Evidence, error: float) -> Judged:
    """The difference that pilot seeds show, and how many confirming seeds would be likely to settle it."""
    values = min((one.of(one.pilots, k) for k in range(len(one.differences))), key=typical)
    return Judged(
        claim=one.claim,
        verdict="not judged yet",
        estimate=typical(values),
        n=len(values),
        reason=f"pilot seeds only: not judged (seeds from {CONFIRMING.start} confirm)",
        powers=_powers(one, one.pilots, 0, error, confirming=False) if len(values) > 2 else {},
    )


def _powers(one: Evidence, seeds: Sequence[int], looks: int, error: float, *, confirming: bool) -> dict[int, float]:
    """Seeds of each look to come -> the chance that it decides: all contrasts, where there are several."""

    def chance(contrast: int, look: int) -> float:
        if _collapse_alone(one, contrast, seeds):
            return _power_by_collapse(one, contrast, seeds, look, error, confirming=confirming)
        used = _told_by(one, contrast, seeds) if confirming else seeds
        return power(one.claim, one.of(used, contrast), look, error, confirming=confirming)

    return {
        LOOKS[look]: min(chance(contrast, look) for contrast in range(len(one.differences)))
        for look in range(looks, len(LOOKS))
    }


def _power_by_collapse(
    one: Evidence, contrast: int, seeds: Sequence[int], look: int, error: float, *, confirming: bool
) -> float:
    """The chance that the look's sign test decides, were each side alone to collapse as often as seen."""
    if one.claim.form == "comparable":
        return 0.0  # as in `_by_collapse`
    signs = [one.survival[contrast][seed] for seed in seeds]
    seen = [sum(sign * one_sign > 0 for one_sign in signs) for sign in (1, -1)]
    to_come, (better, worse) = (LOOKS[look] - len(seeds), seen) if confirming else (LOOKS[look], (0, 0))
    rates = [count / len(seeds) for count in seen]
    chance = 0.0
    for more_better in range(to_come + 1):
        for more_worse in range(to_come - more_better + 1):
            neither = to_come - more_better - more_worse
            high, n = better + more_better, better + more_better + worse + more_worse
            if _sign_test(high, n) <= errors(error)[look]:
                ways = math.comb(to_come, neither) * math.comb(to_come - neither, more_better)
                chance += ways * rates[0] ** more_better * rates[1] ** more_worse * (1 - sum(rates)) ** neither
    return chance
