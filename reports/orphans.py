"""Runs of no table or figure, put into items of their own, so that they have pages like all others."""

from collections.abc import Iterable, Iterator

from benchmark.errors import FsslError
from benchmark.experiment import from_json
from benchmark.papers.item import Cell, Item
from benchmark.records.record import Records, RunRecord

NAME = "other/runs"
TITLE = "Runs that belong to no table or figure"


def orphans(records: Records, troubles: list[str]) -> list[tuple[Item, Records]]:
    """An item a profile, its cells in the order of their keys. A run whose experiment cannot be read is told in
    `troubles` and left out."""
    cells: dict[str, list[Cell]] = {}
    for key, runs in sorted(records.items()):
        for cell in _cell(key, runs.values(), troubles):
            cells.setdefault(cell.experiment.profile, []).append(cell)
    found: list[tuple[Item, Records]] = []
    for profile, mine in sorted(cells.items()):
        kept = {cell.cell_key: records[cell.cell_key] for cell in mine}
        seeds = max(seed for runs in kept.values() for seed in runs) + 1
        notes = ("Made one by one (`fssl run`) or for items that have since changed; no seed was wanted of them.",)
        found.append((Item(name=NAME, title=TITLE, profile=profile, cells=tuple(mine), seeds=seeds, notes=notes), kept))
    return found


def _cell(key: str, runs: Iterable[RunRecord], troubles: list[str]) -> Iterator[Cell]:
    """The cell of the first run that can be read; none where that is no run at all."""
    for record in runs:
        try:
            experiment = from_json(record.experiment).with_seed(0)
        except FsslError as error:
            troubles.append(f"{key}/seed={record.seed}: {' '.join(str(error).split())}")
            continue
        if experiment.cell_key != key:
            troubles.append(f"{key}/seed={record.seed}: its experiment is that of cell {experiment.cell_key}")
            continue
        method = str(record.experiment.get("method", {}).get("kind", "unknown"))
        setting: dict[str, str | int | float] = {
            "method": method,
            "data": experiment.data.name,
            "K": experiment.federation.K,
            "C": experiment.federation.C,
            "rounds": experiment.federation.rounds,
        }
        yield Cell(label=f"{method} on {experiment.data.name}, {key[:8]}", setting=setting, experiment=experiment)
        return
