"""Many workers on one folder of results: each run is trained once, whatever is killed in between.

    python -m tests.soak.once [--workers 8] [--cells 200] [--kills 0] [--json FILE]

Every worker is a launcher with one process of its own, as in `fssl work --jobs 1`. With kills, SIGKILL goes to a
training process at a random moment; its run is taken over and goes on. Ends with 1 where a run was trained twice, or
not.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

from benchmark.experiment import Experiment, Federation
from benchmark.records.claim import read
from benchmark.records.record import read_run, run_folder
from benchmark.records.verify import record_faults
from sweeps.launcher import LaunchStatus, launch
from sweeps.processes import LocalWorkers
from tests.conftest import tiny_experiment
from tests.records.equality import FINISHED


def cells(number: int, rounds: int) -> list[Experiment]:
    """Distinct tiny cells: one learning rate each."""
    tiny = replace(tiny_experiment(), federation=Federation(K=4, C=4, T=2, rounds=rounds))
    return [replace(tiny, optimizer=replace(tiny.optimizer, lr=0.05 + 0.0001 * index)) for index in range(number)]


def race(results: Path, *, workers: int, number: int, rounds: int = 3, kills: int = 0, seed: int = 0) -> dict[str, Any]:
    """The figures of such a race; "wrong" lists what should not be."""
    began = time.monotonic()
    runs = cells(number, rounds)

    def work() -> LaunchStatus:
        return launch(LocalWorkers(1, results), runs, results)

    with ThreadPoolExecutor(workers) as pool:
        started = [pool.submit(work) for _ in range(workers)]
        killed = _kill(results, started, kills, random.Random(seed))
        by_each = [future.result().trained for future in started]
    trained = sum(by_each)
    wrong = [trouble for run in runs for trouble in _troubles(run_folder(results, run))]
    if trained > number or (trained < number and not killed):  # killed after its last round, a run is only published
        wrong.append(f"{trained} runs were trained")
    attempts = [len(record.manifest["attempts"]) for run in runs if (record := read_run(run_folder(results, run)))]
    return {
        "workers": workers,
        "cells": number,
        "trained": trained,
        "trained_by_each": by_each,
        "killed": killed,
        "attempts": sum(attempts),
        "wrong": wrong,
        "seconds": round(time.monotonic() - began, 1),
    }


def _kill(results: Path, started: Sequence[Future[LaunchStatus]], kills: int, draw: random.Random) -> int:
    """SIGKILL to processes that hold a claim, one after another; how many there were."""
    killed = 0
    while killed < kills and not all(future.done() for future in started):
        time.sleep(draw.uniform(0.05, 0.5))
        for path in sorted(results.glob("runs/*/*/claim"), key=lambda path: draw.random()):
            holder = read(path.parent) or {}
            if (path.parent / "result.json").exists() or "pid" not in holder:
                continue
            try:
                os.kill(holder["pid"], SIGKILL)
            except ProcessLookupError:
                continue  # it was killed before, and its run waits
            killed += 1
            break
    return killed


def _troubles(folder: Path) -> list[str]:
    """What is wrong with a run that should have been trained once."""
    record = read_run(folder)
    if record is None or record.status != "done":
        return [f"{folder}: is not done"]
    troubles = record_faults(record, folder)
    left = {path.name for path in folder.iterdir()} - FINISHED
    return [*troubles, *(f"{folder}: {name} is left over" for name in sorted(left))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--cells", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = race(
            Path(folder), workers=options.workers, number=options.cells, rounds=options.rounds, kills=options.kills
        )
    command = (
        f"python -m tests.soak.once --workers {options.workers} --cells {options.cells} --rounds {options.rounds} "
        f"--kills {options.kills}"
    )
    text = json.dumps({"command": command, **figures}, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
