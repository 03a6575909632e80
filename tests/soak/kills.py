"""kill -9 a hundred times, at random moments, and see that what is started again is bit-equal to the unbroken run.

    python -m tests.soak.kills [--kills 100] [--seed 0] [--json FILE]

Every method under every engine, the label settings in turn; of each pair three kills in one run: at a random moment
(also while the run starts), inside the writing of a checkpoint, and at a random moment again. Worker processes are
spawned as in production. Ends with 1 where a run differed, and names it; the seed makes the same plan again.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from signal import SIGKILL
from typing import Any

from benchmark.experiment import Experiment
from benchmark.methods.catalogue import METHODS, method_name
from tests.methods.golden import TRACES
from tests.tracking.equality import differences
from tests.tracking.faults import STEPS
from tests.tracking.forks import Forks, lines_of

ENGINES = ("reference", "cpu")
ROUNDS = 14
KILLS_OF_ONE_RUN = 3
START_UP = {"reference": 0.5, "cpu": 8.0}  # seconds in which a run, with its workers, has begun


@dataclass(kw_only=True)
class Tally:
    """What was killed so far, and what differed."""

    kills: Counter[str] = field(default_factory=Counter)  # by "method x engine", label setting, and kind of moment
    landed: int = 0
    missed: int = 0  # the run was over before
    wrong: list[str] = field(default_factory=list)

    def enter(self, *names: str) -> None:
        self.landed += 1
        self.kills.update(names)


def cases(tally: Tally) -> Iterator[tuple[str, str]]:
    """(trace, engine) for ever: pair after pair, each with the label setting that was killed least so far."""
    for turn in count():
        for method in METHODS:
            names = [name for name, experiment in TRACES.items() if method_name(experiment.method) == method]
            for engine in ENGINES:
                names = names[turn % len(names) :] + names[: turn % len(names)]
                yield min(names, key=lambda name: tally.kills[setting_of(name)]), engine


def setting_of(name: str) -> str:
    return TRACES[name].data.label_setting


def experiment_of(name: str) -> Experiment:
    return replace(TRACES[name], federation=replace(TRACES[name].federation, rounds=ROUNDS))


def moment(draw: random.Random, kind: str, results: Path, engine: str) -> dict[str, Any]:
    """When a kill comes, as `Forks.run` is told."""
    if kind == "write":
        return {"faults": {"die_in_write": [draw.randint(1, 3), draw.randint(1, len(STEPS))]}}
    if kind == "start":
        return {"signals": [SIGKILL], "delay": draw.uniform(0.0, START_UP[engine])}
    lines = lines_of(str(results)) + draw.randint(1, 3)
    return {"signals": [SIGKILL], "lines": lines, "delay": draw.uniform(0.0, 0.1)}


def killed_and_resumed(
    forks: Forks, name: str, engine: str, folder: Path, draw: random.Random, tally: Tally, most: int
) -> None:
    """One run in two copies: unbroken, and with up to `most` kills."""
    experiment = experiment_of(name)
    how: dict[str, Any] = {"engine": engine, "workers": 2, "spawned": True}
    whole, broken = folder / "whole", folder / "broken"
    ends = [forks.run(experiment, whole, **how)]
    kinds = [draw.choice(["start", "round"]), "write", draw.choice(["start", "round"])]
    for kind in kinds[:most]:
        end = forks.run(experiment, broken, **how, **moment(draw, kind, broken, engine))
        if end["code"] == -SIGKILL:
            tally.enter(f"{method_name(experiment.method)} x {engine}", setting_of(name), f"in a {kind}")
        else:
            tally.missed += 1
        ends.append(end)
    ends.append(forks.run(experiment, broken, **how))
    wrong = differences(broken, whole, experiment) if ends[-1]["code"] == 0 else [ends[-1]["said"]]
    wrong += [f"exit code {end['code']}: {end['said']}" for end in ends if end["code"] not in (0, -SIGKILL)]
    wrong += [f"left running: {end['left']}" for end in ends if end["left"]]
    if wrong:
        tally.wrong.append(f"{name}, {engine}, {kinds}: {'; '.join(wrong)}")


def soak(kills: int, seed: int) -> dict[str, Any]:
    """The figures of so many kills."""
    forks, draw, tally, began = Forks(), random.Random(seed), Tally(), time.monotonic()
    for name, engine in cases(tally):
        if tally.landed >= kills:
            break
        with tempfile.TemporaryDirectory() as folder:
            most = min(KILLS_OF_ONE_RUN, kills - tally.landed)
            killed_and_resumed(forks, name, engine, Path(folder), draw, tally, most)
        print(f"{tally.landed}/{kills} {name}, {engine}; {len(tally.wrong)} differed", file=sys.stderr, flush=True)
    forks.close()
    return {
        "kills": tally.landed,
        "missed": tally.missed,
        "differed": tally.wrong,
        "by": dict(sorted(tally.kills.items())),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    options = parser.parse_args()
    command = f"python -m tests.soak.kills --kills {options.kills} --seed {options.seed}"
    figures = {"command": command, **soak(options.kills, options.seed)}
    text = json.dumps(figures, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if figures["differed"] else 0


if __name__ == "__main__":
    sys.exit(main())
