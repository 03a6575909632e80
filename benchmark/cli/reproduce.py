"""`fssl reproduce`: plan, run only what is missing, print the table with published, ours, n, verdict.

`fssl work` does the same without the table: one more worker at what is missing. What trains, tells the cost of runs or
draws pages is loaded where it is needed: a table of which nothing is missing is printed at once.
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmark.cli.main import DEFAULT_SITE, ROOT, add_places
from benchmark.cli.scope import (
    add_launch,
    add_quoted,
    add_reference,
    add_scope,
    checked_launch,
    chosen_items,
    seeds_of,
    side_by_side,
    uses_reference,
)
from benchmark.errors import ConfigError, DataError, Diverged, FsslError, Stopped
from benchmark.experiment import Experiment
from benchmark.papers.catalogue import ITEMS, VARIANTS
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES
from benchmark.records.record import AGAINST_A_FALL, Records, fall_in_words, result_if_whole, run_folder
from reports.formatting import item_page
from sweeps.grid import checked
from sweeps.launcher import LocalWorkers, Workers, launch
from sweeps.plan import Plan, Seeds, plan, plan_of_runs, restricted
from sweeps.sweep_file import read

TABLE_WIDTH = 100  # columns
BUILT_FROM = ".built-from"  # beside a page


def add(verb: str, command: argparse.ArgumentParser) -> None:
    (_add_work if verb == "work" else _add_reproduce)(command)
    add_launch(command)
    add_reference(command)
    add_places(command)


def _add_reproduce(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Runs what is missing and prints the table. A second call trains nothing; Ctrl-C loses nothing."
    )
    add_scope(command)
    add_quoted(command)
    command.add_argument("--json", action="store_true", help="print one JSON object an item, nothing else")
    command.add_argument("--site", type=Path, default=DEFAULT_SITE, help="where the report is built")
    command.set_defaults(act=reproduce)


def _add_work(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Trains what is missing, and leaves each run that another worker is at alone: start as many of these as you "
        "like, on as many machines as share the folder of results. The run of a worker that died is taken over and "
        "goes on from its last save. Prints no table: `fssl reproduce` does, and `fssl status` tells how far all are."
    )
    add_scope(command, what="ssfl/tab2, a paper (ssfl), all, or sweep files (sweeps/wandb/grids/*.yaml)")
    command.add_argument("--yes", action="store_true", help="take sweep files of more than 10,000 runs")
    command.set_defaults(act=work)


def reproduce(options: argparse.Namespace) -> int:
    checked_launch(options)
    chosen = chosen_items(options)
    with_reference = uses_reference(options)
    seeds, data = seeds_of(options), DataAtHand(options.data_root)

    def look() -> Plan:
        return data.of(plan(chosen, options.results, seeds=seeds, with_reference=with_reference))

    console = Console(stderr=True)
    failure: FsslError | None = None
    planned = look()
    if seeds.confirming and planned.missing:
        tell_of_few_seeds(planned, seeds.confirming)
    while planned.missing and failure is None:  # once, or twice where trials choose what comes after them
        try:
            train(planned, options, console)
        except FsslError as error:  # stopped, or of some runs: the others are done, and shown
            failure = error
        planned = look()
    results = [
        (replace(item, seeds=seeds.number(item)), restricted(planned.records, planned.shown)) for item in planned.items
    ]
    # Who stops it has no time for the site.
    pages = [None] * len(results) if isinstance(failure, Stopped) else pages_of(results, seeds, options)
    for (item, records), page in zip(results, pages, strict=True):
        report = None if page is None else str(page)
        if options.json:
            from reports.exports import item_result

            print(json.dumps(item_result(item, records, report=report)))
        else:
            from reports.terminal import print_item

            print_item(item, records, output(), report=report)
    if failure is not None:
        raise failure
    return Diverged.exit_code if diverged(planned) else data.exit_code()


def tell_of_few_seeds(planned: Plan, seeds: int) -> None:
    """A line for each item that has open claims which so many confirming seeds cannot decide."""
    from benchmark.verdicts.open_claims import could_decide, too_few_in_words

    for item in planned.items:
        if text := too_few_in_words(could_decide([item], planned.records), seeds):
            print(f"fssl: {item.name}: {text}", file=sys.stderr)


def pages_of(results: Sequence[tuple[Item, Records]], seeds: Seeds, options: argparse.Namespace) -> Sequence[Path]:
    """Where each item's page lies in the site, which is built where records, seeds or code are not those of the last
    time."""
    pages = [options.site / item_page(item) for item, _ in results]
    seen = f"{seeds} {state_of(options.results)}"
    if any(not page.is_file() or _seen_by(page) != seen for page in pages):
        from benchmark.cli.report import Reader, on_disk
        from reports.site import build

        mine, reader = {(item.name, item.profile) for item, _ in results}, Reader()
        found = on_disk((*ITEMS, *VARIANTS), PROFILES, options.results, reader)
        others = [pair for pair in found if (pair[0].name, pair[0].profile) not in mine]
        build(results, options.site, others=others, troubles=reader.troubles)
        for page in pages:
            page.with_name(BUILT_FROM).write_text(seen)
    return pages


def _seen_by(page: Path) -> str:
    """What the page was built from, if `reproduce` built it."""
    path = page.with_name(BUILT_FROM)
    return path.read_text() if path.is_file() else ""


def state_of(results: Path) -> str:
    """Differs where a record was written, went on or was removed, or where the code or a printed number changed."""
    records = ("reference", "runs", "runs/*", "runs/*/*", "runs/*/*/rounds.jsonl")
    code = ("benchmark/**/*.py", "reports/*.*", "reports/templates/*", "reports/*/*.md", "results/published/*/*.toml")
    paths = [path for at, names in ((results, records), (ROOT, code)) for name in names for path in at.glob(name)]
    seen = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(paths)]
    return hashlib.sha256(repr(seen).encode()).hexdigest()


def output() -> Console:
    """Standard output; in a file or pipe as wide as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)


def work(options: argparse.Namespace) -> int:
    checked_launch(options)
    look, data, console = _looker(options), DataAtHand(options.data_root), Console(stderr=True)
    planned = data.of(look())
    while planned.missing:  # once, or twice where trials choose what comes after them
        train(planned, options, console)
        planned = data.of(look())
    lost = diverged(planned)
    print(f"{len(planned.runs)} runs done" + (f", {len(lost)} of them diverged" if lost else ""))
    return Diverged.exit_code if lost else data.exit_code()


def _looker(options: argparse.Namespace) -> Callable[[], Plan]:
    """What tells the plan as it stands now: of the items, or of the grids of sweep files."""
    seeds, with_reference = seeds_of(options), uses_reference(options)
    files = [Path(name) for name in options.items if name.endswith((".yaml", ".yml"))]
    if not files:
        chosen = chosen_items(options)
        return lambda: plan(chosen, options.results, seeds=seeds, with_reference=with_reference)
    if len(files) < len(options.items) or seeds != Seeds() or options.also or options.main:
        raise ConfigError("a sweep file names all its runs; leave out ITEM, --also, --main, --seeds and --pilots")
    runs = list(dict.fromkeys(run for path in files for run in checked(read(path), many=options.yes)))
    return lambda: plan_of_runs(runs, options.results, with_reference=with_reference)


def train(planned: Plan, options: argparse.Namespace, console: Console) -> None:
    """Train the plan's missing runs; those that others are at are waited for."""
    from benchmark.cli.progress import TableProgress

    labels = {cell.cell_key: cell.label for item in planned.items for cell in item.cells}
    done = len(planned.runs) - len(planned.missing)
    names = ", ".join(f"{item.name} ({item.profile})" for item in planned.items) or "sweep"
    later = f", {len(planned.waiting)} more when the trials among them are done" if planned.waiting else ""
    started = time.monotonic()
    with workers_for(options, len(planned.missing)) as workers:
        side = min(workers.size, len(planned.missing))
        console.print(f"{names}: {len(planned.missing)} runs to train, {done} done, {side} side by side{later}")
        with TableProgress(planned.missing, options.results, console, labels) as progress:
            standing = launch(
                workers, planned.missing, options.results, watch=progress.watch, patience=options.takeover_after
            )
    tell_of_falls(planned.missing, options.results, console)
    others = len(standing.finished) - standing.trained
    elsewhere = f", {others} by others" if others else ""
    console.print(f"trained {standing.trained} runs{elsewhere} in {(time.monotonic() - started) / 60:.1f} min")


def tell_of_falls(runs: Sequence[Experiment], results: Path, console: Console) -> None:
    """One line for all runs whose accuracy fell far while they were trained."""
    folders = [run_folder(results, run) for run in runs]
    found = [result_if_whole(folder).get("fall") for folder in folders]
    if falls := [fall for fall in found if fall]:
        worst = fall_in_words(max(falls, key=lambda fall: float(fall["depth"])))
        text = f"{len(falls)} of {len(runs)} runs fell while training, the worst: {worst}: {AGAINST_A_FALL}"
        console.print(text, highlight=False, soft_wrap=True)


def diverged(planned: Plan) -> list[Experiment]:
    """The runs that have no number; a diverged trial is merely not chosen, and does not count."""
    counted = [run for run in planned.runs if not run.evaluation.validation]
    recorded = ((run, planned.records.get(run.cell_key, {}).get(run.seed)) for run in counted)
    return [run for run, record in recorded if record is not None and record.status == "diverged"]


class DataAtHand:
    """Leaves the runs of data sets that cannot be read out of plans, and tells of them in the end."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._troubles: dict[str, DataError | None] = {}  # of every data set that was asked for
        self._waiting: Sequence[Experiment] = ()

    def of(self, planned: Plan) -> Plan:
        """The plan without such runs. Raises DataError where nothing else is to be done, and nothing is recorded."""
        self._waiting = [run for run in planned.missing if self._trouble(run.data.name)]
        if self._waiting and len(self._waiting) == len(planned.runs):
            name = self._waiting[0].data.name
            print(f"fssl: {len(self._waiting)} runs wait for {name}", file=sys.stderr)
            raise self._troubles[name] or AssertionError(name)
        waiting = set(self._waiting)
        return replace(
            planned,
            runs=tuple(run for run in planned.runs if run not in waiting),
            missing=tuple(run for run in planned.missing if run not in waiting),
        )

    def _trouble(self, name: str) -> DataError | None:
        from benchmark.data.datasets import load

        if name not in self._troubles:
            try:
                load(name, self._root)
                self._troubles[name] = None
            except DataError as error:
                self._troubles[name] = error
        return self._troubles[name]

    def exit_code(self) -> int:
        """0, or DataError's after a line for each data set that runs wait for."""
        for name in dict.fromkeys(run.data.name for run in self._waiting):
            number = sum(run.data.name == name for run in self._waiting)
            print(f"fssl: {number} runs wait for {name}: {self._troubles[name]}", file=sys.stderr)
        return DataError.exit_code if self._waiting else 0


@contextlib.contextmanager
def workers_for(options: argparse.Namespace, runs: int) -> Iterator[Workers]:
    """Who trains so many runs: processes of this machine, or a Ray cluster's nodes."""
    if options.launcher == "local":
        size = min(side_by_side(options), runs)
        yield LocalWorkers(size, options.results, options.data_root, options.takeover_after, options.devices)
        return
    from sweeps.ray_launcher import LOCAL, RayWorkers, joined

    address = options.address or os.environ.get("RAY_ADDRESS") or LOCAL
    # What Ray has to say of its workers it prints on standard output, which is for results.
    with contextlib.redirect_stdout(sys.stderr), joined(address):
        yield RayWorkers(
            options.results,
            options.data_root,
            options.takeover_after,
            cpus=options.cpus_per_run or 1.0,
            gpus=options.gpus_per_run or 0.0,
            at_most=options.jobs,
        )
