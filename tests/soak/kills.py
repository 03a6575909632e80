"""kill -9 at random moments in every method under every engine, and see that what is started again gives the numbers of
the unbroken run.

    python -m tests.soak.kills [--kills-each 3] [--jobs 1] [--seed 0] [--only METHOD,ENGINE] [--json FILE]

Of each pair of method and engine so many kills, three in one run: at a random moment (also while the run starts),
inside the writing of a checkpoint, and at a random moment again; label settings in turn. Worker processes are spawned
as in production. Numbers are compared bit by bit.

With --json the figures stand in the file after every run, and the same command goes on from there. Ends with 1 where a
run differed, and names it; the seed makes the same plan again.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from signal import SIGKILL
from threading import local
from typing import Any

from benchmark.experiment import Experiment
from benchmark.methods.catalogue import METHODS, method_name
from benchmark.records.files import read_json, write_json
from benchmark.records.provenance import commit
from tests.methods.golden import TRACES
from tests.records.equality import differences
from tests.records.faults import STEPS
from tests.records.forks import Forks, lines_of

ENGINES: Mapping[str, Mapping[str, Any]] = {
    "reference": {"engine": "reference"},
    "pool": {"engine": "pool", "workers": 2, "spawned": True},
}
START_UP = {"reference": 0.5, "pool": 6.0}  # seconds in which a run has begun
ROUNDS = 12
KILLS_OF_ONE_RUN = 3
TURNS = 5  # how often a pair is tried whose kills came too late


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run that is killed: which, under which engine, and where its random moments come from."""

    trace: str
    engine: str
    turn: int

    @property
    def pair(self) -> str:
        return f"{method_name(TRACES[self.trace].method)} x {self.engine}"

    @property
    def setting(self) -> str:
        return TRACES[self.trace].data.label_setting

    @property
    def experiment(self) -> Experiment:
        return replace(TRACES[self.trace], federation=replace(TRACES[self.trace].federation, rounds=ROUNDS))


def planned(turn: int, pairs: Sequence[tuple[str, str]]) -> list[Case]:
    """A case of each pair, with the label setting that the engine met least so far (by this plan, hence always the
    same), and another trace in every turn."""
    met: Counter[tuple[str, str]] = Counter()
    cases = []
    for method, engine in pairs:
        names = [name for name, experiment in TRACES.items() if method_name(experiment.method) == method]
        names = names[turn % len(names) :] + names[: turn % len(names)]
        trace = min(names, key=lambda name: met[engine, TRACES[name].data.label_setting])
        cases.append(Case(trace=trace, engine=engine, turn=turn))
        met[engine, cases[-1].setting] += 1
    return cases


def moment(draw: random.Random, kind: str, results: Path, engine: str) -> dict[str, Any]:
    """When a kill comes, as `Forks.run` is told."""
    if kind == "write":
        return {"faults": {"die_in_write": [draw.randint(1, 3), draw.randint(1, len(STEPS))]}}
    if kind == "start":
        return {"signals": [SIGKILL], "delay": draw.uniform(0.0, START_UP[engine])}
    lines = lines_of(str(results)) + draw.randint(1, 3)
    return {"signals": [SIGKILL], "lines": lines, "delay": draw.uniform(0.0, 0.1)}


_own = local()


def run(case: Case, results: Path, draw: random.Random, **how: Any) -> dict[str, Any]:
    if not hasattr(_own, "forks"):
        _own.forks = Forks()  # one for each thread; it ends with this process
    return _own.forks.run(case.experiment, results, **ENGINES[case.engine], **how)


def survived(case: Case, seed: int) -> dict[str, Any]:
    """One run in two copies: unbroken, and with kills. "wrong" lists what should not be."""
    began, draw = time.monotonic(), random.Random(f"{seed}, {case}")
    kinds = [draw.choice(["start", "round"]), "write", draw.choice(["start", "round"])]
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        ends = [run(case, whole, draw)]
        for kind in kinds:
            ends.append(run(case, broken, draw, **moment(draw, kind, broken, case.engine)))
        ends.append(run(case, broken, draw))
        wrong = [ends[-1]["said"]] if ends[-1]["code"] else compared(case, broken, whole)
    wrong += [f"exit code {end['code']}: {end['said']}" for end in ends if end["code"] not in (0, -SIGKILL)]
    wrong += [f"left running: {end['left']}" for end in ends if end["left"]]
    landed = [kind for kind, end in zip(kinds, ends[1:-1], strict=True) if end["code"] == -SIGKILL]
    return {
        "trace": case.trace,
        "engine": case.engine,
        "turn": case.turn,
        "killed": landed,
        "missed": len(kinds) - len(landed),
        "wrong": wrong,
        "seconds": round(time.monotonic() - began, 1),
    }


def compared(case: Case, broken: Path, whole: Path) -> list[str]:
    return differences(broken, whole, case.experiment)


def soak(
    kills_each: int, seed: int, jobs: int, only: str | None, header: Mapping[str, Any], file: Path | None
) -> dict[str, Any]:
    """The figures once every pair has been killed so often, and the runs behind them."""
    before = (read_json(file) if file else None) or {}
    done: list[dict[str, Any]] = before["runs"] if all(before.get(key) == header[key] for key in header) else []
    pairs = [(method, engine) for method in METHODS for engine in ENGINES if only in (None, method, engine)]
    for turn in count():
        killed = figures(done)["by_pair"]
        lacking = [pair for pair in pairs if killed.get(" x ".join(pair), 0) < kills_each]
        if not lacking or turn >= max(TURNS, 2 * kills_each // KILLS_OF_ONE_RUN):
            break
        seen = {(run["trace"], run["engine"], run["turn"]) for run in done}
        cases = [case for case in planned(turn, pairs) if tuple(case.pair.split(" x ")) in lacking]
        cases = [case for case in cases if (case.trace, case.engine, case.turn) not in seen]
        with ThreadPoolExecutor(jobs) as pool:
            try:
                for future in as_completed([pool.submit(survived, case, seed) for case in cases]):
                    done.append(future.result())
                    _note(done, header, file)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, runs that have begun end, and no more
    return _note(done, header, file)


def _note(done: Sequence[Mapping[str, Any]], header: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    found = {**header, **figures(done), "runs": list(done)}
    if file:
        write_json(file, found)
    last = done[-1]
    print(
        f"{found['kills']} kills, {len(found['differed'])} runs differed; {last['trace']}, {last['engine']}: "
        f"{', '.join(last['killed']) or 'no kill'} in {last['seconds']} s",
        file=sys.stderr,
        flush=True,
    )
    return found


def figures(done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sums over the runs so far."""
    pairs: Counter[str] = Counter()
    settings: Counter[str] = Counter()
    moments: Counter[str] = Counter()
    for one in done:
        case = Case(trace=one["trace"], engine=one["engine"], turn=one["turn"])
        pairs[case.pair] += len(one["killed"])
        settings[case.setting] += len(one["killed"])
        moments.update(one["killed"])
    return {
        "kills": sum(pairs.values()),
        "missed": sum(one["missed"] for one in done),
        "differed": [f"{one['trace']}, {one['engine']}: {'; '.join(one['wrong'])}" for one in done if one["wrong"]],
        "by_pair": dict(sorted(pairs.items())),
        "by_label_setting": dict(sorted(settings.items())),
        "by_moment": dict(sorted(moments.items())),
        "seconds_of_all_runs": round(sum(one["seconds"] for one in done), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills-each", type=int, default=KILLS_OF_ONE_RUN, help="of every pair at least (default 3)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="a method or an engine")
    parser.add_argument("--json", type=Path, default=None, help="also keep the figures in this file, and go on from it")
    options = parser.parse_args()
    only = f" --only {options.only}" if options.only else ""
    command = f"python -m tests.soak.kills --kills-each {options.kills_each} --seed {options.seed}{only}"
    header = {"command": command, "code": commit()["commit"]}
    found = soak(options.kills_each, options.seed, options.jobs, options.only, header, options.json)
    print(json.dumps({key: value for key, value in found.items() if key != "runs"}, indent=1))
    return 1 if found["differed"] or min(found["by_pair"].values(), default=0) < options.kills_each else 0


if __name__ == "__main__":
    sys.exit(main())
