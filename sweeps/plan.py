"""List the runs of tables and figures that are wanted, finished or missing. A shared run is listed once."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from benchmark.experiment import Experiment
from benchmark.papers.bounds import bound_of
from benchmark.papers.item import CONFIRMING, Item
from benchmark.records.collect import read_records
from benchmark.records.identity import look_again
from benchmark.records.record import FINISHED, CellRecords, Records, RunRecord, select_seeds
from benchmark.verdicts.cell_results import seeds_awaited
from benchmark.verdicts.families import closed, judging_family

Run = tuple[str, int]  # cell key and seed


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The distinct runs of some tables and figures, in their order and seed by seed, or of a grid."""

    runs: tuple[Experiment, ...]
    records: Records
    items: tuple[Item, ...] = ()  # with the cells that trials have chosen; empty for a grid
    shown: tuple[Experiment, ...] = ()  # the runs, and existing runs of cited cells
    left_out: tuple[Experiment, ...] = ()  # missing runs of confirmatory seeds that can decide no open claim
    waiting: tuple[Experiment, ...] = ()  # runs of cells that trials choose, with the first setting instead of the best

    def finished(self, run: Experiment) -> RunRecord | None:
        """Return the run record of a run that is done or diverged; return None if the run is missing."""
        record = self.records.get(run.cell_key, {}).get(run.seed)
        return record if record is not None and record.status in FINISHED else None

    @cached_property
    def missing(self) -> tuple[Experiment, ...]:
        return tuple(run for run in self.runs if self.finished(run) is None)

    @property
    def diverged(self) -> list[Experiment]:
        """List the diverged runs, which have no result. A diverged trial does not count, because it is not chosen."""
        diverged = []
        for run in self.runs:
            record = None if run.evaluation.validation else self.finished(run)
            if record is not None and record.status == "diverged":
                diverged.append(run)
        return diverged


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """The requested numbers of seeds per cell. If neither is given, `seeds_awaited` selects the seeds."""

    pilots: int | None = None
    confirming: int | None = None
    decisive: bool = False  # only the confirmatory runs that can decide an open claim

    def pilots_of(self, item: Item) -> int:
        return self.pilots or (item.seeds if self.confirming is None and self.pilots is None else 0)

    def number(self, item: Item) -> int:
        return self.pilots_of(item) + (self.confirming or 0)


PROFILES_SEEDS = Seeds()
NONE: Records = {}


def wanted(
    items: Iterable[Item], seeds: Seeds = PROFILES_SEEDS, records: Records = NONE, *, shown: bool = False
) -> tuple[Experiment, ...]:
    """Return every run of the items once. All first seeds precede all second seeds, so that a table fills evenly.

    `records` are the existing run records; they select the seeds if no number of seeds is requested. If `shown` is
    true, include the runs of cited cells, which are not trained.
    """
    runs: dict[tuple[int, str], Experiment] = {}
    for item in items:
        firsts = _first_seeds(item) if seeds.confirming else {}
        for cell in item.cells if shown else item.trained:
            confirming = (first + n for first in firsts.get(cell.cell_key, ()) for n in range(seeds.confirming or 0))
            asked = (*range(seeds.pilots_of(item)), *confirming)
            known = records.get(cell.cell_key, {})
            for seed in asked if seeds != PROFILES_SEEDS else seeds_awaited(known, item.seeds):
                runs.setdefault((seed, cell.cell_key), cell.experiment.with_seed(seed))
    return tuple(run for _, run in sorted(runs.items(), key=lambda entry: entry[0][0]))


def _first_seeds(item: Item) -> Mapping[str, list[int]]:
    """Return for each cell the first confirmatory seeds of its claims and of the claims on cells that it bounds.

    These claims may belong to several families. If no claim is about the cell, return the first seed block.
    """
    firsts: dict[str, set[int]] = {}
    for claim in (claim for claim in item.claims if claim.endpoint != "arithmetic"):  # no family judges it
        for cell in (cell for cell in item.cells if cell.label in claim.labels):
            bound = bound_of(cell, item.cells)
            block, _ = judging_family(item, claim, item.closed)
            for one in (cell, bound) if bound is not None else (cell,):
                firsts.setdefault(one.cell_key, set()).add(block.first)
    return {cell.cell_key: sorted(firsts.get(cell.cell_key, {item.confirms_from})) for cell in item.cells}


def _read(results: Path, cell_keys: Iterable[str], *, with_reference: bool, tell: bool) -> Records:
    """Read the run records. An unreadable record counts as missing; if `tell`, print an error on standard error."""
    troubles: list[str] = []
    records = read_records(results, cell_keys, with_reference=with_reference, troubles=troubles)
    for trouble in troubles if tell else ():
        print(f"fssl: {trouble}", file=sys.stderr)
    return records


def plan(
    items: Sequence[Item],
    results: Path,
    *,
    seeds: Seeds = PROFILES_SEEDS,
    with_reference: bool = True,
    tell: bool = True,
    read: Callable[..., Records] | None = None,
) -> Plan:
    """Plan the runs of the items.

    If `tell`, print which run records cannot be read. `read` may be a function that caches the run records.
    """
    look_again()
    read = read or partial(_read, tell=tell)
    trials = tuple(trial for item in items for choice in item.choices for trial in choice.trials.values())
    tried = read(results, (trial.cell_key for trial in trials), with_reference=with_reference)
    score = partial(_score, tried)
    resolved = tuple(replace(item.resolved(score), closed=closed(item, results)) for item in items)
    keys = (cell.cell_key for item in resolved for cell in item.cells)
    records = {**read(results, keys, with_reference=with_reference), **tried}
    runs = tuple(dict.fromkeys((*trials, *wanted(resolved, seeds, records))))
    shown = tuple(dict.fromkeys((*trials, *wanted(resolved, seeds, records, shown=True))))
    left_out = _undecidable(resolved, runs, records, seeds)
    waiting: list[Experiment] = []
    for item in resolved:
        for choice in item.choices:
            first_final = next(iter(choice.finals.values()))
            waiting += [first_final.with_seed(number) for number in range(seeds.number(item))]
    return Plan(
        items=resolved,
        runs=tuple(run for run in runs if run not in left_out),
        left_out=tuple(left_out),
        records=records,
        shown=shown,
        waiting=tuple(waiting),
    )


def _undecidable(
    items: Sequence[Item], runs: Sequence[Experiment], records: Records, seeds: Seeds
) -> dict[Experiment, None]:
    """Return the missing confirmatory runs that can decide no open claim, if `seeds` asks for decisive runs only.

    No claim can be judged in an item that waits for trials, so its runs are left out only after the trials.
    """
    if not (seeds.decisive and seeds.confirming):
        return {}
    from sweeps.deciding import open_claims  # judges claims, which other plans do not need

    used: set[Run] = set()
    for item in items:
        if item.choices:
            used.update((run.cell_key, run.seed) for run in wanted([item], seeds))
        else:
            used.update(open_claims(item, records, seeds.confirming).runs)
    finished = {(key, seed) for key, of_cell in records.items() for seed, run in of_cell.items() if _is_finished(run)}
    confirmatory = (run for run in runs if run.seed in CONFIRMING)
    return {run: None for run in confirmatory if (run.cell_key, run.seed) not in used | finished}


def _is_finished(record: RunRecord) -> bool:
    return record.status in FINISHED


def plan_of_runs(runs: Sequence[Experiment], results: Path, *, with_reference: bool = True) -> Plan:
    """Plan runs that belong to no table or figure, such as the runs of a grid."""
    look_again()
    records = _read(results, (run.cell_key for run in runs), with_reference=with_reference, tell=True)
    return Plan(runs=tuple(runs), records=records)


def _score(records: Records, trial: Experiment) -> float | None:
    """Return the accuracy on held-out labels after the last round.

    Return -1 for a diverged trial, which is worse than any other, and None for a trial that is not finished.
    """
    record = records.get(trial.cell_key, {}).get(trial.seed)
    if record is None or record.status not in ("done", "diverged"):
        return None
    accuracy = record.last("validation/accuracy") if record.status == "done" else None
    return -1.0 if accuracy is None else accuracy


def restricted(records: Records, runs: Iterable[Experiment]) -> Records:
    """Select the run records of these runs and of confirmatory seeds.

    So a table of three exploratory seeds shows no further exploratory seeds, among records that count and among records
    that do not.
    """
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.cell_key, set()).add(run.seed)
    selected: dict[str, CellRecords] = {}
    for cell_key, chosen in seeds.items():
        is_shown = chosen.union(CONFIRMING).__contains__
        selected[cell_key] = select_seeds(records.get(cell_key, {}), is_shown)
    return selected
