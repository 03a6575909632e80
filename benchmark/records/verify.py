"""Whether records are whole, say what they said when they were written, and agree with each other.

Pure functions of files: nothing is repaired and nothing is trained (`retrain` does that). Each trouble names the file
and the field. A run made before digests existed is checked in every other way.
"""

import contextlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmark.data.datasets import public_name
from benchmark.errors import ConfigError, DataError, FsslError
from benchmark.experiment import NUMERICS, from_record, to_json
from benchmark.records import state as states
from benchmark.records.claim import read
from benchmark.records.files import one_line
from benchmark.records.record import (
    INDEX,
    ROUNDING,
    STATUSES,
    RunRecord,
    copy_name,
    equal,
    measurements,
    read_copy,
    read_index,
    read_run,
    stated_digest,
)

if TYPE_CHECKING:
    from benchmark.data.datasets import DataSet

Pair: TypeAlias = tuple[RunRecord, Path]
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


def records_in(results: Path, troubles: list[str]) -> Iterator[Pair]:
    """Every run and every committed copy, each with its folder or file; one that cannot be read is a trouble."""
    for path in sorted([*results.glob("runs/*/seed=*"), *results.glob("reference/*/seed=*.json.gz")]):
        try:
            record = read_copy(path) if is_copy(path) else read_run(path)
        except (FsslError, OSError) as error:
            troubles.append(one_line(error))
            continue
        if record is not None:
            yield record, path


def is_copy(path: Path) -> bool:
    return path.suffix == ".gz"


def troubles_of(record: RunRecord, path: Path) -> list[str]:
    """What does not add up in one record: names, schema, values, sums, checksums, digest."""
    found = [*_of_name(record, path), *_of_experiment(record), *_of_rounds(record, path)]
    if record.manifest or record.result:
        found += _of_schema("manifest.json", record.manifest, MANIFEST)
    if record.result:
        schema = list(_of_schema("result.json", record.result, RESULT))
        found += schema or _of_result(record, is_copy(path))
    if not is_copy(path):
        found += _of_unfinished(path, f"{record.cell_key}/seed={record.seed}")
    if record.edited:
        found.append("its digest is of other content: experiment, manifest, rounds or result was edited afterwards")
    return [f"{path}: {trouble}" for trouble in found]


def troubles_of_index(results: Path, copies: Iterable[Path]) -> list[str]:
    """Committed copies that were changed, added, deleted or renamed, as results/reference/index.json tells."""
    folder = results / "reference"
    try:
        index = read_index(results)
    except DataError as error:
        return [one_line(error)]
    there = {copy_name(path): path for path in copies}
    found = [f"{folder / name}.json.gz: is gone; {INDEX} has it" for name in sorted(index.keys() - there.keys())]
    for name, path in sorted(there.items()):
        if name not in index:
            found.append(f"{path}: is not in {INDEX}; `fssl report --commit-reference` puts copies there")
            continue
        with contextlib.suppress(DataError):  # damaged: told where it was read
            if stated_digest(path) != index[name]:
                found.append(f"{path}: has another digest than {INDEX} has for it: it was edited afterwards")
    return found


def _of_name(record: RunRecord, path: Path) -> Iterator[str]:
    """Whether a record is filed where it belongs."""
    for what, here, right in (
        ("cell", path.parent.name, record.cell_key),
        ("seed", path.name.removesuffix(".json.gz").removeprefix("seed="), str(record.seed)),
    ):
        if here != right:
            yield f"is filed under {what} {here}, but its record is of {what} {right}"


def _of_experiment(record: RunRecord) -> Iterator[str]:
    try:
        experiment = from_record(record.experiment)
    except FsslError as error:
        yield f"experiment.json: {one_line(error)}"
        return
    if experiment.seed != record.seed:
        yield f"experiment.json: seed {experiment.seed}, but the record is of seed {record.seed}"
    if experiment.cell_key != record.cell_key and record.result.get("numerics") == NUMERICS:
        yield (
            f"experiment.json has cell_key {experiment.cell_key}, but the record is of {record.cell_key}; "
            "`fssl reproduce` trains it again"
        )
    name = _named(record.manifest.get("data"), "name")
    if name is not None and name not in (experiment.data.name, public_name(experiment.data.name)):
        yield f"manifest.json: data.name {name!r}, but experiment.json has {experiment.data.name!r}"
    result, evaluation = record.result, experiment.evaluation
    for key, right in (
        ("profile", experiment.profile),
        ("selection", evaluation.selection),
        ("measured", measurements(evaluation)),
    ):
        if key in result and result[key] != right:
            yield f"result.json: {key} {result[key]!r}, but experiment.json has {right!r}"
    if result.get("status") == "done" and result.get("rounds") != experiment.federation.rounds:
        yield f"result.json: done after {result.get('rounds')} rounds of {experiment.federation.rounds}"
    if result.get("status") == "diverged" and "error" not in result:
        yield "result.json: status 'diverged', but no error is told"


def _named(table: Any, key: str) -> Any:
    return table.get(key) if isinstance(table, Mapping) else None


def _of_rounds(record: RunRecord, path: Path) -> Iterator[str]:
    """Compact copies name cell and seed once, not in each round."""
    numbers = [line.get("round") for line in record.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"rounds.jsonl: rounds {numbers[:3]}... are not 1 to {len(numbers)}, each once"
    for line in record.rounds:
        place = f"rounds.jsonl: round {line.get('round')}"
        for name, right in (("cell_key", record.cell_key), ("seed", record.seed)):
            if not is_copy(path) and line.get(name) != right:
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
            yield f"{file}: {'.'.join(keys)} is {value!r}; {names} is wanted"


def _of_result(record: RunRecord, copied: bool) -> list[str]:
    """The result against the rounds that it sums up. A copy has counts of all rounds, and the rest of some."""
    result, rounds, tolerance = record.result, record.rounds, ROUNDING if copied else 0.0
    found = [f"last.{trouble}" for trouble in _of_metrics(result["last"])]
    if result["status"] not in STATUSES:
        found.append(f"status {result['status']!r}; there are {', '.join(STATUSES)}")
    for name, right in (("cell_key", record.cell_key), ("seed", record.seed), ("rounds", len(rounds))):
        if result[name] != right:
            found.append(f"{name} {result[name]!r}, but the record has {right!r}")
    latest: dict[str, Any] = {}
    for line in rounds[-1:] if copied else rounds:
        latest.update(line)
    found += [
        f"last.{name} is {value}, the rounds end with {latest.get(name)}"
        for name, value in result["last"].items()
        if not equal(value, latest.get(name), tolerance) and (name in latest or not copied)
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
            yield f"best is {best!r}, not a JSON object"
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


def _of_unfinished(folder: Path, run: str) -> Iterator[str]:
    if read(folder) == {}:
        yield "claim: is damaged; its heartbeat counts"
    try:
        warning = states.load(folder, run)[1]
    except ConfigError as error:
        warning = one_line(error)
    if warning is not None:
        yield warning.removeprefix(f"{folder}/")


def disagreements(records: Iterable[Pair]) -> list[str]:
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


def troubles_of_data(records: Iterable[Pair], root: Path | None) -> tuple[list[str], set[str]]:
    """Hashes of data and partitions, computed again; and the data sets that are not here, whose are not."""
    from benchmark.data.datasets import at_hand, load
    from benchmark.federated.environment import prepare

    found, absent = [], set()
    sets: dict[str, DataSet] = {}
    now: dict[object, Mapping[str, str]] = {}
    for record, path in records:
        with contextlib.suppress(FsslError):  # of a record that cannot be read it is told elsewhere
            experiment, name = from_record(record.experiment), str(record.experiment["data"]["name"])
            if name.startswith("folder:") or not at_hand(name, root):
                absent.add(name)
                continue
            key = (experiment.data, experiment.partition, experiment.federation.K, record.seed)
            if key not in now:
                sets[name] = sets[name] if name in sets else load(name, root)
                environment = prepare(experiment.with_seed(record.seed), root, data=sets[name])
                now[key] = {"hash": environment.data.content_hash, "partition": environment.split.hash()}
            told = record.manifest.get("data")
            for what, right in now[key].items():
                if record.manifest and _named(told, what) != right:
                    found.append(f"{path}: manifest.json: data.{what} is {_named(told, what)}; computed again {right}")
    return found, absent


def equal_rounds(records: Iterable[Pair]) -> list[str]:
    """Runs of one cell under two seeds that measured the same in every round: one is a copy of the other."""
    first: dict[str, tuple[int, Path]] = {}
    found = []
    for record, path in records:
        lines = [
            {name: value for name, value in line.items() if name not in ("cell_key", "seed") and "time/" not in name}
            for line in record.rounds
        ]
        key = json.dumps([record.cell_key, is_copy(path), lines], sort_keys=True, default=str)
        seed, other = first.setdefault(key, (record.seed, path))
        if lines and seed != record.seed:
            found.append(f"{path}: rounds.jsonl: every round is that of {other}, of another seed")
    return found


def _resolved(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """With the fields that came after the record was made; nothing where it cannot be read."""
    try:
        return to_json(from_record(experiment))
    except FsslError:
        return {}
