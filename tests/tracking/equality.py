"""Whether two runs of one experiment are equal to the bit, timings apart."""

import json
from pathlib import Path
from typing import Any

from benchmark.experiment import Experiment
from benchmark.tracking.checkpoints import Checkpoint, newest
from benchmark.tracking.recorder import run_folder
from tests.methods.toys import equal_trees


def untimed(folder: Path) -> list[str]:
    """The lines of rounds.jsonl without what a clock said."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [json.dumps({name: value for name, value in line.items() if not name.startswith("time/")}) for line in lines]


def last_checkpoint(folder: Path, experiment: Experiment) -> Checkpoint:
    found = newest(folder / "checkpoints", f"{experiment.cell_key}/seed={experiment.seed}").checkpoint
    assert found is not None
    return found


def differences(broken: Path, whole: Path, experiment: Experiment) -> list[str]:
    """What the records of one experiment under two folders of results differ in; nothing: bit-equal.

    Weights as files, the whole state (what clients keep, too), every round's line, the result, and no file left over.
    """
    mine, theirs = run_folder(broken, experiment), run_folder(whole, experiment)
    states = [last_checkpoint(folder, experiment) for folder in (mine, theirs)]
    checks = {
        "rounds.jsonl": untimed(mine) == untimed(theirs),
        "number of rounds": len(untimed(mine)) == experiment.federation.rounds,
        "weights": _weights(mine) == _weights(theirs) and bool(_weights(mine)),
        "state at the server": equal_trees(states[0].state.server, states[1].state.server),
        "state at clients": equal_trees(states[0].state.clients, states[1].state.clients),
        "result.json": _result(mine) == _result(theirs),
        "files left over": not list(mine.rglob(".*")),
        "checkpoints kept": len(list((mine / "checkpoints").iterdir())) <= 2,
    }
    return [name for name, holds in checks.items() if not holds]


def _weights(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "weights").glob("*.pt")}


def _result(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in found.items() if name not in ("wall_seconds", "cpu_seconds", "digest")}
