"""Thousands of synthetic runs on disk, as the recorder lays them out, and how long a report of them takes.

    python -m tests.reports.many FOLDER --runs 10000    # makes FOLDER/runs and measures, each in its own process

Curves and spreads are made up; experiments, names of metrics and sizes of files are those of real runs (100 rounds).
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmark.experiment import Experiment, Federation, to_json
from benchmark.papers.item import Cell, Item, Printed
from benchmark.records.files import write_json
from benchmark.records.provenance import hardware
from benchmark.records.record import digest_of
from benchmark.records.survey import Survey
from benchmark.verdicts.results import Records
from reports.site import build
from tests.reports.fakes import MANIFEST

METHODS = ("FedAvg", "Grouping", "Control", "SemiFL", "FedSwitch")
SEEDS, ROWS = 5, 16  # an item has ROWS x METHODS cells
ROUNDS = 100


def items(runs: int, rounds: int = ROUNDS) -> list[Item]:
    """Enough items of 80 cells for so many runs, five seeds a cell; the last one may have fewer rows."""
    wanted = max(1, runs // SEEDS // len(METHODS))  # rows
    return [
        Item(
            name=f"ssfl/many{first // ROWS}",
            title=f"Synthetic table {first // ROWS}",
            profile="laptop",
            seeds=SEEDS,
            cells=tuple(
                Cell(
                    label=f"{method}/R={row}",
                    setting={"method": method, "R": row},
                    experiment=Experiment(
                        federation=Federation(rounds=rounds, T=1 + place, K=100_000 + row, C=2), profile="laptop"
                    ),
                    published={"test/accuracy": Printed(value=80.0)},
                )
                for row in range(first, min(first + ROWS, wanted))
                for place, method in enumerate(METHODS)
            ),
        )
        for first in range(0, wanted, ROWS)
    ]


def write(made: list[Item], results: Path) -> int:
    """The runs of these items under `results`/runs; returns how many."""
    count = 0
    for item in made:
        for cell in item.cells:
            for seed in range(SEEDS):
                write_run(cell, seed, results / "runs" / cell.cell_key / f"seed={seed}")
                count += 1
    return count


def write_run(cell: Cell, seed: int, folder: Path) -> None:
    rng = np.random.default_rng([seed, cell.experiment.federation.K, cell.experiment.federation.T])
    end, rounds = 0.9 + 0.02 * float(rng.normal()), []
    for t in range(1, cell.experiment.federation.rounds + 1):
        learnt, noise = 1 - math.exp(-t / 12), 0.01 * float(rng.normal())
        line = {"round": t, "cell_key": cell.cell_key, "seed": seed, "local_steps": 160, "time/round_seconds": 0.5}
        line |= {"comm/bytes_up": 8_300_000, "comm/bytes_down": 8_300_000}
        line |= {"pseudo/kept": 0.6 + 0.2 * learnt + noise, "pseudo/accuracy": 0.5 + 0.4 * learnt + noise}
        line |= {"server/loss": 2.3 - 2 * learnt + noise, "client/loss": 1.3 - learnt + noise}
        line["diversity/delta/l2/squared/clients"] = 1 + math.exp(-t / 20) + noise
        if t % 10 == 0:
            line |= {"test/accuracy": end * learnt, "test/loss": 2.2 - 2 * learnt}
        rounds.append(line)
    last = {name: value for name, value in rounds[-1].items() if name not in ("round", "cell_key", "seed")}
    experiment = json.dumps(to_json(replace(cell.experiment, seed=seed)), indent=1).encode()
    lines = "".join(json.dumps(line) + "\n" for line in rounds).encode()
    manifest = {**MANIFEST, "attempts": [{"from_round": 0, "started": "2026-11-21T04:57:37Z"}]}
    result = {
        "status": "done",
        "cell_key": cell.cell_key,
        "seed": seed,
        "last": last,
        "selection": "last",
        "numerics": 1,
    }
    result |= {
        "rounds": len(rounds),
        "wall_seconds": 60.0,
        "cost": {"local_steps": 16_000, "bytes_up": 1, "bytes_down": 1},
    }
    result["digest"] = digest_of(experiment, lines, manifest, result)
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"experiment.json": experiment, "rounds.jsonl": lines}
    contents |= {"manifest.json": json.dumps(manifest).encode(), "result.json": json.dumps(result).encode()}
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def read(made: list[Item], results: Path) -> list[tuple[Item, Records]]:
    survey = Survey()
    found = [(i, survey.read(results, (c.cell_key for c in i.cells), with_reference=False)) for i in made]
    assert not survey.troubles, survey.troubles[:3]
    return found


def measure(what: str, runs: int, folder: Path) -> dict[str, float]:
    """In this process and those that it starts: seconds and CPU-seconds."""
    from reports.pages.front import front_values
    from reports.render import render
    from reports.site import item_page

    made = items(runs)
    started, cpu = time.monotonic(), _cpu_seconds()
    results = read(made, folder)
    if what == "index":
        hrefs = {(item.name, item.profile): item_page(item).as_posix() for item, _ in results}
        render(Path("index.html"), "index.html", {**front_values(results, hrefs, []), "tuned": []})
    else:
        build(results, folder / "site")
    return {"seconds": time.monotonic() - started, "cpu_seconds": _cpu_seconds() - cpu}


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def watched(command: list[str]) -> dict[str, float]:
    """What the command measures, and the most memory that it and its children ever had together (MiB): pages that they
    share count once. Looked at four times a second."""
    most = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            most = max(most, _memory(process.pid))
            time.sleep(0.25)
        assert process.stdout is not None and process.returncode == 0
        return {**json.loads(process.stdout.read()), "memory_MiB": most}


def _memory(pid: int) -> float:
    """MiB of a process and of what it started, each shared page in equal parts of those that share it."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # has just ended
        return 0.0
    own = int(rollup.split("\nPss:")[1].split()[0]) / 1024
    return own + sum(_memory(int(child)) for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--measure", choices=["index", "all"], help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write it there")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.runs, options.folder)))
        return
    made = items(options.runs)
    print(json.dumps({"runs": write(made, options.folder), "items": len(made)}), flush=True)
    taken: dict[str, Any] = {}
    steps = [("the index", "index"), ("everything", "all"), ("nothing changed", "all"), ("one new run", "all")]
    for name, what in steps:
        if name == "one new run":
            cell = made[0].cells[0]
            result = _first_folder(options.folder, cell) / "manifest.json"
            result.write_text(result.read_text().replace("04:57:37Z", "05:57:37Z"))
        command = [sys.executable, "-m", "tests.reports.many", str(options.folder), "--runs", str(options.runs)]
        command += ["--measure", what]
        taken[name] = {key: round(value, 1) for key, value in watched(command).items()}
        print(json.dumps({"what": name, **taken[name]}), flush=True)
    if options.json:
        what = f"a report of {options.runs} runs, each step in a process of its own"
        again = "python -m tests.reports.many FOLDER --json results/benchmarks/report.json"
        write_json(options.json, {"what": what, "command": again, "hardware": hardware(), "steps": taken})


def _first_folder(results: Path, cell: Cell) -> Path:
    return results / "runs" / cell.cell_key / "seed=0"


if __name__ == "__main__":
    main()
