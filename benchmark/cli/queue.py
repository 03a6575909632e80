"""`fssl work queue` trains the runs that fit into a short time, in the order of a queue file, and writes copies."""

import argparse
import functools
import importlib.metadata
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmark.cli.launch import check_launch, workers_for
from benchmark.cli.main import number
from benchmark.cli.progress import Display, watching
from benchmark.errors import ConfigError, DataError, Diverged, FsslError
from benchmark.experiment import Experiment
from benchmark.plain import expanded
from benchmark.records.seeds import seeds_text

if TYPE_CHECKING:  # imported only for a queue, since `fssl work` does not need these modules
    from sweeps.launcher import Workers
    from sweeps.queue import QueueEntry, Unit
    from sweeps.shelf import Machine
    from sweeps.timetable import Timetable

WORD = "queue"  # typed in place of tables and figures
OPTIONS = {"minutes": "--minutes", "file": "--file", "steps_per_second": "--steps-per-second", "copies": "--copies"}
OF_ITEMS = ("profile", "seeds", "pilots", "main", "rule", "also", "also_quoted", "yes", "with_reference")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options that apply only to the queue."""
    group = command.add_argument_group(f"only with {WORD!r} in the place of ITEM")
    group.add_argument(
        "--minutes", type=number(0.001, kind=float), help="train the runs that fit into this number of minutes"
    )
    group.add_argument("--file", type=expanded, help="the queue file (default: sweeps/queue.toml)")
    group.add_argument(
        "--steps-per-second",
        type=number(1e-6, kind=float),
        metavar="N",
        help="the expected local steps per second of all runs together, used until the first runs have ended (default: "
        "as planned)",
    )
    group.add_argument(
        "--copies",
        type=expanded,
        help="the folder for compact copies of finished runs (default: reference/ in --results)",
    )
    group.add_argument("--json", action="store_true", help="print only one JSON object")


def refuse_options(options: argparse.Namespace) -> None:
    """Raise ConfigError for queue options without the queue, and for the queue together with tables or figures."""
    if WORD in options.items:
        raise ConfigError(f"{WORD!r} cannot be combined with tables or figures; type `fssl work {WORD} --minutes 12`")
    given = [option for name, option in OPTIONS.items() if getattr(options, name) is not None]
    given += ["--json"] if options.json else []
    if given:
        raise ConfigError(f"{given[0]} belongs to the queue; type `fssl work {WORD} --minutes 12` or leave it out")


def work_queue(options: argparse.Namespace) -> int:
    """Train the runs that fit into --minutes, and print which units are finished, which did not begin, and why."""
    began = time.monotonic()
    _check(options)
    check_launch(options)
    from benchmark.papers.items import items
    from benchmark.records.run_lock import locked
    from benchmark.verdicts.families import note_own
    from sweeps.queue import QUEUE, read_queue, units_of
    from sweeps.queue_claims import unjudged
    from sweeps.shelf import Shelf
    from sweeps.timetable import SHARE_TO_SAVE, Pace, Timetable

    file = options.file or QUEUE
    entries = read_queue(file)
    every_unit = units_of(entries, options.results, file)
    for entry in entries:
        note_own(items([entry.item], entry.profile), options.results)
    here = _machine(options)
    units = [unit for unit in every_unit if here.trains(unit.entry)]
    report = Report(file=file, minutes=options.minutes, device=here.device, entries=entries, units=every_unit)
    sentences_of = unjudged(entries, options.results)
    for entry in entries:
        if here.trains(entry):
            report.unjudged += sentences_of[entry.name]
    for sentence in report.unjudged:
        print(f"fssl: {sentence}", file=sys.stderr)
    copies = options.copies or options.results / "reference"
    runs = list(dict.fromkeys(run for unit in units for run in unit.runs))
    failure: FsslError | None = None
    with locked(options.results / "queue"), workers_for(options, runs) as workers:
        table = Timetable(
            units=units,
            shelf=Shelf(options.results, here.device, [copies]),
            results=options.results,
            side_by_side=max(1, workers.size),
            until=began + 60 * options.minutes * (1 - SHARE_TO_SAVE),
            pace=Pace(functools.partial(_planned, options, workers.size)),
            share_left=functools.cache(functools.partial(_share_left, options.results)),
            when_complete=functools.partial(_copy, copies, report, options.results, here),
        )
        waiting = _with_data(table, table.prepare(here))
        if waiting:
            failure = _train(table, waiting, workers, options, report)
        table.close()
    report.seconds = time.monotonic() - began
    report.show(table, as_json=options.json)
    if failure is not None:
        raise failure
    records = [table.shelf.finished(run) for run in table.trained]
    diverged = [record for record in records if record is not None and record.status == "diverged"]
    return Diverged.exit_code if diverged else 0


def _check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that the queue does not have, and if --minutes is missing."""
    if options.minutes is None:
        raise ConfigError(f"--minutes is missing; type `fssl work {WORD} --minutes 12`")
    for name in OF_ITEMS:
        default = None if name == "with_reference" else options.parser.get_default(name)
        if getattr(options, name) != default:
            raise ConfigError(f"--{name.replace('_', '-')}: the queue file names all its runs; leave the option out")
    if options.together is not None:
        raise ConfigError("--together: the queue trains cell by cell, not seed by seed; leave the option out")
    if options.launcher != "local":
        raise ConfigError(f"--launcher {options.launcher}: one machine trains the queue; leave the option out")


def _machine(options: argparse.Namespace) -> "Machine":
    """Describe this machine, and replace `options.devices` by names: all CUDA devices, or the CPU if there is none.

    Raise ConfigError for devices of several kinds.
    """
    from benchmark.federated.devices import card_name, cuda_devices
    from benchmark.federated.processes import CPU
    from benchmark.records.provenance import hardware
    from sweeps.shelf import Machine

    options.devices = options.devices or cuda_devices() or (CPU,)
    cards = sorted({card_name(device) for device in options.devices})
    if len(cards) > 1:
        raise ConfigError(f"--devices: {' and '.join(cards)} are different models; choose devices of one kind")
    packages = {"torch": importlib.metadata.version("torch")}
    engine = {} if cards == [CPU] else {"device": cards[0]}
    return Machine.of({"engine": engine, "hardware": hardware(), "packages": packages})


@functools.cache
def _cost(cell: Experiment, device: str, results: Path) -> tuple[float, float]:
    """Return the local steps of a run, and its planned seconds if no other run trains at the same time."""
    from sweeps.cost import count
    from sweeps.speed import seconds_on

    cost = count(cell).whole
    return cost.local_steps, seconds_on(device, cell, cost, results)


def _planned(options: argparse.Namespace, side_by_side: int, run: Experiment) -> float:
    """Estimate the seconds of a run, with the other runs beside it, before any run of this call has ended."""
    from benchmark.federated.processes import CPU, usable_cores
    from sweeps.timetable import crowding

    if options.steps_per_second is not None:
        return _cost(run.with_seed(0), CPU, options.results)[0] * side_by_side / options.steps_per_second
    seconds = _cost(run.with_seed(0), options.devices[0], options.results)[1]
    return seconds * crowding(side_by_side, options.devices, usable_cores())


def _share_left(results: Path, run: Experiment) -> float:
    """Compute the share of its rounds that a run has left."""
    from benchmark.records.record import run_folder
    from sweeps.status import status_of

    status = status_of(run_folder(results, run), name="", rounds=run.federation.rounds)
    return max(1 - status.share_done, 1 / (1 + run.federation.rounds))


def _copy(copies: Path, report: "Report", results: Path, here: "Machine", unit: "Unit") -> None:
    """Write compact copies of the unit's runs that are in the results folder."""
    from benchmark.records.copies import reference_folders
    from sweeps.shelf import Shelf, write_copy

    shelf = Shelf(results, here.device)
    for run in unit.runs:
        record = shelf.here(run)
        if record is not None and record.result:
            try:
                path = write_copy(copies, record, reference_folders(results))
            except FsslError as error:
                report.problems.append(str(error))
            else:
                report.copies += [path] if path is not None else []


def _with_data(table: "Timetable", runs: Sequence[Experiment]) -> list[Experiment]:
    """Return the runs that have their data set on this machine, and refuse the units of all other
    runs.
    """
    from benchmark.data.datasets import load

    missing: dict[str, str] = {}
    for name in dict.fromkeys(run.data.name for run in runs):
        try:
            load(name)
        except DataError as error:
            missing[name] = f"{name}: {error}"
    for unit in table.units:
        for name in {run.data.name for run in unit.runs} & missing.keys():
            table.refused[unit] = missing[name]
    return [run for run in runs if run.data.name not in missing]


def _train(
    table: "Timetable", runs: Sequence[Experiment], workers: "Workers", options: argparse.Namespace, report: "Report"
) -> FsslError | None:
    """Launch the runs that fit. Return the error of a run or of the launch, or None if the time is up."""
    from sweeps.launcher import Launch, launch
    from sweeps.timetable import TimeIsUp

    console = Console(stderr=True)
    arms = ((run, label) for unit in table.units for run, label in zip(unit.runs, unit.entry.labels, strict=True))
    labels = {run.cell_key: label for run, label in arms}
    console.print(f"queue: {len(runs)} runs to train on {report.device}, {workers.size} side by side", highlight=False)
    with Display(console) as display:
        show = watching(display, runs, options.results, labels)

        def watch(state: Launch) -> None:
            table.watch(state)
            show(state)

        try:
            launch(workers, runs, options.results, watch=watch, fits=table.fits)
        except TimeIsUp:
            report.time_is_up = True
        except FsslError as error:
            return error
    return None


@dataclass(kw_only=True)
class Report:
    """The result of one call, as text and as JSON."""

    file: Path
    minutes: float
    device: str
    entries: Sequence["QueueEntry"]
    units: Sequence["Unit"]
    copies: list[Path] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unjudged: list[str] = field(default_factory=list)  # sentences about claims that no entry's seeds judge
    time_is_up: bool = False
    seconds: float = 0.0

    def show(self, table: "Timetable", *, as_json: bool) -> None:
        """Print the report on standard output."""
        content = self.to_json(table)
        if as_json:
            print(json.dumps(content), flush=True)
            return
        for entry in content["entries"]:
            print(f"{entry['name']} ({entry['item']}, {entry['profile']})")
            for state in ("done before", "finished", "stopped", "not begun"):
                seeds = [unit["seed"] for unit in entry["units"] if unit["state"] == state]
                reasons = Counter(unit["reason"] for unit in entry["units"] if unit["state"] == state)
                why = f": {reasons.most_common(1)[0][0]}" if any(reasons) else ""
                if seeds:
                    print(f"  {state:<12}{seeds_text(seeds)}{why}")
        if self.time_is_up:
            print(f"time is up: {len(table.stopped)} runs stopped with a save; the same command resumes them")
        trained = content["trained"]
        speed = f"{trained['runs']} runs, {trained['local_steps']:,} local steps in {self.seconds:.0f} s"
        print(f"trained {speed}; {len(self.copies)} copies written", flush=True)
        for problem in self.problems:
            print(f"fssl: {problem}", file=sys.stderr)

    def to_json(self, table: "Timetable") -> dict[str, Any]:
        records = [table.shelf.finished(run) for run in table.trained]
        steps = sum(record.result.get("cost", {}).get("local_steps", 0) for record in records if record is not None)
        entries = []
        for entry in self.entries:
            units = [self._unit(unit, table) for unit in self.units if unit.entry is entry]
            entries.append(
                {
                    "name": entry.name,
                    "item": entry.item,
                    "profile": entry.profile,
                    "device": entry.card or entry.device,
                    "local_steps": entry.local_steps,
                    "units": units,
                }
            )
        return {
            "file": self.file.name,
            "minutes": self.minutes,
            "device": self.device,
            "side_by_side": table.side_by_side,
            "seconds": round(self.seconds, 1),
            "time_is_up": self.time_is_up,
            "trained": {"runs": len(table.trained), "local_steps": steps},
            "stopped": len(table.stopped),
            "copies": [str(path) for path in self.copies],
            "troubles": self.problems,
            "unjudged": self.unjudged,
            "entries": entries,
        }

    def _unit(self, unit: "Unit", table: "Timetable") -> dict[str, Any]:
        """Return the unit's seed and state, and why it is not finished."""
        state, reason = "not begun", ""
        if unit in table.before:
            state = "done before"
        elif unit in table.complete:
            state = "finished"
        elif unit in table.refused:
            reason = table.refused[unit]
        elif unit in table.admitted:
            state, reason = "stopped", table.too_long.get(unit, "")
        elif unit in table.units:
            reason = table.too_long.get(unit, "the call ended before it")
        else:
            reason = f"is for {unit.entry.card or unit.entry.device}, and this call trains on {self.device}"
        return {"seed": unit.seed, "state": state, "reason": reason}
