"""What reading ten thousand finished runs takes: CPU seconds and memory of `fssl status` and `fssl report`.

    python -m tests.performance.many_runs [--runs 10000] [--rounds 100] [--commands status report] [--keep FOLDER]

Runs are made of the committed copies: other seeds of the same cells, with other numbers and digests of their own.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from benchmark.errors import FsslError
from benchmark.experiment import Experiment, from_record
from benchmark.files import json_bytes
from benchmark.records.copies import read_copy
from benchmark.records.record import RESULT, ROUNDS, RunRecord, run_digest
from benchmark.records.result import result_of
from tests.conftest import ROOT

SEEDS = (*range(5), *range(100, 200), *range(5, 100))  # of each cell, as many as are needed


def cells(reference: Path) -> list[tuple[Experiment, RunRecord]]:
    """A committed copy of each cell, where it still is of this cell."""
    found = []
    for folder in sorted(reference.iterdir()):
        copy = read_copy(min(folder.glob("seed=*.json.gz")))
        try:
            experiment = from_record(copy.experiment)
        except FsslError:
            continue
        if experiment.cell_key == copy.cell_key and copy.status == "done":
            found.append((experiment, copy))
    return found


def write(results: Path, experiment: Experiment, copy: RunRecord, seed: int, rounds: int) -> None:
    """A run of another seed: metrics of the evaluated rounds in every round, each up to a percent smaller."""
    draw, metrics = random.Random(f"{copy.cell_key} {seed}"), dict[str, Any]()
    lines = []
    for line in copy.rounds[:rounds]:
        metrics |= line
        moved = {
            name: value * draw.uniform(0.99, 1.0) if isinstance(value, float) else value
            for name, value in metrics.items()
        }
        clocks = {"time/round_seconds": 0.5, "time/cpu_seconds": 0.5}
        lines.append({"cell_key": copy.cell_key, "seed": seed, **moved, **clocks})
    folder = results / "runs" / copy.cell_key / f"seed={seed}"
    folder.mkdir(parents=True)
    (folder / ROUNDS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "experiment.json").write_bytes(json_bytes({**copy.experiment, "seed": seed}))
    (folder / "manifest.json").write_bytes(json_bytes(copy.manifest))
    result = result_of(
        experiment.with_seed(seed),
        lines,
        status="done",
        exchange=copy.result.get("exchange") or {},
        cpu_seconds_after=0.0,
        error=None,
    )
    (folder / RESULT).write_bytes(json_bytes({**result, "digest": run_digest(folder, result)}))


def make(results: Path, runs: int, rounds: int) -> None:
    known = cells(ROOT / "results" / "reference")
    for number, seed in islice(((n, seed) for seed in SEEDS for n in range(len(known))), runs):
        write(results, *known[number], seed, rounds)


def measured(words: list[str]) -> dict[str, float]:
    """Of a command in a process of its own; its children count for the seconds, and the largest for the memory."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmark.cli.main", *words], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "wall_seconds": round(time.monotonic() - began, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100, help="of a run at most")
    parser.add_argument("--commands", nargs="+", default=["status", "report"])
    parser.add_argument("--keep", type=Path, help="the folder of records; one that is there is read again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = options.keep or Path(folder, "results")
        if not results.exists():
            make(results, options.runs, options.rounds)
        size = sum(path.stat().st_size for path in results.rglob("*") if path.is_file())
        print(f"{len(list(results.glob('runs/*/*')))} runs, {size / 1e6:.0f} MB")
        for command in options.commands:
            more = ["--site", f"{folder}/site"] if command == "report" else []
            print(command, measured([command, *more, "--results", str(results)]), flush=True)
        pages = sum(path.stat().st_size for path in Path(folder, "site").rglob("*") if path.is_file())
        print(f"{pages / 1e6:.0f} MB of pages")


if __name__ == "__main__":
    main()
