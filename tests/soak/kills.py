"""kill -9 at random moments in every method under both local engines, and see that what is started again gives the
numbers of the unbroken run, bit by bit.

    python -m tests.soak.kills [--kills-each 3] [--default-interval] [--seed 0] [--only METHOD or ENGINE] [--json FILE]

A run is killed up to three times: at a random moment (also while it starts), at one of the places of `faults.PLACES`,
and at a random moment again. Workers of the pool are started as in production. Ends with 1 where a run differed, and
names it.

With --default-interval saves are as far apart as in production, and rounds sleep; runs are killed at random moments.
Several runs go side by side.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Any

from benchmark.methods.catalogue import METHODS, method_name
from benchmark.records.files import write_json
from benchmark.records.provenance import commit
from tests.methods.golden import TRACES
from tests.records.equality import differences
from tests.records.faults import PLACES
from tests.records.forks import Forks, lines_of

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "reference": {"engine": "reference"},
    "pool": {"engine": "pool", "workers": 2, "spawned": True},
}
START_UP = {"reference": 0.5, "pool": 6.0}  # seconds in which a run has begun
ROUNDS = 12
TURNS = 5  # how often a pair is tried whose kills came too late
ASLEEP = 1.0  # seconds in each round, with the default interval
SIDE_BY_SIDE = 6  # runs that sleep


def moment(draw: random.Random, kind: str, results: Path, engine: str) -> dict[str, Any]:
    """When a kill comes, as `Forks.run` is told."""
    if kind == "asleep":
        return {"signals": [SIGKILL], "delay": START_UP[engine] + draw.uniform(0.0, 0.8 * ROUNDS * ASLEEP)}
    if kind == "write":
        number = min(lines_of(str(results)) + draw.randint(1, 3), ROUNDS)
        return {"faults": {"happens": ["killed", draw.choice(PLACES), number, str(results)]}}
    if kind == "start":
        return {"signals": [SIGKILL], "delay": draw.uniform(0.0, START_UP[engine])}
    lines = lines_of(str(results)) + draw.randint(1, 3)
    return {"signals": [SIGKILL], "lines": lines, "delay": draw.uniform(0.0, 0.1)}


def survived(
    forks: Forks, trace: str, engine: str, draw: random.Random, *, every_round: bool = True
) -> tuple[int, list[str]]:
    """One run in two copies, unbroken and with kills: how many kills came in time, and what should not be."""
    experiment = replace(TRACES[trace], federation=replace(TRACES[trace].federation, rounds=ROUNDS))
    kinds = [draw.choice(["start", "round"]), "write", draw.choice(["start", "round"])]
    slow: dict[str, Any] = {}
    if not every_round:
        kinds, slow = ["asleep"] * 2, {"every_round": False, "faults": {"sleep_before_rounds": ASLEEP}}
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        ends = [forks.run(experiment, whole, **ENGINES[engine])]
        for kind in kinds:
            ends.append(forks.run(experiment, broken, **ENGINES[engine], **slow, **moment(draw, kind, broken, engine)))
        ends.append(forks.run(experiment, broken, **ENGINES[engine]))
        wrong = [f"exit code {end['code']}: {end['said']}" for end in ends if end["code"] not in (0, -SIGKILL)]
        wrong += [f"left running: {end['left']}" for end in ends if end["left"]]
        return sum(end["code"] == -SIGKILL for end in ends), wrong or differences(broken, whole, experiment)


def soak(pairs: Sequence[tuple[str, str]], kills_each: int, seed: int, *, every_round: bool = True) -> dict[str, Any]:
    """The figures once every pair of method and engine has been killed so often."""
    began, killed, runs, differed = time.monotonic(), Counter[str](), list[str](), list[str]()

    def kill(pair: tuple[str, str]) -> None:
        method, engine = pair
        traces = [name for name, experiment in TRACES.items() if method_name(experiment.method) == method]
        with closing(Forks()) as forks:
            for turn in range(TURNS):
                trace = traces[turn % len(traces)]
                draw = random.Random(f"{seed}, {trace}, {engine}, {turn}")
                kills, wrong = survived(forks, trace, engine, draw, every_round=every_round)
                killed[f"{method} x {engine}"] += kills
                runs.append(f"{trace}, {engine}")
                differed.extend([f"{trace}, {engine}: {'; '.join(wrong)}"] if wrong else [])
                print(f"{trace}, {engine}: {kills} kills, {len(wrong)} troubles", file=sys.stderr, flush=True)
                if killed[f"{method} x {engine}"] >= kills_each:
                    break

    with ThreadPoolExecutor(1 if every_round else SIDE_BY_SIDE) as threads:
        list(threads.map(kill, pairs))
    return {
        "kills": sum(killed.values()),
        "differed": differed,
        "by_pair": dict(sorted(killed.items())),
        "runs": runs,
        "seconds_of_all_runs": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills-each", type=int, default=3, help="of every pair at least (default 3)")
    parser.add_argument("--default-interval", action="store_true", help="of saves; not one after every round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="a method or an engine")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    pairs = [(method, engine) for method in METHODS for engine in ENGINES if options.only in (None, method, engine)]
    only = " --default-interval" if options.default_interval else ""
    only += f" --only {options.only}" if options.only else ""
    command = f"python -m tests.soak.kills --kills-each {options.kills_each} --seed {options.seed}{only}"
    figures = soak(pairs, options.kills_each, options.seed, every_round=not options.default_interval)
    if options.json:
        write_json(options.json, {"command": command, "code": commit()["commit"], **figures})
    print(json.dumps(figures, indent=1))
    return 1 if figures["differed"] or min(figures["by_pair"].values(), default=0) < options.kills_each else 0


if __name__ == "__main__":
    sys.exit(main())
