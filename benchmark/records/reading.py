"""Records read back: from `results/runs`, and from the committed compact copies in `results/reference`."""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import DataError
from benchmark.experiment import NUMERICS
from benchmark.records.files import read_json, write_atomically
from benchmark.records.record import RunRecord

Records = Mapping[str, Mapping[int, RunRecord]]  # cell_key -> seed -> record


def read_run(folder: Path) -> RunRecord | None:
    """The record in a run's folder, finished or not; None where no run has been started.

    Raises DataError for a file that is damaged or holds something else.
    """
    names = ("experiment.json", "manifest.json", "result.json")
    experiment, manifest, result = (read_json(folder / name) for name in names)
    if experiment is None:
        return None
    for name, value in zip(names, (experiment, manifest, result), strict=True):
        if not isinstance(value, dict | None):
            raise DataError(f"{folder / name}: is a {type(value).__name__}; a JSON object would be right")
    if not isinstance(experiment.get("seed"), int):
        raise DataError(f"{folder / names[0]}: seed is {experiment.get('seed')!r}; a whole number would be right")
    return RunRecord(
        cell_key=folder.parent.name,
        seed=experiment["seed"],
        experiment=experiment,
        manifest=manifest or {},
        result=result or {},
        rounds=read_rounds(folder / "rounds.jsonl"),
    )


def read_rounds(path: Path) -> tuple[dict[str, Any], ...]:
    """The whole lines of `rounds.jsonl`; a last line still being written is left out. Raises DataError."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return ()
    return tuple(_round(line, path, number) for number, line in enumerate(lines, 1) if line.endswith(b"\n"))


def _round(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number} is no JSON object ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: line {number} is no JSON object (it is a {type(found).__name__})")
    return found


def last_round(folder: Path) -> dict[str, Any] | None:
    """The newest finished round of a run, from the end of the file."""
    rounds = read_rounds(folder / "rounds.jsonl")
    return rounds[-1] if rounds else None


def read_records(results: Path, cell_keys: Iterable[str], *, with_reference: bool) -> Records:
    """All records of these cells. A run of this machine goes before a committed copy of the same seed."""
    found: dict[str, dict[int, RunRecord]] = {}
    for cell_key in dict.fromkeys(cell_keys):
        seeds: dict[int, RunRecord] = {}
        if with_reference:
            for path in sorted((results / "reference" / cell_key).glob("seed=*.json")):
                record = unpack(read_json(path), path)
                if record.result.get("numerics") == NUMERICS:
                    seeds[record.seed] = record
        for folder in sorted((results / "runs" / cell_key).glob("seed=*")):
            run = read_run(folder)
            if run is not None and (run.result or run.seed not in seeds):
                seeds[run.seed] = run
        found[cell_key] = dict(sorted(seeds.items()))
    return found


def pack(record: RunRecord) -> dict[str, Any]:
    """A compact copy: one list a metric instead of one line a round; six significant digits, null where unmeasured."""
    names = sorted({name for line in record.rounds for name in line} - {"cell_key", "seed", "round"})
    columns = {name: [_short(line.get(name)) for line in record.rounds] for name in names}
    return {
        "cell_key": record.cell_key,
        "seed": record.seed,
        "experiment": dict(record.experiment),
        "manifest": dict(record.manifest),
        "result": dict(record.result),
        "rounds": {"round": [line["round"] for line in record.rounds], **columns},
    }


def unpack(data: Mapping[str, Any], path: Path) -> RunRecord:
    """The record of a compact copy. Raises DataError for a file that is none."""
    try:
        for name in ("experiment", "manifest", "result", "rounds"):
            if not isinstance(data[name], dict):
                raise TypeError(f"{name} is a {type(data[name]).__name__}")
        columns = data["rounds"]
        rounds = [
            {name: column[index] for name, column in columns.items() if column[index] is not None}
            for index in range(len(columns["round"]))
        ]
        return RunRecord(
            cell_key=data["cell_key"],
            seed=data["seed"],
            experiment=data["experiment"],
            manifest=data["manifest"],
            result=data["result"],
            rounds=rounds,
        )
    except (KeyError, TypeError, IndexError) as error:
        raise DataError(f"{path}: is no compact record ({error!r}); git has the committed one") from None


def write_reference(results: Path, record: RunRecord) -> Path:
    """Put a finished run's compact copy into `results/reference`, which git keeps."""
    path = results / "reference" / record.cell_key / f"seed={record.seed}.json"
    text = json.dumps(pack(record), sort_keys=True, allow_nan=False, separators=(",", ":"))
    write_atomically(path, (text + "\n").encode())
    return path


def _short(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
