"""Rounds of a finished run done once more from a checkpoint that was kept, and compared bit by bit."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import DataError, FsslError
from benchmark.experiment import NUMERICS, from_json
from benchmark.federated.choice import engine_again
from benchmark.federated.engines import Engine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.parts import IN_PARTS
from benchmark.methods.protocol import State
from benchmark.records.checkpoints import Checkpoint, newest
from benchmark.records.files import read_json
from benchmark.records.provenance import PACKAGES, hardware, manifest
from benchmark.records.record import read_rounds

# Metrics that callbacks add and the rounds themselves do not: they are not made again here.
BESIDE = ("time/", "diversity/")


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came of it: `troubles` where something differs; `skipped`, the reason, where nothing could be compared."""

    folder: Path
    rounds: range  # those that were done again
    troubles: tuple[str, ...] = ()
    skipped: str | None = None


def replay(folder: Path, data_root: Path | None = None) -> Replay:
    """Do the rounds between the two checkpoints that a run has kept again, or all up to its only one.

    An engine of the record's settings. Data and partition must have the hashes of the
    manifest, each round's metrics those of its line in rounds.jsonl, and the state at the end the later checkpoint's.
    """
    nothing = range(0)
    recorded = read_json(folder / "manifest.json") or {}
    why = incomparable(recorded, read_json(folder / "result.json") or {})
    if why is not None:
        return Replay(folder=folder, rounds=nothing, skipped=why)
    try:
        experiment = from_json(read_json(folder / "experiment.json"))
        points = list(kept(folder, f"{experiment.cell_key}/seed={experiment.seed}"))
        if not points:
            return Replay(folder=folder, rounds=nothing, skipped="it kept no checkpoint that is whole")
        environment = prepare(experiment, data_root)
    except DataError as error:
        return Replay(folder=folder, rounds=nothing, skipped=str(error))
    except FsslError as error:
        return Replay(folder=folder, rounds=nothing, troubles=(str(error),))
    if any(IN_PARTS in line for line in read_rounds(folder / "rounds.jsonl")):
        return Replay(folder=folder, rounds=nothing, skipped="memory was short, and batches were taken in parts")
    threads = torch.get_num_threads()
    try:
        with contextlib.closing(engine_again(recorded["engine"], environment, workers=1)) as engine:
            return _replayed(folder, environment, engine, recorded, points[1] if len(points) > 1 else None, points[0])
    finally:
        torch.set_num_threads(threads)


def incomparable(recorded: Mapping[str, Any], result: Mapping[str, Any]) -> str | None:
    """Why bits need not be equal here: another processor, other packages, other numerics. None where they must be."""
    if result.get("numerics") != NUMERICS:
        return f"it is of numerics {result.get('numerics')}, this code of {NUMERICS}"
    if not recorded.get("engine", {}).get("bit_equal", True):
        return "its engine does not give equal bits"
    here = hardware()["processor"]
    there = recorded.get("hardware", {}).get("processor")
    if here != there:
        return f"it was made on {there}, this is {here}"
    return _other_packages(recorded.get("packages", {}))


def _other_packages(recorded: Mapping[str, str]) -> str | None:
    from importlib.metadata import version

    for name in PACKAGES:
        if recorded.get(name) != version(name):
            return f"it was made with {name} {recorded.get(name)}, this is {version(name)}"
    return None


def kept(folder: Path, run: str) -> Iterator[Checkpoint]:
    """The run's whole checkpoints, newest first. Raises ConfigError for one of another run."""
    recorded = len(read_rounds(folder / "rounds.jsonl"))
    found = newest(folder / "checkpoints", run, recorded).checkpoint
    while found is not None:
        yield found
        found = newest(folder / "checkpoints", run, recorded, before=found.round).checkpoint


def _replayed(
    folder: Path,
    environment: Environment,
    engine: Engine,
    recorded: Mapping[str, Any],
    start: Checkpoint | None,
    end: Checkpoint,
) -> Replay:
    now = manifest(environment, engine)["data"]
    troubles = [
        f"manifest.json: data.{name} is {recorded['data'][name]}, it is now {now[name]}"
        for name in ("hash", "partition")
        if now[name] != recorded["data"][name]
    ]
    state = None if start is None else start.state
    module = FederatedModule(environment, engine, state=state, rounds_done=0 if start is None else start.round)
    lines = {line["round"]: line for line in read_rounds(folder / "rounds.jsonl")}
    rounds = range(module.rounds_done + 1, end.round + 1)
    for number in rounds:
        module.training_step(number, 0)
        troubles += _differences(module.metrics, lines.get(number, {}), number)
    where = first_difference(_tree(module.state), _tree(end.state))
    if where is not None:
        troubles.append(f"checkpoint of round {end.round}: {where} differs from what the rounds before it give")
    return Replay(folder=folder, rounds=rounds, troubles=tuple(troubles))


def _differences(found: Mapping[str, float], line: Mapping[str, Any], number: int) -> Iterator[str]:
    """What a round's line says that the round done again does not. A metric that came later is not in old lines."""
    for name, value in line.items():
        if name in ("cell_key", "seed", "round") or name.startswith(BESIDE):
            continue
        if found.get(name) != value:
            yield f"rounds.jsonl: round {number}, {name} is {value}, done again it is {found.get(name)}"


def _tree(state: State) -> dict[str, Any]:
    return {"server": state.server, "clients": state.clients}


def first_difference(left: Any, right: Any, name: str = "state") -> str | None:
    """The dotted name of the first entry of two trees that is not equal bit by bit; None where there is none."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in [*left, *(key for key in right if key not in left)]:
            if key not in left or key not in right:
                return f"{name}.{key}"
            found = first_difference(left[key], right[key], f"{name}.{key}")
            if found is not None:
                return found
        return None
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        same = left.dtype == right.dtype and torch.equal(left, right)
        return None if same else name
    return None if type(left) is type(right) and left == right else name
