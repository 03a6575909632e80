"""Records of an older form moved to where this version looks: under the cell key that it gives their experiment.

The key changed once, when how often is measured left it: two records may then be of one run. The one that measured
more stays, after all numbers that both have were found equal. Nothing is trained; what cannot be moved stays, and is
told.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark.errors import DataError, FsslError
from benchmark.experiment import from_json
from benchmark.records.files import json_bytes, write_atomically, write_json
from benchmark.records.lease import is_held
from benchmark.records.record import (
    RunRecord,
    copy_name,
    covers,
    disagreement,
    json_object,
    measurements,
    read_copy,
    read_index,
    read_run,
    reference_path,
    run_digest,
    write_index,
    write_reference,
)


def migrate(results: Path) -> Iterator[str]:
    """Move what is under an older key or in an older form; one line for each record that was moved or had to stay."""
    yield from _migrate_runs(results)
    yield from _migrate_copies(results)


def new_key(record: RunRecord) -> str:
    """The cell key that this version gives the record's experiment. Raises ConfigError."""
    return from_json(record.experiment).cell_key


def _migrated(record: RunRecord, key: str) -> RunRecord:
    """The record under another key, with what it measured."""
    experiment = from_json(record.experiment)
    earlier = [*record.result.get("migrated_from", ()), *([record.cell_key] if record.cell_key != key else ())]
    result = {
        **record.result,
        "cell_key": key,
        "measured": measurements(experiment.evaluation),
        **({"migrated_from": earlier} if earlier else {}),
    }
    return replace(record, cell_key=key, result=result)


def _better(records: Sequence[RunRecord]) -> RunRecord:
    """The one that has what all of them measured. Raises DataError where none has, or where numbers differ."""
    for record in records:
        if all(covers(record, from_json(other.experiment)) for other in records):
            for other in records:
                if (why := disagreement(other, record, exact=False)) is not None:
                    raise DataError(f"two records of one run differ: {why}")
            return record
    raise DataError("of two records of one run, neither has all that the other measured")


# Committed copies


def _migrate_copies(results: Path) -> Iterator[str]:
    """Grouped by the new key and seed: each group becomes one copy in today's form."""
    folder = results / "reference"
    groups: dict[tuple[str, int], list[tuple[Path, RunRecord]]] = {}
    for path in sorted([*folder.glob("*/seed=*.json"), *folder.glob("*/seed=*.json.gz")]):
        try:
            record = read_copy(path) if path.suffix == ".gz" else _old_copy(path)
            groups.setdefault((new_key(record), record.seed), []).append((path, record))
        except (FsslError, OSError) as error:
            yield f"{path}: stays: {' '.join(str(error).split())}"
    for (key, seed), found in sorted(groups.items()):
        target = reference_path(results, key, seed)
        if [path for path, _ in found] == [target]:
            continue
        names = ", ".join(copy_name(path) for path, _ in found)
        try:
            best = _better([_migrated(record, key) for _, record in found])
        except DataError as error:
            yield f"{names}: stay: {error}"
            continue
        earlier = sorted({old for _, record in found for old in _migrated(record, key).result.get("migrated_from", ())})
        write_reference(results, replace(best, result={**best.result, "migrated_from": earlier}))
        for path, _ in found:
            if path != target:
                _drop_copy(results, path)
        yield f"{names} -> {copy_name(target)}"


def _drop_copy(results: Path, path: Path) -> None:
    path.unlink()
    index = read_index(results)
    if index.pop(copy_name(path), None) is not None:
        write_index(results, index)
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


def _old_copy(path: Path) -> RunRecord:
    """A copy as it was before it was compressed: one list a metric, with a value a round. Raises DataError."""
    copy = json_object(path.read_bytes(), path)
    try:
        columns: Mapping[str, Sequence[Any]] = copy["rounds"]
        rounds = [
            {name: column[index] for name, column in columns.items() if column[index] is not None}
            for index in range(len(columns["round"]))
        ]
        return RunRecord(
            cell_key=str(copy["cell_key"]),
            seed=int(copy["seed"]),
            experiment=dict(copy["experiment"]),
            manifest=dict(copy["manifest"]),
            result=dict(copy["result"]),
            rounds=rounds,
        )
    except (LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path}: is no compact record ({error!r})") from None


# Runs


def _migrate_runs(results: Path) -> Iterator[str]:
    for folder in sorted((results / "runs").glob("*/seed=*")):
        try:
            record = read_run(folder)
            key = new_key(record) if record is not None else folder.parent.name
        except FsslError as error:
            yield f"{folder}: stays: {' '.join(str(error).split())}"
            continue
        if record is None or key == folder.parent.name:
            continue
        target = results / "runs" / key / folder.name
        yield f"{folder}: {_moved(record, folder, key, target)}"


def _moved(record: RunRecord, folder: Path, key: str, target: Path) -> str:
    if is_held(folder):
        return "stays: another process is at it"
    if not record.result:
        return f"stays: it is not finished, and a run of cell {key} begins anew"
    if record.edited:
        return "stays: its digest is of other content, so it was edited afterwards"
    there = read_run(target)
    if there is not None and there.result:
        try:
            best = _better([there, _migrated(record, key)])
        except DataError as error:
            return f"stays: {error} ({target})"
        if best is there:
            shutil.rmtree(folder)
            return f"dropped: {target} has all its numbers"
        shutil.rmtree(target)
    result = dict(_migrated(record, key).result)
    write_json(target / "experiment.json", dict(record.experiment))
    write_json(target / "manifest.json", dict(record.manifest))
    lines = [json.dumps({**line, "cell_key": key}) + "\n" for line in record.rounds]
    write_atomically(target / "rounds.jsonl", "".join(lines).encode())
    if "digest" in result:
        result["digest"] = run_digest(target, result)
    write_atomically(target / "result.json", json_bytes(result))
    for other in folder.iterdir():  # weights, lines of broken-off attempts, the address on W&B
        if other.name not in ("leases", "checkpoints") and not (target / other.name).exists():
            other.rename(target / other.name)
    shutil.rmtree(folder)
    if not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    return f"-> {target}, without its checkpoints, which name the old key"
