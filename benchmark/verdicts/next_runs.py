"""Which of the missing runs tell most: every cell's first seed, then the seeds of a claim's next look.

Pure functions of the items and their records. Steps are in the order in which they should be run; after a step the
records say more, and the next ones may be others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from benchmark.experiment import Experiment
from benchmark.papers.item import CONFIRMING, Item
from benchmark.verdicts.judge import judge
from benchmark.verdicts.results import Records, counted
from benchmark.verdicts.rule import SEEDS

Step: TypeAlias = tuple[Experiment, ...]
Seconds: TypeAlias = Callable[[Experiment], float]


def steps(items: Sequence[Item], records: Records, missing: Sequence[Experiment], seconds: Seconds) -> list[Step]:
    """The missing runs in steps, each once. `missing`: in the items' own order, trials first; `seconds`: of a run.

    First trials and the cells that have no finished run, by the least seed. Then, for each claim that is not decided,
    the seeds up to its next look, the cheapest claim first. Then, seed by seed, the cells of claims that nothing
    missing brings to a look (pilot seeds); then all other runs, seed by seed, and at the end those of claims that not
    even the last look is likely to decide.
    """
    left = dict.fromkeys(missing)
    found = [_taken(left, _first(records, missing, _cells(items)))]
    near, pilots, far = _claims(items, records, list(left))
    for runs in sorted(near, key=lambda runs: sum(map(seconds, runs))):
        found += [_taken(left, step) for step in _by_seed(runs)]
    found += [_taken(left, step) for step in _by_seed(run for runs in pilots for run in runs)]
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
    """The runs that undecided claims lack: up to their next look; pilots, which bring no look nearer; and those of
    claims beyond reach."""
    near: list[list[Experiment]] = []
    pilots: list[list[Experiment]] = []
    far: list[list[Experiment]] = []
    for item in items:
        keys = {cell.label: cell.cell_key for cell in item.cells}
        for judged in judge(item, counted(item, records)) if not item.choices else ():
            wanted = {keys[label] for label in judged.claim.labels if label in keys}
            runs = [run for run in left if run.cell_key in wanted]
            to_look = [run for run in runs if run.seed in CONFIRMING and run.seed % SEEDS < judged.next_look]
            if judged.futile:
                far.append(runs)
            elif to_look:
                near.append(to_look)
            elif judged.next_look:
                pilots.append([run for run in runs if run.seed not in CONFIRMING])
    return near, pilots, far


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
