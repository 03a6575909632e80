"""Find the confirmatory runs that can decide an open claim, given the number of confirmatory seeds per cell.

A claim is judged at interim analyses with 9, 16, 24 and 32 seeds, and at no number of seeds between them. A run decides
nothing if no open claim is about its cell, if the claim's share of the error is too small for so few seeds, or if its
seed is after the last interim analysis.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.papers.bounds import bound_of
from benchmark.papers.item import UNTRAINED, Item
from benchmark.records.record import Records
from benchmark.records.seeds import seeds_text
from benchmark.verdicts.cell_results import without_trials
from benchmark.verdicts.evidence import seeds_by_reason
from benchmark.verdicts.judge import REJECTIONS, Judged, judge
from benchmark.verdicts.open_claims import looks_of, too_few_in_words
from benchmark.verdicts.rule import LOOKS
from sweeps.plan import Plan, Run

NAMED = 5  # claims in a message


@dataclass(frozen=True, kw_only=True)
class OpenClaims:
    """An item's open claims, divided by whether this number of confirmatory seeds can decide them.

    No cell of the item waits for trials.
    """

    item: Item
    seeds: int
    decidable: tuple[Judged, ...]
    others: tuple[Judged, ...]
    judged_in: tuple[str, ...]  # the items that judge the item's other claims

    @property
    def runs(self) -> set[Run]:
        """Return the runs of the next interim analyses of the decidable claims, with supervised baselines."""
        last = last_analysis(self.seeds)
        runs: set[Run] = set()
        for judged in self.decidable:
            assert judged.evidence is not None  # of a claim that runs judge
            first = judged.evidence.block.first
            for label in judged.claim.labels:
                cell = self.item.cell(label)
                bound = bound_of(cell, self.item.cells)
                for used in (cell,) if bound is None else (cell, bound):
                    runs.update((used.cell_key, seed) for seed in range(first, first + last))
        return runs

    def in_words(self, left_out: int) -> str:
        """Write one sentence on the runs that are left out, the reason, and what to type to train them.

        `left_out` is their number.
        """
        asked = f"--seeds {self.seeds}"
        number = f"{left_out:,} run{'s' if left_out > 1 else ''}"
        anyway = "--undecidable trains " + ("it" if left_out == 1 else "them") + " all the same"
        looks = Counter(judged.could_decide for judged in (*self.decidable, *self.others))
        few = too_few_in_words(dict(sorted(looks.items())), self.seeds)
        if not looks:
            elsewhere = f" (type {', '.join(self.judged_in)} for the claims that it shares)" if self.judged_in else ""
            why = f"{self.item.word} has no open claim that {asked} could decide{elsewhere}"
            return f"{why}, so {number} are left out; --pilots N trains seeds that are not judged, and {anyway}"
        if not self.decidable:
            start, _, more = (few or f"{asked} can decide none of {looks.total()} open claims").partition("; ")
            return "; ".join(filter(None, [f"{start}, so {number} are left out and nothing is trained", more, anyway]))
        if self.others:
            names = [f"'{judged.claim.name}'" for judged in self.others]
            shown = [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]
            text = few or f"{asked} can decide {len(self.decidable)} of {looks.total()} open claims"
            return f"{text}; {number} that only other claims need are left out ({', '.join(shown)}); {anyway}"
        used = f"no open claim needs them, or they are after the interim analysis at {last_analysis(self.seeds)} seeds"
        return f"{number} of {asked} are left out, since {used}; {anyway}"


def last_analysis(seeds: int) -> int:
    """Return the last interim analysis that this number of confirmatory seeds reaches, or 0 if they reach none."""
    return max((n for n in LOOKS if n <= seeds), default=0)


def open_claims(item: Item, records: Records, seeds: int) -> OpenClaims:
    """Judge the item's claims by the run records, and divide the open ones by whether they can be decided."""
    claims = judge(item, without_trials(item, records))
    open_ones = [judged for judged in claims if judged.could_decide]
    names = _decidable(item, claims, records, seeds)
    decidable = tuple(judged for judged in open_ones if judged.claim.name in names)
    others = tuple(judged for judged in open_ones if judged.claim.name not in names)
    judged_in = dict.fromkeys(judged.judged_in.partition(":")[0] for judged in claims if judged.judged_in)
    return OpenClaims(item=item, seeds=seeds, decidable=decidable, others=others, judged_in=tuple(judged_in))


def _decidable(item: Item, claims: list[Judged], records: Records, seeds: int) -> set[str]:
    """Return the names of the claims that this number of seeds can decide.

    A claim on a cell that is shown but not trained waits for its runs. A primary claim waits for earlier primary claims
    unless these are rejected already or can be rejected at the same time.
    """
    able: set[str] = set()
    by_hash = {judged.evidence.hash: judged for judged in claims if judged.evidence is not None}
    for judged in claims:
        if 0 < judged.could_decide <= seeds and not _waits_for_cells(item, judged, records, seeds):
            able.add(judged.claim.name)
    families = {judged.evidence.family for judged in claims if judged.evidence is not None}
    for family in families:
        blocked = False
        for claim in family.main:
            primary = by_hash.get(claim)
            if primary is not None and blocked:
                able.discard(primary.claim.name)
            if primary is None or (primary.verdict not in REJECTIONS and primary.claim.name not in able):
                blocked = True
    return able


def _waits_for_cells(item: Item, judged: Judged, records: Records, seeds: int) -> bool:
    assert judged.evidence is not None  # of a claim that runs judge
    wanted = range(judged.evidence.block.first, judged.evidence.block.first + last_analysis(seeds))
    cells = [item.cell(label) for label in judged.claim.labels]
    shown = [cell for cell in cells if cell.role in UNTRAINED]
    return any(seed not in records.get(cell.cell_key, {}) for cell in shown for seed in wanted)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Confirmatory seeds that can never count for an open claim."""

    item: str
    claim: str
    reason: str
    seeds: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"item": self.item, "claim": self.claim, "reason": self.reason, "seeds": list(self.seeds)}

    def in_words(self) -> str:
        """Write, for example, "seeds 200 to 211 can never count for 'Large': two devices trained them"."""
        return f"{seeds_text(self.seeds)} can never count for '{self.claim}': {self.reason}"


def claims_of(item: Item, records: Records) -> list[Judged]:
    """Judge the item's claims by the run records. Return no claims while the item's cells wait for trials."""
    return [] if item.choices else judge(item, without_trials(item, records))


def gaps_of(item: Item, claims: Iterable[Judged]) -> list[Gap]:
    """Return the gaps of the item's open claims (of `claims_of`), one per claim and reason."""
    gaps: list[Gap] = []
    for judged in claims:
        if judged.is_decided:
            continue
        for reason, seeds in seeds_by_reason(judged.gaps).items():
            gaps.append(Gap(item=item.name, claim=judged.claim.name, reason=reason, seeds=tuple(seeds)))
    return gaps


def words_on_seeds(item: Item, claims: Sequence[Judged], planned: Plan, seeds: int | None) -> list[str]:
    """Write sentences on an item: the claims that these seeds can decide, runs left out, and seeds that never count.

    `claims` are those of `claims_of`, by the plan's records. If `seeds` is None, no confirmatory seeds are requested,
    and only seeds that never count are named.
    """
    keys = {cell.cell_key for cell in item.cells}
    left_out = sum(run.cell_key in keys for run in planned.left_out)
    text = ""
    if seeds and left_out:
        text = open_claims(item, planned.records, seeds).in_words(left_out)
    elif seeds:
        text = too_few_in_words(looks_of(claims), seeds)
    gaps = [gap.in_words() for gap in gaps_of(item, claims)]
    return [text, *gaps] if text else gaps
