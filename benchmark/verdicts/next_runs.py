"""Which of the missing runs tell most: every cell's first seed, then the seeds that would decide a claim.

Pure functions of the items and their records. Steps are in the order in which they should be run; after a step the
records say more, and the next ones may be others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from benchmark.experiment import Experiment
from benchmark.papers.item import Item
from benchmark.verdicts.judge import judge
from benchmark.verdicts.results import Records, counted

Step: TypeAlias = tuple[Experiment, ...]
Seconds: TypeAlias = Callable[[Experiment], float]
NAMES_A_NUMBER = 3  # seeds from which on a verdict says how many would decide


def steps(items: Sequence[Item], records: Records, missing: Sequence[Experiment], seconds: Seconds) -> list[Step]:
    """The missing runs in steps, each once. `missing`: in the items' own order, trials first; `seconds`: of a run.

    First trials and the cells that have no finished run, by the least seed. Then, for each undecided claim that so
    many of the missing seeds would decide as its verdict names, what it lacks, the cheapest claim first. Then, seed by
    seed, the cells of claims whose verdicts cannot name a number yet; then all other runs, seed by seed, and at the
    end those of claims that more seeds than are missing would decide.
    """
    left = dict.fromkeys(missing)
    found = [_taken(left, _first(records, missing, _cells(items)))]
    near, unknown, far = _claims(items, records, list(left))
    for runs in sorted(near, key=lambda runs: sum(map(seconds, runs))):
        found += [_taken(left, step) for step in _by_seed(runs)]
    found += [_taken(left, step) for step in _by_seed(run for runs in unknown for run in runs)]
    hopeless = {run for runs in far for run in runs}
    found += [_taken(left, step) for step in _by_seed(run for run in left if run not in hopeless)]
    found += [_taken(left, step) for step in _by_seed(left)]
    return [step for step in found if step]


def _cells(items: Iterable[Item]) -> set[str]:
    return {cell.cell_key for item in items for cell in item.cells}


def _first(records: Records, missing: Sequence[Experiment], cells: set[str]) -> Step:
    """Trials, which belong to no cell, and of each cell without a finished run the first one."""
    begun = {key for key, seeds in records.items() if any(r.status in ("done", "diverged") for r in seeds.values())}
    first: dict[object, Experiment] = {}
    for run in missing:
        if run.cell_key not in cells:
            first[run] = run
        elif run.cell_key not in begun:
            first.setdefault(run.cell_key, run)
    return tuple(first.values())


def _claims(
    items: Sequence[Item], records: Records, left: Sequence[Experiment]
) -> tuple[list[list[Experiment]], list[list[Experiment]], list[list[Experiment]]]:
    """The runs that undecided claims lack: those which would decide them; all, where no number of seeds is known yet;
    all, where more would be needed."""
    near: list[list[Experiment]] = []
    unknown: list[list[Experiment]] = []
    far: list[list[Experiment]] = []
    for item in items:
        keys = {cell.label: cell.cell_key for cell in item.cells}
        for judged in judge(item, counted(item, records)) if not item.choices else ():
            wanted = {keys[label] for label in judged.claim.contrast}
            runs = [run for run in left if run.cell_key in wanted]
            if not runs or judged.verdict != "undecided":
                continue
            if judged.seeds_needed is None:
                (unknown if judged.n < NAMES_A_NUMBER else far).append(runs)
                continue
            more = max(1, judged.seeds_needed - judged.n)
            (near if len({run.seed for run in runs}) >= more else far).append(_of_seeds(runs, more))
    return near, unknown, far


def _of_seeds(runs: Sequence[Experiment], number: int) -> list[Experiment]:
    """The runs of the least so many seeds."""
    seeds = sorted({run.seed for run in runs})[:number]
    return [run for run in runs if run.seed in seeds]


def _by_seed(runs: Iterable[Experiment]) -> list[Step]:
    found: dict[int, dict[Experiment, None]] = {}
    for run in runs:
        found.setdefault(run.seed, {})[run] = None
    return [tuple(found[seed]) for seed in sorted(found)]


def _taken(left: dict[Experiment, None], runs: Iterable[Experiment]) -> Step:
    """Those of the runs that are left, which they are no more."""
    found = tuple(run for run in dict.fromkeys(runs) if run in left)
    for run in found:
        del left[run]
    return found


def left_out(items: Sequence[Item], runs: Iterable[Experiment]) -> Mapping[str, list[int]]:
    """For people: the seeds that a cell goes without, by its name."""
    names = {cell.cell_key: f"{item.name} {cell.label}" for item in items for cell in item.cells}
    found: dict[str, list[int]] = {}
    for run in runs:
        found.setdefault(names.get(run.cell_key, "trials"), []).append(run.seed)
    return {name: sorted(set(seeds)) for name, seeds in found.items()}
