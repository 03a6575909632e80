"""Many launchers on one folder of results, and what may come to them: the records are those of one left in peace.

    python -m tests.soak.chaos [--workers 20] [--runs 60] [--kills 40] [--stops 2] [--removals 2] [--full-disks 1]
        [--default-interval] [--seed 0] [--json FILE]

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
from benchmark.records.claim import PATIENCE, read
from benchmark.records.files import write_json
from benchmark.records.record import is_recorded, read_run, run_folder
from benchmark.records.verify import record_faults
from sweeps import processes
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
    """Cells of one learning rate each."""
    tiny = replace(tiny_experiment(), federation=Federation(K=4, C=4, T=2, rounds=ROUNDS))
    return [replace(tiny, optimizer=replace(tiny.optimizer, lr=0.05 + 0.0001 * index)) for index in range(number)]


def slow_work(pipe: Connection, *arguments: Any) -> None:
    faults.sleep_before_rounds(ASLEEP)
    processes._work(pipe, *arguments)


def slow_work_saved_each_round(pipe: Connection, *arguments: Any) -> None:
    faults.save_every_round()
    slow_work(pipe, *arguments)


class Launcher:
    """A process of its own session; what it says is in a file."""

    def __init__(self, runs: list[Experiment], results: Path, log: Path, work: Callable[..., None] | None) -> None:
        self.log = log
        log.touch()  # it may be killed before it can
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_launch, args=(runs, results, log, work))
        self.process.start()
        self.pid: int = self.process.pid or 0


def _launch(runs: list[Experiment], results: Path, log: Path, work: Callable[..., None] | None) -> None:
    os.setsid()
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if work is not None:
        vars(processes)["_work"] = work
    try:
        launch(processes.LocalWorkers(1, results), runs, results)
    except FsslError as error:
        print(f"fssl: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


class Chaos:
    """What came to the launchers, and what became of them."""

    def __init__(self, results: Path, runs: list[Experiment], logs: Path, options: argparse.Namespace) -> None:
        self.results, self.runs, self.logs = results, runs, logs
        self.work = slow_work if options.default_interval else slow_work_saved_each_round
        self.draw = random.Random(options.seed)
        counts = {"kill": options.kills, "stop": options.stops, "removal": options.removals, "full": options.full_disks}
        self.waiting = [what for what, count in counts.items() for _ in range(count)]
        self.draw.shuffle(self.waiting)
        self.later: list[tuple[float, Callable[[], object]]] = []  # when, what
        self.launchers = [self._launcher(number) for number in range(options.workers)]
        self.came, self.ends, self.wrong = Counter[str](), Counter[str](), list[str]()

    def _launcher(self, number: int) -> Launcher:
        count = len(list(self.logs.iterdir()))
        return Launcher(self.runs, self.results, self.logs / f"{number}-{count}.log", self.work)

    def run(self) -> None:
        """Until every launcher has ended in peace."""
        deadline, next_one = time.monotonic() + MOST_SECONDS, time.monotonic() + 5.0
        while self.launchers and (now := time.monotonic()) < deadline:
            time.sleep(0.05)
            for place, launcher in enumerate(list(self.launchers)):
                self._look(place, launcher)
            for when, act in [each for each in self.later if each[0] < now]:
                self.later.remove((when, act))
                act()
            if self.waiting and now > next_one and self._comes(self.waiting[-1]):
                self.waiting.pop()
                next_one = now + self.draw.uniform(0.2, 2.0)
        for _, act in self.later:
            act()
        for launcher in self.launchers:
            self.wrong.append(f"still at work: {launcher.log.read_text()[-300:]}")
            os.killpg(launcher.pid, signal.SIGKILL)

    def _look(self, place: int, launcher: Launcher) -> None:
        code = launcher.process.exitcode
        if code is None:
            return
        said = launcher.log.read_text()
        self.ends[f"exit code {code}"] += 1
        if "Traceback" in said:
            self.wrong.append(f"{launcher.log.name}: {said[said.index('Traceback') :]}")
        at = self.launchers.index(launcher)
        self.launchers[at : at + 1] = [] if code == 0 else [self._launcher(place)]

    def _comes(self, what: str) -> bool:
        """Whether there was something that it could come to."""
        held = [
            (path.parent, int(holder["pid"]))
            for path in self.results.glob("runs/*/*/claim")
            if "pid" in (holder := read(path.parent) or {}) and not (path.parent / "result.json").exists()
        ]
        if not held:
            return False
        folder, pid = self.draw.choice(held)
        launcher = self.draw.choice(self.launchers).pid
        if what == "kill":
            what = self.draw.choice(["killed while it trains", "killed one of a launcher's", "killed all of these"])
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, IndexError):
            if what == "killed while it trains":
                os.kill(pid, signal.SIGKILL)
            elif what == "killed one of a launcher's":
                os.kill(self.draw.choice(members_of(launcher)), signal.SIGKILL)
            elif what == "killed all of these":
                os.killpg(launcher, signal.SIGKILL)
            elif what == "stop":
                os.kill(pid, signal.SIGSTOP)
                self.later.append((time.monotonic() + PATIENCE + 10.0, lambda: _wake(pid)))
            elif what == "removal":
                shutil.rmtree(folder)
            else:
                filler = self.results / "filler"
                faults.fill(filler)
                self.later.append((time.monotonic() + SECONDS_FULL, lambda: filler.unlink(missing_ok=True)))
            self.came[what] += 1
            return True
        return False


def _wake(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def chaos(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The figures; "wrong" lists what should not be."""
    runs, began, attempts = experiments(options.runs), time.monotonic(), 0
    results, whole, logs = (folder / name for name in ("results", "whole", "logs"))
    for place in (results, logs):
        place.mkdir()
    peaceful = Launcher(runs, whole, folder / "peaceful.log", None)
    with faults.small_disk(results, DISK_MB) as mounted:
        options.full_disks = options.full_disks if mounted else 0
        chaos = Chaos(results, runs, logs, options)
        chaos.run()
        peaceful.process.join()
        for run in runs:
            place = run_folder(results, run)
            record = read_run(place) if is_recorded(results, run) else None
            if record is None:
                chaos.wrong.append(f"{place}: is not done")
                continue
            attempts += len(record.manifest["attempts"])
            chaos.wrong += record_faults(record, place)
            chaos.wrong += [f"{place}: {difference}" for difference in differences(results, whole, run)]
    if not chaos.came and attempts != len(runs):
        chaos.wrong.append(f"{attempts} attempts at {len(runs)} runs, to which nothing came")
    return {
        "command": " ".join(["python -m tests.soak.chaos", *sys.argv[1:]]),
        "came": chaos.came,
        "did_not_come": Counter(chaos.waiting),
        "launchers_ended": chaos.ends,
        "attempts": attempts,
        "wrong": chaos.wrong,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"workers": 20, "runs": 60, "kills": 40, "stops": 2, "removals": 2, "full-disks": 1, "seed": 0}
    for name, number in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--default-interval", action="store_true", help="of saves; not one after every round")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = chaos(options, Path(folder))
    print(json.dumps(figures, indent=1))
    if options.json:
        write_json(options.json, figures)
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    from tests.soak.chaos import main as imported  # so that processes find what they are to do

    sys.exit(imported())
