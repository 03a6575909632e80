"""Compare two runs of one experiment bit by bit, except for timings."""

import json
from pathlib import Path
from typing import Any

from benchmark.experiment import Experiment
from benchmark.records.record import run_folder, run_name
from benchmark.records.state import RunState, load
from tests.conftest import record_of

TIMES = ("wall_seconds", "cpu_seconds", "server_seconds")
FINISHED = {"experiment.json", "manifest.json", "rounds.jsonl", "result.json", "weights"}  # a finished run's folder


def untimed(folder: Path) -> list[str]:
    """Write the lines of a run's rounds without what a clock said."""
    lines = []
    for line in record_of(folder).rounds:
        kept = {name: line[name] for name in line if not name.startswith("time/")}
        lines.append(json.dumps(kept))
    return lines


def saved(folder: Path, experiment: Experiment) -> RunState:
    """Return the state of an unfinished run."""
    state = load(folder, run_name(experiment))
    assert state is not None
    return state


def differences(broken: Path, whole: Path, experiment: Experiment) -> list[str]:
    """List the differences between the records of one experiment in two results folders; the list is empty if they are
    bit-equal.

    Compare weights as files, every round's line, the result, and whether any file is left over.
    """
    mine, theirs = run_folder(broken, experiment), run_folder(whole, experiment)
    checks = {
        "rounds.jsonl": untimed(mine) == untimed(theirs),
        "number of rounds": len(untimed(mine)) == experiment.federation.rounds,
        "weights": bool(_weights(mine)) and _weights(mine) == _weights(theirs),
        "result.json": _result(mine) == _result(theirs),
        "files left over": {path.name for path in mine.iterdir()} == FINISHED,
    }
    return [name for name, holds in checks.items() if not holds]


def _weights(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "weights").glob("*.pt")}


def _result(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in result.items() if name not in (*TIMES, "digest")}
