"""Whether two runs of one experiment are equal to the bit, timings apart, or nearly so."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.experiment import Experiment
from benchmark.records.record import run_folder, run_name
from benchmark.records.state import RunState, load
from tests.conftest import record_of

FINISHED = {"experiment.json", "manifest.json", "rounds.jsonl", "result.json", "weights"}  # a finished run's folder


def untimed(folder: Path) -> list[str]:
    """The lines of a run's rounds without what a clock said."""
    return [json.dumps(line) for line in _rounds(folder)]


def _rounds(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in record_of(folder).rounds
    ]


def saved(folder: Path, experiment: Experiment) -> RunState:
    """The state of an unfinished run."""
    state = load(folder, run_name(experiment))
    assert state is not None
    return state


def differences(broken: Path, whole: Path, experiment: Experiment, *, within: float = 0.0) -> list[str]:
    """What the records of one experiment under two folders of results differ in; nothing: bit-equal.

    Weights as files, every round's line, the result, and no file left over. `within` a share: numbers may differ by so
    much of their size, or of 1 where they are smaller.
    """
    mine, theirs = run_folder(broken, experiment), run_folder(whole, experiment)
    checks = {
        "rounds.jsonl": agree({"rounds": _rounds(mine)}, {"rounds": _rounds(theirs)}, within),
        "number of rounds": len(untimed(mine)) == experiment.federation.rounds,
        "weights": bool(_weights(mine)) and (within > 0 or _weights(mine) == _weights(theirs)),
        "result.json": agree(_result(mine), _result(theirs), within),
        "files left over": {path.name for path in mine.iterdir()} == FINISHED,
    }
    return [name for name, holds in checks.items() if not holds]


def agree(left: Any, right: Any, within: float = 0.0) -> bool:
    """Trees of tensors, numbers and words, at any depth; tensors of one type."""
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(agree(value, right[name], within) for name, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(agree(*pair, within) for pair in zip(left, right, strict=True))
    if isinstance(left, Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return bool(torch.equal(left, right) if within == 0 else torch.allclose(left, right, rtol=within, atol=within))
    if isinstance(left, float) and isinstance(right, float) and within > 0:
        return math.isclose(left, right, rel_tol=within, abs_tol=within)
    return type(left) is type(right) and left == right


def _weights(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "weights").glob("*.pt")}


def _result(folder: Path) -> dict[str, Any]:
    result = json.loads((folder / "result.json").read_text())
    return {name: value for name, value in result.items() if name not in ("wall_seconds", "cpu_seconds", "digest")}
