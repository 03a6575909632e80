"""Gather the evidence for a claim from the records, seed by seed, as the input of its judgement."""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import fsum
from statistics import fmean

from benchmark.papers.item import ACCURACY, CONFIRMING, LAST_ROUNDS, PILOTS, Claim, ClaimFamily, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult, Records, cell_result
from benchmark.verdicts.collapse import ROUNDING, Runs, collapsed_runs, ends_and_bound, typically_below, uncollapsed
from benchmark.verdicts.families import Assignment, SeedBlock, families_in
from benchmark.verdicts.metrics import gain_at_end, never_reached
from benchmark.verdicts.room import room_of, shortage
from benchmark.verdicts.rule import STILL_RISING, WORST
from benchmark.verdicts.statistics import contrast
from benchmark.verdicts.uniform import mixtures, uniform

HIGHER_IS_BETTER = (
    *("test/accuracy", "test/auroc", "test/precision", "test/recall"),
    *("pseudo/accuracy", "test/unknown_auroc"),
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
    # Seed that lacks runs -> the device that must train them.
    devices: Mapping[int, str] = field(default_factory=dict)
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

    def reachable_on(self, device: str) -> int:
        """Return `reachable` if only this kind of device trains ("a CPU", "NVIDIA H200")."""
        elsewhere = [seed for seed, needed in self.devices.items() if needed != device]
        return min([*self.gaps, *elsewhere], default=self.block.seeds.stop) - self.block.first

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
    begun_otherwise = _begun_otherwise(item, of_item, assigned)
    judging = _judging(of_item, assigned)
    of_claim = {label: judging[item.cell(label).cell_key] for label in claim.labels}
    computed = uniform(of_claim, claim.contrasts, block.seeds, claim.metric)
    records = {**judging, **{item.cell(label).cell_key: runs for label, runs in computed.runs.items()}}
    results = {
        label: cell_result(item.cell(label), records, item.seeds, claim.metric, claim.endpoint)
        for label in claim.labels
    }
    all_values = {label: _values(claim, result) for label, result in results.items()}
    values = _without_seeds(all_values, computed.gaps)
    nowhere = _reached_nowhere(item, claim, values)
    values = _without_seeds(values, nowhere)
    seeds = sorted(set.intersection(*(set(of_cell) for of_cell in values.values())))
    ends = {label: ends_and_bound(item, records, item.cell(label)) for label in claim.labels}
    collapsed = tuple(collapsed_runs(item, records, cells, ends, seeds) for cells in claim.contrasts)
    compared = [uncollapsed(runs) if claim.endpoint == "collapse" else values for runs in collapsed]
    confirmed = [seed for seed in seeds if seed in CONFIRMING]
    judged = confirmed or seeds
    below = []
    for label, both in ends.items():
        of_judged = {seed: both[seed] for seed in judged if seed in both}
        if claim.metric == ACCURACY and typically_below(of_judged):
            below.append(label)
    differing = mixtures(computed.runs, claim.contrasts, confirmed, claim.metric)
    all_gaps = {**begun_otherwise, **_without_value(claim, results, values), **nowhere, **computed.gaps}
    gaps = {seed: why for seed, why in sorted(all_gaps.items()) if seed in block.seeds}
    quoted = [label for label, of_cell in values.items() if item.cell(label).role == "quoted" and not of_cell]
    unmeasured = ", ".join(label for label, result in results.items() if not result.measured)
    impossible = gaps_in_words(gaps)
    caveats = (
        *([f"relies on cells that typically end below the supervised baseline: {', '.join(below)}"] if below else []),
        *_still_rising(item, records, claim, judged),
        *([f"--also-quoted trains {', '.join(quoted)}"] if quoted else []),
        *([f"runs of {unmeasured} did not measure the metric: --no-reference trains them again"] if unmeasured else []),
        *impossible,
        *differing,
    )
    contrasts = zip(claim.contrasts, compared, strict=True)
    differences = tuple(contrast(cells, of_cells) for cells, of_cells in contrasts)
    room = room_of(item, records, claim)
    return Evidence(
        claim=claim,
        differences=differences,
        results=results,
        collapsed=collapsed,
        diverged=tuple(f"{label} seed {seed}" for label, result in results.items() for seed in result.diverged),
        below=tuple(below),
        caveats=caveats,
        gaps=gaps,
        devices=computed.devices,
        room=room,
        lacks_room=shortage(room, claim),
        hash=assigned.hash,
        family=assigned.family,
        block=block,
    )


def _without_seeds(values: Mapping[str, Mapping[int, float]], gone: Container[int]) -> dict[str, dict[int, float]]:
    """Return the values without these seeds, for every cell."""
    left: dict[str, dict[int, float]] = {}
    for label, of_cell in values.items():
        left[label] = {seed: value for seed, value in of_cell.items() if seed not in gone}
    return left


def _judging(records: Records, assigned: Assignment) -> Records:
    """Return the exploratory runs, and the confirmatory runs of the family's block that began under the claim."""

    def counts(run: RunRecord) -> bool:
        if run.seed not in CONFIRMING:
            return run.seed in PILOTS
        return run.seed in assigned.block.seeds and _began_under(run, assigned)

    def counting(run: RunRecord) -> RunRecord:
        return replace(run, copies=tuple(filter(counts, run.copies))) if run.copies else run

    judging: dict[str, dict[int, RunRecord]] = {}
    for key, runs in records.items():
        judging[key] = {seed: counting(run) for seed, run in runs.items() if counts(run)}
    return judging


def _began_under(run: RunRecord, assigned: Assignment) -> bool:
    return any(assigned.hash in family for family in families_in(run.manifest).values())


def _values(claim: Claim, result: CellResult) -> Mapping[int, float]:
    """Return the values, with the worst accuracy for runs that diverged.

    A metric without a worst value has no value at the seeds of diverged runs.
    """
    if claim.endpoint == "reached":
        never = never_reached(result.cell.experiment.federation.rounds)
        return {**result.values, **dict.fromkeys(result.diverged, never)}
    has_worst = claim.endpoint in ("last", "end", "speed", "collapse") or LAST_ROUNDS.fullmatch(claim.endpoint)
    if claim.metric not in HIGHER_IS_BETTER or not has_worst:
        return result.values
    return {**result.values, **dict.fromkeys(result.diverged, WORST)}


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


def gaps_in_words(gaps: Mapping[int, str]) -> list[str]:
    """Return a phrase per reason: "seeds 200 to 211 can never count: FedAvg/full on NVIDIA H200, ..."."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for seed, why in gaps.items():
        by_reason[why].append(seed)
    return [f"{_seeds_in_words(seeds)} can never count: {why}" for why, seeds in by_reason.items()]


def _seeds_in_words(seeds: Sequence[int]) -> str:
    """Return the seeds as a phrase: "seed 102", "seeds 100 to 115" or "seeds 100, 103"."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    if list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seeds {', '.join(map(str, seeds))}"


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
