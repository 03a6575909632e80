"""What the records say of a claim, seed by seed: what its judgement is made of.

A cell's bound is labels alone: the same data and labels, the same steps on them, the same seed. A run that ends below
it has collapsed, and so has one that diverged, which counts with the worst that an accuracy can be.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from benchmark.papers.item import ACCURACY, CONFIRMING, PILOTS, Claim, Item
from benchmark.records.families import SEEDS, Family, families_in, first_seed_of, hash_of, name_of
from benchmark.records.record import RunRecord
from benchmark.verdicts.endpoints import LAST_ROUNDS, STILL_RISING, gain_at_end
from benchmark.verdicts.results import CellResult, Records, cell_result, ends_beside_bound, typically_below
from benchmark.verdicts.statistics import contrast

HIGHER_IS_BETTER = ("test/accuracy", "test/auroc", "test/precision", "test/recall", "pseudo/accuracy")
WORST = 0.0  # of these


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`differences` and `survival` have a mapping for each contrast of the claim, from seed to its value."""

    claim: Claim
    differences: tuple[Mapping[int, float], ...]
    # 1 where the cells that should win stand and the others have collapsed, -1 the other way round
    survival: tuple[Mapping[int, float], ...] = ()
    collapsed: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)  # cell -> seed -> whether; none: no bound
    diverged: tuple[str, ...] = ()  # "fedavg/C=47 seed 1"
    below: tuple[str, ...] = ()  # cells whose typical run ends below labels alone
    said_first: tuple[str, ...] = ()  # what a reader has to know before the verdict
    unjudged: str = ""  # why no rule judges it
    hash: str = ""
    family: Family | None = None  # that its runs were begun under; None: no run that confirms it has begun
    first: int = CONFIRMING.start  # of the family's seeds

    @property
    def pilots(self) -> tuple[int, ...]:
        return tuple(seed for seed in self._seeds if seed in PILOTS)

    @property
    def confirming(self) -> tuple[int, ...]:
        """The family's seeds without a gap: which runs have ended must not choose what is judged."""
        seeds = set(self._seeds)
        found = []
        for seed in range(self.first, self.first + SEEDS):
            if seed not in seeds:
                break
            found.append(seed)
        return tuple(found)

    @property
    def _seeds(self) -> list[int]:
        return sorted(set.intersection(*(set(one) for one in self.differences))) if self.differences else []

    def of(self, seeds: Iterable[int], contrast: int) -> list[float]:
        """The contrast's differences at these seeds."""
        return [self.differences[contrast][seed] for seed in seeds]

    def collapsed_of(self, seeds: Sequence[int], contrast: int) -> dict[str, int]:
        """Of each cell of the contrast that has a bound, how many of these runs have collapsed."""
        cells = contrasts(self.claim)[contrast]
        return {label: sum(runs[seed] for seed in seeds) for label, runs in self.collapsed.items() if label in cells}

    def standing(self, seeds: Iterable[int], contrast: int) -> list[int]:
        """Those of the seeds at which no cell of the contrast has collapsed."""
        return [seed for seed in seeds if not any(self.collapsed_of((seed,), contrast).values())]


def contrasts(claim: Claim) -> tuple[Mapping[str, float], ...]:
    return claim.contrasts or (claim.contrast,)


def evidence(item: Item, records: Records, claim: Claim) -> Evidence:
    """Raises KeyError for a claim on a label that the item does not have."""
    shown = {one.label for one in item.shown}
    absent = [label for label in claim.labels if label in shown]
    if absent:
        return Evidence(claim=claim, differences=(), unjudged=f"{absent[0]} is only shown, not run")
    mine = hash_of(item, claim)
    first, family = _begun_under(item, records, claim, mine)
    records = _judging({cell.cell_key: records.get(cell.cell_key, {}) for cell in item.cells}, mine, first)
    found = {
        label: cell_result(item.cell(label), records, item.seeds, claim.metric, claim.endpoint)
        for label in claim.labels
    }
    diverged = tuple(f"{label} seed {seed}" for label, result in found.items() for seed in result.diverged)
    values = {label: _values(claim, result) for label, result in found.items()}
    quoted = [label for label, one in values.items() if item.cell(label).role == "quoted" and not one]
    mixed = _by_several_engines(item, records, claim)
    values = {label: {seed: value for seed, value in one.items() if seed not in mixed} for label, one in values.items()}
    differences = tuple(contrast(one, values) for one in contrasts(claim))
    seeds = sorted(set.intersection(*(set(one) for one in values.values())))
    judged = [seed for seed in seeds if seed in CONFIRMING] or seeds
    stands, below = _against_bounds(item, records, claim, judged) if claim.metric == ACCURACY else ({}, ())
    collapsed = {label: {seed: not up for seed, up in runs.items()} for label, runs in stands.items()}
    known = bool(stands) and set(judged) <= set.intersection(*(set(runs) for runs in stands.values()))
    unbounded = dict.fromkeys(seeds, True)
    standing = {label: stands.get(label, unbounded) for label in claim.labels}
    return Evidence(
        claim=claim,
        differences=differences,
        survival=tuple(contrast(one, standing) for one in contrasts(claim)) if known else (),
        collapsed=collapsed if known else {},
        diverged=diverged,
        below=below,
        said_first=(
            *([f"rests on runs that typically end below labels alone: {', '.join(below)}"] if below else []),
            *_still_rising(item, records, claim, judged),
            *([f"--also-quoted trains {', '.join(quoted)}"] if quoted else []),
            *([f"several engines trained the cells of seeds {', '.join(map(str, mixed))}"] if mixed else []),
        ),
        hash=mine,
        family=family,
        first=first,
    )


def _begun_under(item: Item, records: Records, claim: Claim, mine: str) -> tuple[int, Family | None]:
    """The first seed, and the family, of the runs of the claim's cells that were begun under it."""
    runs = (run for label in claim.labels for run in records.get(item.cell(label).cell_key, {}).values())
    families = {run.seed: families_in(run.manifest).get(name_of(item)) for run in runs if run.seed in CONFIRMING}
    for seed, family in sorted(families.items()):
        if family is not None and mine in family:
            return first_seed_of(seed), family
    return CONFIRMING.start, None


def _judging(records: Records, mine: str, first: int) -> Records:
    """Pilots, and of the runs that confirm those of the family's seeds that were begun under the claim."""

    def counts(run: RunRecord) -> bool:
        if run.seed not in CONFIRMING:
            return run.seed in PILOTS
        of_family = first_seed_of(run.seed) == first
        return of_family and any(mine in family for family in families_in(run.manifest).values())

    return {key: {seed: run for seed, run in runs.items() if counts(run)} for key, runs in records.items()}


def _values(claim: Claim, result: CellResult) -> Mapping[int, float]:
    """With the worst accuracy for runs that diverged; another metric has no worst, and then their seeds are missing."""
    has_worst = claim.endpoint in ("last", "end", "speed") or LAST_ROUNDS.fullmatch(claim.endpoint)
    if claim.metric not in HIGHER_IS_BETTER or not has_worst:
        return result.values
    return {**result.values, **dict.fromkeys(result.diverged, WORST)}


def _by_several_engines(item: Item, records: Records, claim: Claim) -> list[int]:
    """Confirming seeds at which the claim's cells were not all trained by one engine: they are not judged."""
    engines: dict[int, set[str]] = defaultdict(set)
    for label in claim.labels:
        for seed, run in records.get(item.cell(label).cell_key, {}).items():
            engines[seed].add(str(run.manifest.get("engine", {}).get("name")))
    return sorted(seed for seed, names in engines.items() if len(names) > 1 and seed in CONFIRMING)


def _still_rising(item: Item, records: Records, claim: Claim, seeds: Sequence[int]) -> tuple[str, ...]:
    """ "judged at round 100: a still gains 0.8 points in the last tenth of the run"."""
    if claim.endpoint != "end":
        return ()
    rising: dict[str, float] = {}
    for label in claim.labels:
        runs = records.get(item.cell(label).cell_key, {})
        gains = [gain for seed in seeds if seed in runs if (gain := gain_at_end(runs[seed], claim.metric)) is not None]
        if gains and fmean(gains) >= STILL_RISING:
            rising[label] = fmean(gains)
    if not rising:
        return ()
    most = max(rising, key=lambda label: rising[label])
    rounds = item.cell(most).experiment.federation.rounds
    return (
        f"judged at round {rounds}: {most} still gains {100 * rising[most]:.1f} points in the last tenth of the run",
    )


def _against_bounds(
    item: Item, records: Records, claim: Claim, seeds: Sequence[int]
) -> tuple[dict[str, dict[int, bool]], tuple[str, ...]]:
    """For each cell with a bound, whether its runs end at least there; and which cells typically do not."""
    stands: dict[str, dict[int, bool]] = {}
    below: list[str] = []
    for label in claim.labels:
        ends = ends_beside_bound(item, records, item.cell(label))
        if ends:
            stands[label] = {seed: mine >= alone for seed, (mine, alone) in ends.items()}
        if typically_below({seed: both for seed, both in ends.items() if seed in seeds}):
            below.append(label)
    return stands, tuple(below)
