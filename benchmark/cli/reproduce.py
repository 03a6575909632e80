"""`fssl reproduce` and `fssl work` train missing runs; `reproduce` then prints the table and builds its page.

The modules for training and for drawing pages are imported late: a table with nothing missing is printed at once.
"""

import argparse
import contextlib
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmark.cli import queue, shared_options
from benchmark.cli.launch import add_launch, check_launch, train
from benchmark.cli.main import ROOT, add_site, site_of
from benchmark.errors import DataError, Diverged, FsslError, Stopped
from benchmark.experiment import Experiment
from benchmark.papers.item import Item
from benchmark.records.copies import reference_folders
from benchmark.records.record import Records
from benchmark.sharing.bundle import SUBMITTED
from benchmark.verdicts.families import note_own
from reports.formatting import item_page
from reports.own_items import note_cells
from sweeps.launcher import RunFailed
from sweeps.plan import Plan, Seeds, plan, restricted
from sweeps.status import in_words

BUILT_FROM = ".built-from"  # the site's file with the names of the items that it was last built from


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    if verb == "work":
        shared_options.add_scope(command, what=shared_options.ITEMS_OR_FILES)
        command.add_argument("--yes", action="store_true", help="accept sweep files with more than 10,000 runs")
        queue.add_arguments(command)
        command.set_defaults(run_command=work)
    else:
        shared_options.add_scope(command)
        shared_options.add_undecidable(command)
        command.add_argument("--json", action="store_true", help="print only one JSON object per table or figure")
        add_site(command)
        command.set_defaults(run_command=reproduce)
    add_launch(command)
    shared_options.add_reference(command)


def reproduce(options: argparse.Namespace) -> int:
    """Train the missing runs and print the table. A second call trains nothing, and Ctrl-C loses nothing.

    With confirmatory seeds (--seeds), only the runs that can decide an open claim are trained; the command names the
    others.
    """
    check_launch(options)
    chosen, seeds = shared_options.chosen_items(options), shared_options.seeds_of(options)
    look = partial(plan, chosen, options.results, seeds=seeds, with_reference=shared_options.uses_reference(options))
    note_own(chosen, options.results)
    planned = look()
    if seeds.confirming and (planned.missing or planned.left_out):
        warn_of_few_seeds(planned, seeds.confirming)
    say_without_records(planned, options)
    preview = not options.json and not options.main  # show the results so far, before hours of training
    if preview and planned.missing and len(planned.missing) < len(planned.runs):
        for item, records in results_of(planned, seeds):
            show(item, records, options, stderr=True)
    planned, failure = train_missing(planned, look, options)
    if isinstance(failure, DataError) and len(planned.missing) == len(planned.runs):
        raise failure  # there is nothing to show
    results = results_of(planned, seeds)
    # A user who stops the command does not wait for pages.
    site = site_of(options)
    stopped = isinstance(failure, Stopped)
    for item, records in results:
        show(item, records, options, report=None if stopped else str(site / item_page(item)))
    if failure is None and seeds == Seeds() and len(chosen) == 1 and not options.json:
        print(more_seeds(chosen[0], planned, options), end="", flush=True)
    if not stopped:
        build_pages(results, seeds, options.results, site)
    if failure is not None:
        raise failure
    return Diverged.exit_code if planned.diverged else 0


def say_without_records(planned: Plan, options: argparse.Namespace) -> None:
    """Print how many runs would be trained if this installation has no committed records, such as a pip package."""
    of_papers = [run for run in planned.missing if run.profile != "demo"]  # no record of a demo is committed
    if of_papers and not any(folder.is_dir() for folder in reference_folders(options.results)):
        print(
            f"fssl: committed records are not installed, so that {len(planned.missing)} of {len(planned.runs)} runs "
            "have to be trained; `fssl data records --get FILE` unpacks them",
            file=sys.stderr,
            flush=True,
        )


def work(options: argparse.Namespace) -> int:
    """Train the missing runs, in parallel with any number of other workers.

    A worker does not train runs that other workers are training, so you can start any number of workers, on any number
    of machines with the same results folder. If a worker died, its run is resumed from the last save. The command
    prints no table: use `fssl reproduce` for that, and `fssl status` for the progress. `fssl work queue --minutes 12`
    reads the runs from a queue (sweeps/README.md) and begins only the runs that end in time.
    """
    if options.items == [queue.WORD]:
        return queue.work_queue(options)
    queue.refuse_options(options)
    check_launch(options)
    look = partial(shared_options.planned, options)
    first = look()
    if options.seeds and first.missing:
        warn_of_few_seeds(first, options.seeds)
    for grid in shared_options.grids_of(options):
        note_cells(grid, options.results)
    note_own(first.items, options.results)
    planned, failure = train_missing(first, look, options)
    if failure is not None:
        raise failure
    lost = planned.diverged
    print(f"{len(planned.runs)} runs done" + (f", {len(lost)} of them diverged" if lost else ""))
    return Diverged.exit_code if lost else 0


def train_missing(
    planned: Plan, look: Callable[[], Plan], options: argparse.Namespace
) -> tuple[Plan, FsslError | None]:
    """Train the missing runs, then the runs with settings that trials chose.

    Return the plan after training, and the first error. No run is launched twice: a run that is missing after its
    launch stays missing. Runs of a data set that cannot be read are not launched.
    """
    tried: set[Experiment] = set()
    failures: list[FsslError] = []
    errors: dict[str, DataError | None] = {}  # by data set
    while True:
        for name in {run.data.name for run in planned.missing} - errors.keys():
            from benchmark.data.datasets import load  # once, before many processes need the data

            errors[name] = None
            try:
                load(name)
            except DataError as error:
                errors[name] = error
        runs = [run for run in planned.missing if run not in tried and errors[run.data.name] is None]
        if not runs:
            break
        tried.update(runs)
        try:
            train(runs, planned, options)
        except Stopped as error:
            return look(), error
        except FsslError as error:  # of some runs; the others are done
            failures.append(error)
        planned = look()
    if waiting := [run for run in planned.missing if run not in tried]:
        numbers = Counter(run.data.name for run in waiting)
        lines = [f"{number} runs wait for {name}: {errors[name]}" for name, number in numbers.items()]
        failures.append(DataError("; ".join(lines)))
    if planned.missing and not failures:
        run = planned.missing[0]
        text = f"{len(planned.missing)} runs have a result that does not count, such as cell {run.cell_key}"
        failures.append(RunFailed(f"{text}, seed {run.seed}; `fssl verify` shows what is wrong with them"))
    return planned, failures[0] if failures else None


def warn_of_few_seeds(planned: Plan, seeds: int) -> None:
    """Print for each table the claims that this number of confirmatory seeds cannot decide, the runs left out, and
    gaps.
    """
    from sweeps.deciding import claims_of, words_on_seeds

    for item in planned.items:
        for text in words_on_seeds(item, claims_of(item, planned.records), planned, seeds):
            print(f"fssl: {item.name}: {text}", file=sys.stderr)


def results_of(planned: Plan, seeds: Seeds) -> list[tuple[Item, Records]]:
    """Return the plan's tables with their run records, restricted to the requested seeds."""
    records = restricted(planned.records, planned.shown)
    return [(replace(item, seeds=seeds.number(item)), records) for item in planned.items]


def show(
    item: Item, records: Records, options: argparse.Namespace, *, report: str | None = None, stderr: bool = False
) -> None:
    """Print a table or its JSON object. `report` is the path of its page, or None if no page is built."""
    if options.json:
        from reports.exports import item_result

        print(json.dumps(item_result(item, records, report=report)), flush=True)
    else:
        from reports.terminal import WIDTH, print_item, print_primary

        console = Console(stderr=stderr)
        console = console if console.is_terminal else Console(width=WIDTH, stderr=stderr)
        printer = print_primary if options.main else print_item
        printer(item, records, console, report=report)


def more_seeds(item: Item, planned: Plan, options: argparse.Namespace) -> str:
    """Return the cost and the decisions of more seeds, one line per choice; empty if they would decide nothing."""
    from benchmark.cli.plan import cost_here, in_place
    from benchmark.verdicts.open_claims import could_decide

    looks = could_decide(planned.items, planned.records)
    parts = list[str]()
    for seeds in (Seeds(pilots=item.seeds), *(Seeds(confirming=look, decisive=True) for look in looks)):
        more = plan(
            [item], options.results, seeds=seeds, with_reference=shared_options.uses_reference(options), tell=False
        )
        if more.missing:
            total, devices = cost_here(more.missing, options)
            able = sum(number for look, number in looks.items() if look <= (seeds.confirming or 0))
            option = f"--seeds {seeds.confirming} can decide {able} of {sum(looks.values())} open claims"
            cost = f"{len(more.missing)} runs, {in_words(total.seconds / len(devices))} on {in_place(devices)}"
            parts.append(f"{option if seeds.confirming else f'--pilots {seeds.pilots}'}: {cost}")
    return "".join(f"more: {part}\n" for part in parts)


def build_pages(shown: Sequence[tuple[Item, Records]], seeds: Seeds, results: Path, site: Path) -> None:
    """Build the site with the pages of these tables, unless tables, run records, seeds and code are unchanged."""
    names = {(item.name, item.profile) for item, _ in shown}
    mark = site / BUILT_FROM
    state = f"{sorted(names)} {seeds} {state_of(results)}"
    if not mark.is_file() or mark.read_text() != state:
        from benchmark.cli.report import build_site

        build_site(results, site, shown=shown)
        mark.write_text(state)


def state_of(results: Path) -> str:
    """Return a hash that changes if a run record, code or a published number is written, changed or removed."""
    runs = ("runs", "runs/*", "runs/*/*", "runs/*/*/rounds.jsonl")
    records = ("own/*", f"{SUBMITTED}/*", "studies/*", "reference", "reference/*", *runs)
    code = ("benchmark/**/*.py", "benchmark/**/*.toml", "reports/*.*", "reports/templates/*", "reports/*/*.md")
    published = ("results/published/*/*", "results/reference", "results/reference/*")
    pairs = ((results, records), (ROOT, code + published))
    stamps = []
    for path in sorted({path for at, names in pairs for name in names for path in at.glob(name)}):
        with contextlib.suppress(OSError):  # a different process may have removed the file in the meantime
            status = path.stat()
            stamps.append((f"{path}", status.st_mtime_ns, status.st_size))
    return hashlib.sha256(repr(stamps).encode()).hexdigest()
