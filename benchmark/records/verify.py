"""Whether records are whole, say what they said when they were written, and agree with each other.

Pure functions of files: nothing is repaired and nothing is trained (`replay` does that). Each trouble names the file
and the field. A record made before digests existed is checked in every other way.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import FsslError
from benchmark.experiment import NUMERICS, from_json, to_json
from benchmark.papers.item import Item
from benchmark.records.client_files import FOLDER as CLIENTS
from benchmark.records.client_files import is_whole
from benchmark.records.files import read_json
from benchmark.records.record import ROUNDING, Records, RunRecord, equal, read_copy, read_rounds, run_digest

STATUSES = ("done", "diverged", "failed")
# What every manifest and every result has, as the path to it and the types of its value.
MANIFEST: Mapping[tuple[str, ...], tuple[type, ...]] = {
    ("code", "commit"): (str,),
    ("packages",): (dict,),
    ("data", "name"): (str,),
    ("data", "hash"): (str,),
    ("data", "partition"): (str,),
    ("engine", "threads"): (int,),
}
RESULT: Mapping[tuple[str, ...], tuple[type, ...]] = {
    ("status",): (str,),
    ("cell_key",): (str,),
    ("seed",): (int,),
    ("numerics",): (int,),
    ("rounds",): (int,),
    ("selection",): (str,),
    ("last",): (dict,),
    ("cost",): (dict,),
    ("wall_seconds",): (int, float),
}
FRACTIONS = ("accuracy", "auroc", "precision", "recall", "kept", "class_balance")  # last parts of metric names
COSTS = {"local_steps": "local_steps", "bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down"}


def read(path: Path, troubles: list[str]) -> RunRecord | None:
    """The record in a run's folder or a compact copy, as far as it can be read; what cannot is a trouble."""
    if path.suffix == ".gz":
        try:
            return read_copy(path)
        except (FsslError, OSError) as error:
            troubles.append(_line(error))
            return None
    found: dict[str, Any] = {}
    for name in ("experiment.json", "manifest.json", "result.json"):
        found[name] = {}
        try:
            found[name] = _table(read_json(path / name) or {})
        except (FsslError, ValueError, OSError) as error:
            troubles.append(f"{path / name}: is no JSON object ({_line(error)})")
    rounds: tuple[dict[str, Any], ...] = ()
    try:
        rounds = read_rounds(path / "rounds.jsonl")
    except (FsslError, OSError) as error:
        troubles.append(_line(error))
    if not found["experiment.json"]:
        return None
    _, _, seed = path.name.partition("=")
    return RunRecord(
        cell_key=path.parent.name,
        seed=int(seed) if seed.isdecimal() else -1,
        experiment=found["experiment.json"],
        manifest=found["manifest.json"],
        result=found["result.json"],
        rounds=rounds,
    )


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    return value


def troubles_of(record: RunRecord, path: Path) -> list[str]:
    """What does not add up in one record: schema, values, sums, checksums, digest."""
    exact = path.suffix != ".gz"
    found = [*_of_experiment(record), *_of_rounds(record, exact)]
    if record.manifest or record.result:
        found += _of_schema("manifest.json", record.manifest, MANIFEST)
    if record.result:
        schema = list(_of_schema("result.json", record.result, RESULT))
        found += schema or _of_result(record, 0.0 if exact else ROUNDING)
    if exact:
        found += [*_of_checkpoints(path), *_of_digest(record, path)]
    return [f"{path}: {trouble}" for trouble in found]


def _of_experiment(record: RunRecord) -> Iterator[str]:
    try:
        experiment = from_json(record.experiment)
    except FsslError as error:
        yield f"experiment.json: {_line(error)}"
        return
    if experiment.seed != record.seed:
        yield f"experiment.json: seed {experiment.seed}, its name says {record.seed}"
    if experiment.cell_key != record.cell_key and record.result.get("numerics") == NUMERICS:
        yield f"experiment.json has cell_key {experiment.cell_key}, its folder {record.cell_key}"
    data = record.manifest.get("data")
    if isinstance(data, Mapping) and data.get("name", experiment.data.name) != experiment.data.name:
        yield f"manifest.json: data.name {data['name']!r}, experiment.json {experiment.data.name!r}"


def _of_rounds(record: RunRecord, exact: bool) -> Iterator[str]:
    """Compact copies name cell and seed once, not in each round."""
    numbers = [line.get("round") for line in record.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"rounds.jsonl: rounds {numbers[:3]}... are not 1 to {len(numbers)}, each once"
    for line in record.rounds:
        place = f"rounds.jsonl: round {line.get('round')}"
        for name, right in (("cell_key", record.cell_key), ("seed", record.seed)):
            if exact and line.get(name) != right:
                yield f"{place} is of {name} {line.get(name)}, not {right}"
        metrics = {name: value for name, value in line.items() if name not in ("cell_key", "seed", "round")}
        yield from (f"{place}, {trouble}" for trouble in _of_metrics(metrics))


def _of_metrics(metrics: Mapping[str, Any]) -> Iterator[str]:
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            yield f"{name} is {value!r}"
        elif name.split("/")[-1] in FRACTIONS and not -1e-9 <= value <= 1.0 + 1e-9:
            yield f"{name} is {value}, no fraction"


def _of_schema(
    file: str, found: Mapping[str, Any], wanted: Mapping[tuple[str, ...], tuple[type, ...]]
) -> Iterator[str]:
    for keys, kinds in wanted.items():
        value: Any = found
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            yield f"{file}: {'.'.join(keys)} is {value!r}; {names} would be right"


def _of_result(record: RunRecord, tolerance: float) -> list[str]:
    """The result against the rounds that it sums up."""
    result, rounds = record.result, record.rounds
    found = [f"last.{trouble}" for trouble in _of_metrics(result["last"])]
    if result["status"] not in STATUSES:
        found.append(f"status {result['status']!r}; one of {', '.join(STATUSES)} would be right")
    for name, right in (("cell_key", record.cell_key), ("seed", record.seed), ("rounds", len(rounds))):
        if result[name] != right:
            found.append(f"{name} {result[name]!r}; {right!r} would be right")
    latest: dict[str, Any] = {}
    for line in rounds:
        latest.update(line)
    found += [
        f"last.{name} is {value}, the rounds end with {latest.get(name)}"
        for name, value in result["last"].items()
        if not equal(value, latest.get(name), tolerance)
    ]
    found += _of_best(result.get("best"), rounds, tolerance)
    sums = {name: sum(_numbers(metric, rounds)) for name, metric in COSTS.items()}
    found += [
        f"cost.{name} is {result['cost'].get(name)}, the rounds make {total}"
        for name, total in sums.items()
        if not equal(result["cost"].get(name), total, tolerance)
    ]
    return [f"result.json: {trouble}" for trouble in found]


def _of_best(best: Any, rounds: Iterable[Mapping[str, Any]], tolerance: float) -> Iterator[str]:
    if not isinstance(best, Mapping):
        if best is not None:
            yield f"best is {best!r}; a JSON object would be right"
        return
    line = next((line for line in rounds if line.get("round") == best.get("round")), {})
    for name, value in best.items():
        if not equal(value, line.get(name), tolerance):
            yield f"best.{name} is {value}, round {best.get('round')} has {line.get(name)}"
    for name in best:
        highest = max(_numbers(name, rounds), default=None)
        if name.endswith("/accuracy") and not equal(best[name], highest, tolerance):
            yield f"best.{name} is {best[name]}, the highest of the rounds is {highest}"


def _numbers(name: str, rounds: Iterable[Mapping[str, Any]]) -> list[float]:
    """The metric's values that are numbers; the others are told where their round is."""
    return [line[name] for line in rounds if isinstance(line.get(name), int | float)]


def _of_checkpoints(folder: Path) -> Iterator[str]:
    place = folder / "checkpoints"
    for path in sorted([*place.glob("round-??????-*.pt"), *(place / CLIENTS).glob("*.pt")]):
        if not is_whole(path):
            yield f"checkpoints/{path.relative_to(place)}: is damaged, its content has another hash"


def _of_digest(record: RunRecord, folder: Path) -> Iterator[str]:
    if "digest" not in record.result or not record.manifest:  # a manifest that cannot be read is told already
        return
    if record.result["digest"] != run_digest(folder, record.result):
        yield "result.json: digest is of other content; experiment, manifest, rounds or result was edited afterwards"


def disagreements(records: Iterable[tuple[RunRecord, Path]]) -> list[str]:
    """Records of equal data that saw other data: one hash for each data setting, and one for each partition of it."""
    data: dict[str, dict[str, Path]] = defaultdict(dict)
    partitions: dict[str, dict[str, Path]] = defaultdict(dict)
    for record, path in records:
        experiment, told = _resolved(record.experiment), record.manifest.get("data")
        found: Mapping[str, Any] = told if isinstance(told, Mapping) else {}
        if not experiment or not all(isinstance(found.get(name), str) for name in ("hash", "partition")):
            continue
        settings = {name: experiment["data"][name] for name in ("name", "pooled_test")}
        pool = json.dumps({**settings, "seed": record.seed if settings["pooled_test"] else None}, sort_keys=True)
        data[pool].setdefault(found["hash"], path)
        parts = (experiment["data"], experiment["partition"], experiment["federation"]["K"], record.seed)
        partitions[json.dumps(parts, sort_keys=True)].setdefault(found["partition"], path)
    return [
        f"{first}: manifest.json: data.{name} is another one than that of {other}, at equal settings"
        for name, by_setting in (("hash", data), ("partition", partitions))
        for hashes in by_setting.values()
        for other, first in zip(list(hashes.values()), list(hashes.values())[1:], strict=False)
    ]


def _resolved(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """With the fields that came after the record was made; nothing where it cannot be read."""
    try:
        return to_json(from_json(experiment))
    except FsslError:
        return {}


def troubles_of_item(item: Item, records: Records) -> list[str]:
    """A table or figure as a whole: every cell with every seed of it done, all by one version of the code."""
    found, versions = [], defaultdict(list)
    wanted = {seed for by_seed in records.values() for seed in by_seed} | set(range(item.seeds))
    for cell in item.cells:
        runs = {seed: run for seed, run in records.get(cell.cell_key, {}).items() if run.status in ("done", "diverged")}
        missing = sorted(wanted - runs.keys())
        if missing:
            found.append(f"{item.name}: cell {cell.label!r} lacks the seeds {', '.join(map(str, missing))}")
        for seed, run in runs.items():
            code = run.manifest.get("code", {})
            versions[(code.get("commit"), code.get("changes"))].append(f"{cell.label} seed {seed}")
    if len(versions) > 1:
        named = [
            f"{str(commit)[:12]}{'+' if changes else ''} ({runs[0]})" for (commit, changes), runs in versions.items()
        ]
        found.append(f"{item.name}: runs of {len(versions)} code versions: {', '.join(named[:4])}")
    return found


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
