"""Gather the evidence for a claim from the records, seed by seed, as the input of its judgement."""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import fsum
from statistics import fmean

from benchmark.papers.item import ACCURACY, CONFIRMING, LAST_ROUNDS, PILOTS, Claim, ClaimFamily, Item
from benchmark.records.record import RunRecord
from benchmark.records.seeds import seeds_text
from benchmark.verdicts.cell_results import CellResult, Records, cell_result
from benchmark.verdicts.collapse import (
    ROUNDING,
    Ends,
    Runs,
    collapsed_runs,
    ends_and_bound,
    typically_below,
    uncollapsed,
)
from benchmark.verdicts.families import Assignment, SeedBlock, families_in
from benchmark.verdicts.metrics import gain_at_end, never_reached
from benchmark.verdicts.room import room_of, shortage
from benchmark.verdicts.rule import STILL_RISING, WORST
from benchmark.verdicts.statistics import contrast
from benchmark.verdicts.uniform import mixtures, uniform

HIGHER_IS_BETTER = (
    "test/accuracy",
    "test/auroc",
    "test/precision",
    "test/recall",
    "pseudo/accuracy",
    "test/unknown_auroc",
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence for a claim. `differences` and `collapsed` have one entry per contrast of the claim."""

    claim: Claim
    differences: tuple[Mapping[int, float], ...]  # seed -> difference
    results: Mapping[str, CellResult] = field(default_factory=dict)  # by cell: the values that are judged
    collapsed: tuple[Runs, ...] = ()
    diverged: tuple[str, ...] = ()  # "fedavg/C=47 seed 1"
    below: tuple[str, ...] = ()  # cells with a median run that ends below the supervised baseline
    caveats: tuple[str, ...] = ()  # phrases that a reader should see before the verdict
    gaps: Mapping[int, str] = field(default_factory=dict)  # confirmatory seed that can never count -> reason
    room: float | None = None  # see room.py
    lacks_room: str = ""  # a phrase if the room is less than four margins
    hash: str = ""
    family: ClaimFamily = ClaimFamily()  # the family of its runs when they began or will begin
    block: SeedBlock = SeedBlock()  # the confirmatory seeds that judge it

    @property
    def pilots(self) -> tuple[int, ...]:
        return tuple(seed for seed in self._seeds if seed in PILOTS)

    @property
    def confirming(self) -> tuple[int, ...]:
        """Return the family's seeds up to the first gap, so that the order of finishing cannot
        choose the judged seeds.
        """
        seeds = set(self._seeds)
        return tuple(takewhile(lambda seed: seed in seeds, self.block.seeds))

    @property
    def reachable(self) -> int:
        """Return the largest number of seeds that can be judged: the seeds before the first one
        that can never count.
        """
        return min(self.gaps, default=self.block.seeds.stop) - self.block.first

    @property
    def _seeds(self) -> list[int]:
        return sorted(set.intersection(*(set(seeds) for seeds in self.differences))) if self.differences else []

    def differences_at(self, seeds: Iterable[int], contrast: int) -> list[float]:
        """Return the contrast's differences at these seeds."""
        return [self.differences[contrast][seed] for seed in seeds]

    def collapsed_at(self, seeds: Sequence[int], contrast: int) -> dict[str, int]:
        """Return for each cell of the contrast the number of these runs that have collapsed."""
        cells = self.collapsed[contrast] if self.collapsed else {}
        counts = {}
        for label, runs in cells.items():
            counts[label] = sum(runs[seed] for seed in seeds)
        return counts


def gather_evidence(item: Item, records: Records, assigned: Assignment) -> Evidence:
    """Gather the evidence for a claim. Raise KeyError for a label that the item does not have."""
    claim, block = assigned.claim, assigned.block
    of_item = {cell.cell_key: records.get(cell.cell_key, {}) for cell in item.cells}
    runs_under_claim = _runs_under_claim(of_item, assigned)
    of_claim = {label: runs_under_claim[item.cell(label).cell_key] for label in claim.labels}
    computed = uniform(of_claim, claim.contrasts, block.seeds, claim.metric)
    computed_by_key = {item.cell(label).cell_key: runs for label, runs in computed.runs.items()}
    effective_records = {**runs_under_claim, **computed_by_key}
    results = {
        label: cell_result(item.cell(label), effective_records, item.seeds, claim.metric, claim.endpoint)
        for label in claim.labels
    }
    known_values = _without_seeds(_values_by_cell(claim, results), computed.gaps)
    nowhere = _reached_nowhere(item, claim, known_values)
    values = _without_seeds(known_values, nowhere)
    all_gaps = {
        **_begun_otherwise(item, of_item, assigned),
        **_without_value(claim, results, values),
        **nowhere,
        **computed.gaps,
    }
    gaps = {seed: why for seed, why in sorted(all_gaps.items()) if seed in block.seeds}
    seeds = sorted(set.intersection(*(set(of_cell) for of_cell in values.values())))
    confirmed = [seed for seed in seeds if seed in CONFIRMING]
    judged_seeds = confirmed or seeds
    ends = {label: ends_and_bound(item, effective_records, item.cell(label)) for label in claim.labels}
    collapsed = tuple(collapsed_runs(item, effective_records, cells, ends, seeds) for cells in claim.contrasts)
    below = _below_baseline(claim, ends, judged_seeds)
    caveats = (
        *_below_in_words(below),
        *_still_rising(item, effective_records, claim, judged_seeds),
        *_quoted_in_words(item, values),
        *_unmeasured_in_words(results),
        *_gaps_in_words(gaps),
        *mixtures(computed.runs, claim.contrasts, confirmed, claim.metric),
    )
    room = room_of(item, effective_records, claim)
    judged_values = {label: replace(result, values=values[label]) for label, result in results.items()}
    return Evidence(
        claim=claim,
        differences=_differences(claim, values, collapsed),
        results=judged_values,
        collapsed=collapsed,
        diverged=tuple(f"{label} seed {seed}" for label, result in results.items() for seed in result.diverged),
        below=below,
        caveats=caveats,
        gaps=gaps,
        room=room,
        lacks_room=shortage(room, claim),
        hash=assigned.hash,
        family=assigned.family,
        block=block,
    )


def _differences(
    claim: Claim, values: Mapping[str, Mapping[int, float]], collapsed: Sequence[Runs]
) -> tuple[Mapping[int, float], ...]:
    """Return the difference at each seed, for each contrast; a claim about collapse compares whether runs collapsed."""
    differences = []
    for cells, of_contrast in zip(claim.contrasts, collapsed, strict=True):
        compared = uncollapsed(of_contrast) if claim.endpoint == "collapse" else values
        differences.append(contrast(cells, compared))
    return tuple(differences)


def _below_baseline(claim: Claim, ends: Mapping[str, Ends], judged_seeds: Sequence[int]) -> tuple[str, ...]:
    """Return the cells with a median run that ends below the supervised baseline, for claims about accuracy."""
    if claim.metric != ACCURACY:
        return ()
    below = []
    for label, of_cell in ends.items():
        of_judged = {seed: of_cell[seed] for seed in judged_seeds if seed in of_cell}
        if typically_below(of_judged):
            below.append(label)
    return tuple(below)


def _without_seeds(values: Mapping[str, Mapping[int, float]], gone: Container[int]) -> dict[str, dict[int, float]]:
    """Return the values without these seeds, for every cell."""
    left: dict[str, dict[int, float]] = {}
    for label, of_cell in values.items():
        left[label] = {seed: value for seed, value in of_cell.items() if seed not in gone}
    return left


def _runs_under_claim(records: Records, assigned: Assignment) -> Records:
    """Return the exploratory runs, and the confirmatory runs of the family's block that began under the claim."""

    def counts(run: RunRecord) -> bool:
        if run.seed not in CONFIRMING:
            return run.seed in PILOTS
        return run.seed in assigned.block.seeds and _began_under(run, assigned)

    def with_copies_that_count(run: RunRecord) -> RunRecord:
        return replace(run, copies=tuple(filter(counts, run.copies))) if run.copies else run

    counted: dict[str, dict[int, RunRecord]] = {}
    for key, runs in records.items():
        counted[key] = {seed: with_copies_that_count(run) for seed, run in runs.items() if counts(run)}
    return counted


def _began_under(run: RunRecord, assigned: Assignment) -> bool:
    return any(assigned.hash in family for family in families_in(run.manifest).values())


def _values_by_cell(claim: Claim, results: Mapping[str, CellResult]) -> dict[str, Mapping[int, float]]:
    """Return the values of each cell, with the worst accuracy for runs that diverged.

    A metric without a worst value has no value at the seeds of diverged runs.
    """
    values: dict[str, Mapping[int, float]] = {}
    for label, result in results.items():
        values[label] = result.values
        if claim.endpoint == "reached":
            never = never_reached(result.cell.experiment.federation.rounds)
            values[label] = {**result.values, **dict.fromkeys(result.diverged, never)}
        elif has_worst_value(claim):
            values[label] = {**result.values, **dict.fromkeys(result.diverged, WORST)}
    return values


def has_worst_value(claim: Claim) -> bool:
    """Return whether a run that diverged has the worst value, 0, for this metric and endpoint."""
    endpoint = claim.endpoint
    of_accuracies = endpoint in ("last", "end", "speed", "collapse") or LAST_ROUNDS.fullmatch(endpoint) is not None
    return of_accuracies and claim.metric in HIGHER_IS_BETTER


def _begun_otherwise(item: Item, records: Records, assigned: Assignment) -> dict[int, str]:
    """Return the seeds of the family with a run that did not begin under the claim.

    The result of such a run was known when the claim was made, so that the seed never counts.
    """
    gaps: dict[int, str] = {}
    for label in assigned.claim.labels:
        for seed, run in records.get(item.cell(label).cell_key, {}).items():
            if seed in assigned.block.seeds and run.result and not _began_under(run, assigned):
                gaps.setdefault(seed, f"the run of {label} did not begin under this claim")
    return gaps


def _without_value(
    claim: Claim, results: Mapping[str, CellResult], values: Mapping[str, Mapping[int, float]]
) -> dict[int, str]:
    """Return the confirmatory seeds with a finished run that has no value."""
    gaps: dict[int, str] = {}
    for label, result in results.items():
        for run in result.runs:
            if run.seed in CONFIRMING and run.seed not in values[label]:
                if run.status == "done":
                    gaps.setdefault(run.seed, f"the run of {label} did not measure {claim.metric}")
                elif run.status == "diverged":
                    gaps.setdefault(run.seed, f"the run of {label} diverged, and {claim.metric} has no worst value")
    return gaps


def _reached_nowhere(item: Item, claim: Claim, values: Mapping[str, Mapping[int, float]]) -> dict[int, str]:
    """Return the seeds without a cell that reaches the accuracy, for contrasts with unequal weights.

    At such a seed, it is only known that each cell needs more rounds than its run has. With weights
    1 and -1, the difference is 0. With .75 and -1, it would be -.25 (R + 1) for any cells, and so
    there is no difference.
    """
    if claim.endpoint != "reached":
        return {}
    never: dict[str, set[int]] = {}
    for label, of_cell in values.items():
        last_round = item.cell(label).experiment.federation.rounds
        never[label] = {seed for seed, rounds in of_cell.items() if rounds > last_round}
    nowhere: set[int] = set()
    for cells in claim.contrasts:
        if abs(fsum(cells.values())) > ROUNDING:
            nowhere |= set.intersection(*(never[label] for label in cells))
    return dict.fromkeys(sorted(nowhere), "no run reaches the accuracy, and the weights of the cells are unequal")


def seeds_by_reason(gaps: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the seeds that can never count, by reason."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for seed, why in gaps.items():
        by_reason[why].append(seed)
    return by_reason


def _gaps_in_words(gaps: Mapping[int, str]) -> list[str]:
    """Return a phrase per reason: "seeds 200 to 211 can never count: FedAvg/full on NVIDIA H200, ..."."""
    return [f"{seeds_text(seeds)} can never count: {why}" for why, seeds in seeds_by_reason(gaps).items()]


def _below_in_words(below: Sequence[str]) -> list[str]:
    return [f"relies on cells that typically end below the supervised baseline: {', '.join(below)}"] if below else []


def _quoted_in_words(item: Item, values: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return a phrase on the option that trains the cited cells without values."""
    quoted = [label for label, of_cell in values.items() if item.cell(label).role == "quoted" and not of_cell]
    return [f"--also-quoted trains {', '.join(quoted)}"] if quoted else []


def _unmeasured_in_words(results: Mapping[str, CellResult]) -> list[str]:
    labels = ", ".join(label for label, result in results.items() if not result.measured)
    return [f"runs of {labels} did not measure the metric: --no-reference trains them again"] if labels else []


def _still_rising(item: Item, records: Records, claim: Claim, seeds: Sequence[int]) -> tuple[str, ...]:
    """Return a phrase if a cell has not converged: "judged at round 100: a still gains 0.8 points
    in the last tenth of the run".
    """
    if claim.endpoint not in ("end", "last") and not LAST_ROUNDS.fullmatch(claim.endpoint):
        return ()
    rising: dict[str, float] = {}
    for label in claim.labels:
        runs = records.get(item.cell(label).cell_key, {})
        measured = [gain_at_end(runs[seed], claim.metric) for seed in seeds if seed in runs]
        gains = [gain for gain in measured if gain is not None]
        if gains and fmean(gains) >= STILL_RISING:
            rising[label] = fmean(gains)
    if not rising:
        return ()
    most = max(rising, key=lambda label: rising[label])
    rounds = item.cell(most).experiment.federation.rounds
    return (
        f"judged at round {rounds}: {most} still gains {100 * rising[most]:.1f} points in the last tenth of the run",
    )
