"""Collect a user's custom tables for the site, and the runs that belong to no table."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmark.data.folder import public_name
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import from_record
from benchmark.methods.registry import method_name
from benchmark.papers.item import Cell, Item
from benchmark.papers.items import cell_named, items
from benchmark.papers.own import OWN, own_item
from benchmark.records.record import Records, contain_runs, stale_records
from benchmark.verdicts.families import note_own, noted_own, own_files
from sweeps.factors import DEFAULT_PROFILE
from sweeps.grid import Grid
from sweeps.plan import plan, restricted

ItemWithRecords = tuple[Item, Records]


def note_cells(grid: Grid, results: Path) -> None:
    """Write down the claims of custom tables if a sweep names their cells, before its runs begin."""
    files = {str(cell).partition(":")[0] for cell in grid.get("cell", ()) if ".toml:" in str(cell)}
    for profile in grid.get("profile", [DEFAULT_PROFILE]) if files else ():
        note_own(items(sorted(files), profile), results)


def with_own(
    results: Path, known: Sequence[ItemWithRecords], read: Callable[..., Records], troubles: list[str]
) -> list[ItemWithRecords]:
    """Return the known items, the custom tables with runs in this results folder, and an item of other runs."""
    have = {(item.name, item.profile) for item, _ in known}
    every = [*known]
    for item in own_items(results, troubles):
        planned = plan([item], results, read=read)
        if contain_runs(planned.records) and (item.name, item.profile) not in have:
            every.append((planned.items[0], restricted(planned.records, planned.shown)))
    return [*every, *_other_runs(results, every, read, troubles)]


def own_items(results: Path, troubles: list[str]) -> Iterator[Item]:
    """Yield the custom tables that were noted in this results folder when their runs began.

    A table that names code which is not imported is left out, and a line about it is appended to `troubles`.
    """
    for path in own_files(results):
        try:
            noted = noted_own(path)
            yield own_item(Path(noted["path"]).name, noted["file"], noted["profile"], cell_named, trusted=False)
        except DataError as error:
            troubles.append(f"{error}")
        except ConfigError as error:
            troubles.append(f"{path}: {error}; `fssl report FOLDER/{Path(noted['path']).name}` shows it")


def _other_runs(
    results: Path, known: Iterable[ItemWithRecords], read: Callable[..., Records], troubles: list[str]
) -> Iterator[ItemWithRecords]:
    """Yield an item with one row per cell of this machine that no item contains; yield nothing without such cells."""
    of_items = {cell.cell_key for item, _ in known for cell in item.cells}
    others = [folder.name for folder in sorted(results.glob("runs/*")) if folder.name not in of_items]
    records = read(results, others, with_reference=False)
    cells = []
    for key, runs in records.items():
        every_run = runs or stale_records(runs)
        first = next(iter(every_run.values()), None)
        if first is None or first.experiment.get("evaluation", {}).get("validation"):  # a trial
            continue
        try:
            experiment = from_record(first.experiment).with_seed(0)
        except ConfigError as error:
            named = {"method": first.experiment["method"]["kind"], "network": first.experiment["model"].get("network")}
            own = {what: str(name) for what, name in named.items() if ":" in str(name)}
            gone = [what for what, name in own.items() if find_spec(name.partition(":")[0].partition(".")[0]) is None]
            type_ = " ".join(f"--{what} {name}" for what, name in own.items())
            absent = ", ".join(own[what] for what in gone)
            why = f"uses {absent}, but its file is missing; put it into this folder, and type {type_}"
            troubles.append(f"{results / 'runs' / key}: {why if gone else error}")
            continue
        setting = {"method": method_name(experiment.method), "data": public_name(experiment.data.name)}
        label = f"{key}: {setting['method']} on {setting['data']}, seeds {', '.join(map(str, every_run))}"
        if experiment.cell_key == key:
            cells.append(Cell(label=label, setting=setting, experiment=experiment))
    if cells:
        item = Item(
            name=f"{OWN}/your-runs",
            title="Your runs",
            profile="custom",
            cells=tuple(cells),
            notes=("Runs of `fssl run` and of sweeps that are in no table or figure; a cell's page has its settings.",),
            columns=("seed",),  # no cell has this key, so that the table is a list of labels
        )
        yield item, records
