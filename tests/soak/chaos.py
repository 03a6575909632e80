"""Run many launchers on one results folder under random faults: the records equal the records of an undisturbed
launcher.

    python -m tests.soak.chaos [--workers 20] [--runs 60] [--kills 40] [--stops 2] [--removals 2] [--full-disks 1]
        [--default-interval] [--seed 0]

Each worker is a launcher with one process, as in `fssl work --jobs 1`, and is started anew until all runs are done.
SIGKILL comes at random to the process that trains a run, to any one of a launcher's (itself, the server that forks its
worker, the worker), or to all of them; SIGSTOP to one that trains, for longer than it takes until another one has its
run; a run's folder is removed while it is trained; the disk, a small one of its own where root can mount one, is full
for some seconds. Runs are saved after every round, or --default-interval. Ends with 1 where a record differs, clocks
apart, or does not add up, a process ends with a traceback, or, where nothing came to them, a run was trained twice.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmark.errors import FsslError
from benchmark.experiment import Experiment, Federation
from benchmark.records.record import is_recorded, read_run, run_folder
from benchmark.records.run_lock import PATIENCE, read
from benchmark.sharing.verify import record_faults
from sweeps import workers
from sweeps.launcher import launch
from tests.conftest import tiny_experiment
from tests.records import faults
from tests.records.equality import differences
from tests.records.forks import members_of

ROUNDS, ASLEEP = 8, 0.4  # of a run, and seconds in each round
SECONDS_FULL = 8.0
MOST_SECONDS = 3600.0
DISK_MB = 200


def experiments(number: int) -> list[Experiment]:
    """Return cells with one learning rate each."""
    tiny = replace(tiny_experiment(), federation=Federation(K=4, C=4, T=2, rounds=ROUNDS))
    return [replace(tiny, optimizer=replace(tiny.optimizer, lr=0.05 + 0.0001 * index)) for index in range(number)]


def slow_work(pipe: Connection, *arguments: Any) -> None:
    faults.sleep_before_rounds(ASLEEP)
    workers._work(pipe, *arguments)


def slow_work_saved_each_round(pipe: Connection, *arguments: Any) -> None:
    faults.save_every_round()
    slow_work(pipe, *arguments)


def launcher(runs: list[Experiment], results: Path, log: Path, work: Callable[..., None]) -> Any:
    """Start a process in a separate session; its output is in the file."""
    log.touch()  # it may be killed before it can
    process = multiprocessing.get_context("fork").Process(target=_launch, args=(runs, results, log, work))
    process.start()
    return process


def _launch(runs: list[Experiment], results: Path, log: Path, work: Callable[..., None]) -> None:
    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    vars(workers)["_work"] = work
    try:
        launch(workers.LocalWorkers(1, results), runs, results)
    except FsslError as error:
        print(f"fssl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


def trained_now(results: Path) -> list[tuple[Path, int]]:
    """List the folders of the runs that are trained, and who trains them."""
    trained = []
    for path in results.glob("runs/*/*/claim"):
        holder = read(path.parent) or {}
        if "pid" in holder and not (path.parent / "result.json").exists():
            trained.append((path.parent, int(holder["pid"])))
    return trained


def comes(what: str, folder: Path, pid: int, launched: int, draw: random.Random) -> Callable[[], object] | None:
    """Apply the fault to a run in training, or to a launcher.

    Return the function that undoes it later, if there is one.
    """
    match what:
        case "killed while it trains":
            os.kill(pid, signal.SIGKILL)
        case "killed one of a launcher's":
            os.kill(draw.choice(members_of(launched)), signal.SIGKILL)
        case "killed all of these":
            os.killpg(launched, signal.SIGKILL)
        case "stopped":
            os.kill(pid, signal.SIGSTOP)
            return lambda: os.kill(pid, signal.SIGCONT)
        case "removed":
            shutil.rmtree(folder)
        case "full disk":
            filler = folder.parents[2] / "filler"
            faults.fill(filler)
            return lambda: filler.unlink(missing_ok=True)
    return None


def chaos(results: Path, logs: Path, runs: list[Experiment], options: argparse.Namespace) -> tuple[Counter, list[str]]:
    """Apply faults until every launcher has ended regularly; return the faults and the errors."""
    draw, work = random.Random(options.seed), slow_work if options.default_interval else slow_work_saved_each_round
    kills = ["killed while it trains", "killed one of a launcher's", "killed all of these"]
    waiting = [draw.choice(kills) for _ in range(options.kills)] + ["stopped"] * options.stops
    waiting += ["removed"] * options.removals + ["full disk"] * options.full_disks
    draw.shuffle(waiting)
    came, wrong, later = Counter[str](), list[str](), list[tuple[float, Callable[[], object]]]()
    own_logs = [logs / f"{n}.log" for n in range(options.workers)]
    at_work = {log: launcher(runs, results, log, work) for log in own_logs}
    deadline, next_one = time.monotonic() + MOST_SECONDS, time.monotonic() + 5.0
    while at_work and (now := time.monotonic()) < deadline:
        time.sleep(0.05)
        for log, process in list(at_work.items()):
            if process.exitcode is None:
                continue
            del at_work[log]
            if "Traceback" in (said := log.read_text()):
                wrong.append(f"{log.name}: {said[said.index('Traceback') :]}")
            if process.exitcode:
                again = logs / f"{len(list(logs.iterdir()))}.log"
                at_work[again] = launcher(runs, results, again, work)
        for when, undo in [each for each in later if each[0] < now]:
            later.remove((when, undo))
            with contextlib.suppress(ProcessLookupError):
                undo()
        if waiting and now > next_one and at_work and (held := trained_now(results)):
            what, launched = waiting.pop(), draw.choice(list(at_work.values())).pid
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, IndexError):
                if undo_it := comes(what, *draw.choice(held), launched, draw):
                    later.append((now + (SECONDS_FULL if what == "full disk" else PATIENCE + 10.0), undo_it))
                came[what] += 1
            next_one = now + draw.uniform(0.2, 2.0)
    for _, undo in later:
        with contextlib.suppress(ProcessLookupError):
            undo()
    for log, process in at_work.items():
        wrong.append(f"still at work: {log.read_text()[-300:]}")
        os.killpg(process.pid, signal.SIGKILL)
    return came, wrong


def figures_of(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the figures; "wrong" lists the errors."""
    runs, began, attempts = experiments(options.runs), time.monotonic(), 0
    results, whole, logs = (folder / name for name in ("results", "whole", "logs"))
    for place in (results, logs):
        place.mkdir()
    peaceful = launcher(runs, whole, folder / "peaceful.log", workers._work)
    with faults.small_disk(results, DISK_MB) as mounted:
        options.full_disks = options.full_disks if mounted else 0
        came, wrong = chaos(results, logs, runs, options)
        peaceful.join()
        for run in runs:
            place = run_folder(results, run)
            record = read_run(place) if is_recorded(results, run) else None
            if record is None:
                wrong.append(f"{place}: is not done")
                continue
            attempts += len(record.manifest["attempts"])
            wrong += record_faults(record)
            wrong += [f"{place}: {difference}" for difference in differences(results, whole, run)]
    if not came and attempts != len(runs):
        wrong.append(f"{attempts} attempts at {len(runs)} runs, to which nothing came")
    return {"came": came, "attempts": attempts, "wrong": wrong, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"workers": 20, "runs": 60, "kills": 40, "stops": 2, "removals": 2, "full-disks": 1, "seed": 0}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--default-interval", action="store_true", help="of saves; not one after every round")
    with tempfile.TemporaryDirectory() as folder:
        figures = figures_of(parser.parse_args(), Path(folder))
    print(json.dumps(figures, indent=1))
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    from tests.soak.chaos import main as imported  # so that processes find what they are to do

    sys.exit(imported())
