"""What the fast form of the local step gains where a process has one core, as a launcher's has: rounds in turn.

    python -m tests.performance.local_step [--cell ssfl/tab2:FedAvg/full@laptop@31] [--rounds 12]
        [--json results/benchmarks/local_step.json]

Three runs of a cell (ITEM:LABEL@PROFILE@ROUND) go on from the same weights after that round: by the plain step of the
reference engine, by the cpu engine's with all images, and by the same with the confident ones alone. CPU seconds, which
other work on the machine lengthens least; each ratio is the median of those of single rounds, below 1: less than the
plain step.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmark.federated.engines import PLAIN, JobRunner, ReferenceEngine, Speed
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.records.provenance import hardware
from sweeps.factors import cell_named

FORMS = {"plain": PLAIN, "fast, all images": Speed(confident_only=False), "fast, confident images": Speed()}


class InThisProcess(ReferenceEngine):
    """The reference engine with another form of the local step."""

    def __init__(self, environment: Environment, speed: Speed) -> None:
        self._work = JobRunner(environment, speed)


def measured(environment: Environment, after: int, rounds: int) -> dict[str, Any]:
    """CPU seconds a round, in turn; the round before the first counted one warms up."""
    first = FederatedModule(environment, InThisProcess(environment, Speed()))
    for number in range(1, after + 1):
        first.training_step(number, 0)
    runs = {
        name: FederatedModule(environment, InThisProcess(environment, speed), state=first.state, rounds_done=after)
        for name, speed in FORMS.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    kept = []
    for number in range(after + 1, after + rounds + 2):
        for name, module in runs.items():
            begun = time.process_time()
            module.training_step(number, 0)
            seconds[name].append(time.process_time() - begun)
        kept.append(runs["plain"].metrics.get("pseudo/kept"))
    counted = {name: times[1:] for name, times in seconds.items()}
    return {
        "share_kept": kept[1:],
        "forms": {
            name: {
                "cpu_seconds": round(statistics.median(times), 4),
                "ratio": ratio_of(times, counted["plain"], statistics.median),
                "least": ratio_of(times, counted["plain"], min),
                "greatest": ratio_of(times, counted["plain"], max),
            }
            for name, times in counted.items()
        },
    }


def ratio_of(times: list[float], plain: list[float], which: Any) -> float:
    return round(which([own / other for own, other in zip(times, plain, strict=True)]), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", action="append", help="ITEM:LABEL@PROFILE@ROUND; may be given several times")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    found = {}
    for cell in options.cell or ["ssfl/tab2:FedAvg/full@laptop@31", "ssfl/tab2:FedAvg/full@demo@21"]:
        name, profile, after = cell.rsplit("@", 2)
        environment = prepare(cell_named(name, profile), options.data_root)
        found[cell] = measured(environment, int(after), options.rounds)
        print(cell, json.dumps(found[cell], indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps({"hardware": hardware(), "cells": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
