"""Whether bfloat16 may be the laptop profile's precision: one cell that learns, in both, paired over five seeds.

    python -m tests.performance.bf16_accuracy FOLDER [--json results/benchmarks/bf16.json]

The rule, fixed before any run: the 90 % interval of the paired difference in test accuracy (Student's t, the last
round's model) lies within half a point of zero. Runs are ordinary records under FOLDER: interrupted, it goes on.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark.experiment import Experiment
from benchmark.papers.ssfl import ITEMS
from benchmark.records.record import run_folder
from benchmark.verdicts.statistics import paired, t_factor
from sweeps.launcher import launch
from sweeps.processes import LocalWorkers

CELL, SEEDS, LEVEL, MARGIN = "Grouping/full", range(5), 0.90, 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the records")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side")
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    cell = ITEMS["tab2"]("laptop").cell(CELL).experiment
    runs = {
        precision: [replace(cell, precision=precision, seed=seed) for seed in SEEDS] for precision in ("fp32", "bf16")
    }
    in_turn = [run for pair in zip(*runs.values(), strict=True) for run in pair]
    launch(LocalWorkers(options.jobs, options.folder), in_turn, options.folder)
    found = compared({name: [result_of(options.folder, run) for run in each] for name, each in runs.items()})
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def result_of(folder: Path, run: Experiment) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run_folder(folder, run) / "result.json").read_text())
    return result


def compared(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Accuracy by seed in both precisions, and the verdict of the rule."""
    accuracy = {name: dict(zip(SEEDS, map(accuracy_of, each), strict=True)) for name, each in results.items()}
    difference = paired(accuracy["bf16"], accuracy["fp32"])
    assert difference is not None and difference.std is not None  # five seeds of each
    half = t_factor(difference.n, LEVEL) * difference.std
    low, high = difference.mean - half, difference.mean + half
    return {
        "cell": f"ssfl/tab2:{CELL}, profile laptop",
        "accuracy": accuracy,
        "mean_difference": difference.mean,
        "interval_90": [low, high],
        "margin": MARGIN,
        "within": low >= -MARGIN and high <= MARGIN,
    }


def accuracy_of(result: dict[str, Any]) -> float:
    """Raises ValueError for a run that did not end."""
    if result["status"] != "done":
        raise ValueError(f"a run is {result['status']}, not done")
    return float(result["last"]["test/accuracy"])


if __name__ == "__main__":
    main()
