"""Many processes at the same runs, as one program: `python -m tests.records.crowd FOLDER` prints what happened.

Its children are forked, so that six of them do not import torch six times; the parent itself never trains, since
torch's backward pass does not survive a fork.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.errors import RunningElsewhere
from benchmark.experiment import Experiment
from benchmark.federated.environment import prepare
from benchmark.papers.item import Cell, Item
from benchmark.records.record import read_records, run_folder
from benchmark.records.run import run
from reports.site import build
from tests.conftest import tiny_experiment

WORKERS, CELLS = 6, 3
TINY = tiny_experiment()


def cell(number: int) -> Experiment:
    return replace(TINY, optimizer=replace(TINY.optimizer, lr=0.01 + 0.001 * number))


def child(work: Callable[[], object]) -> int:
    """Fork; the child does `work` and ends with 0, or with 1 and a traceback."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def work_through(results: Path, number: int) -> None:
    """Train every cell that nobody else is at, until all are done."""
    waiting = [cell((number + i) % CELLS) for i in range(CELLS)]
    while waiting:
        experiment = waiting.pop(0)
        try:
            run(experiment, results)
        except RunningElsewhere:
            waiting.append(experiment)
            time.sleep(0.02)


def race(results: Path, site: Path) -> dict[str, Any]:
    """All workers at all cells, while the report is built over and over."""
    cells = tuple(Cell(label=f"c{i}", setting={"method": f"c{i}"}, experiment=cell(i)) for i in range(CELLS))
    item = Item(name="ssfl/tab2", title="t", profile="demo", cells=cells, seeds=1)

    def report(folder: Path) -> int:
        records = read_records(results, [c.cell_key for c in cells], with_reference=False)
        build([(item, records)], folder)
        return sum(run.status == "done" for by_seed in records.values() for run in by_seed.values())

    pids = {child(lambda number=number: work_through(results, number)) for number in range(WORKERS)}  # type: ignore[misc]
    codes, seen = [], []
    while pids:
        seen.append(report(site))
        for pid in list(pids):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                pids.remove(pid)
                codes.append(os.waitstatus_to_exitcode(status))
    report(site)
    report(site.parent / "once")
    return {"codes": codes, "done_at_each_build": seen}


class StopsItself(pl.Callback):
    """SIGSTOP in the middle of the run, after round 1."""

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: object) -> None:
        if pl_module.rounds_done == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


def stopped_worker(results: Path, then: signal.Signals) -> dict[str, Any]:
    """A worker that holds a run is stopped, its files look an hour older or newer; then it is woken, or killed."""
    pid = child(lambda: run(TINY, results, callbacks=[StopsItself()]))
    os.waitpid(pid, os.WUNTRACED)  # it has stopped

    def refused() -> None:
        try:
            run(TINY, results)
        except RunningElsewhere:
            os._exit(75)

    tries = []
    for shift in (0, -3600, 3600):
        for path in run_folder(results, TINY).iterdir():
            os.utime(path, (time.time() + shift, time.time() + shift))
        tries.append(ended(child(refused)))
    os.kill(pid, then)
    first = ended(pid)
    return {"tries": tries, "first": first, "second": ended(child(lambda: run(TINY, results)))}


def main(folder: Path) -> None:
    prepare(TINY)  # what it imports is then there in all children
    found = {
        "race": race(folder / "race", folder / "site"),
        "woken": stopped_worker(folder / "woken", signal.SIGCONT),
        "killed": stopped_worker(folder / "killed", signal.SIGKILL),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
