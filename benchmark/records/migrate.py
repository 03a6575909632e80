"""Finished runs and committed copies moved to the cell key that this version gives their experiment.

Two records may then be of one run: the first stays, after all numbers that both have were found equal.
Nothing is trained; what cannot be moved stays, and is told.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmark.errors import DataError, FsslError
from benchmark.experiment import from_record
from benchmark.records.claim import is_held
from benchmark.records.files import one_line, write_atomically, write_json
from benchmark.records.record import (
    RunRecord,
    copy_name,
    disagreement,
    measurements,
    read_copy,
    read_index,
    read_run,
    reference_path,
    run_digest,
    run_folder,
    write_index,
    write_reference,
)


def migrate(results: Path) -> Iterator[tuple[str, bool]]:
    """A line for each record under an older key, and whether it was moved."""
    for path in sorted([*results.glob("runs/*/seed=*"), *results.glob("reference/*/seed=*.json.gz")]):
        try:
            target = _move_copy(results, path) if path.suffix == ".gz" else _move_run(results, path)
            if target is not None:
                yield f"{path} -> {target}", True
        except (FsslError, OSError) as error:
            yield f"{path}: stays: {one_line(error)}", False


def _move_run(results: Path, folder: Path) -> Path | None:
    """Where the run is now; None where it need not move."""
    record = read_run(folder)
    moved = _under_its_key(record) if record is not None else None
    if record is None or moved is None:
        return None
    if not record.result:
        raise DataError(f"it is not finished, and a run of cell {moved.cell_key} begins anew")
    target = run_folder(results, from_record(record.experiment))
    if is_held(folder) or is_held(target):
        raise DataError("another process is at it")
    there = read_run(target)
    if there is None or not there.result or _better(there, moved) is moved:
        shutil.rmtree(target, ignore_errors=True)
        write_json(target / "experiment.json", dict(moved.experiment))
        write_json(target / "manifest.json", dict(moved.manifest))
        lines = [json.dumps({**line, "cell_key": moved.cell_key}) + "\n" for line in moved.rounds]
        write_atomically(target / "rounds.jsonl", "".join(lines).encode())
        digest = {"digest": run_digest(target, moved.result)} if "digest" in moved.result else {}
        write_json(target / "result.json", {**moved.result, **digest})
        for other in folder.iterdir():  # weights, lines of broken-off attempts, the address on W&B
            if other.name not in ("leases", "checkpoints", "attempts") and not (target / other.name).exists():
                other.rename(target / other.name)
    shutil.rmtree(folder)
    _remove_if_empty(folder.parent)
    return target


def _move_copy(results: Path, path: Path) -> Path | None:
    """Where the copy is now; None where it need not move."""
    moved = _under_its_key(read_copy(path))
    if moved is None:
        return None
    target = reference_path(results, moved.cell_key, moved.seed)
    if not target.exists() or _better(read_copy(target), moved) is moved:
        write_reference(results, moved)
    path.unlink()
    _remove_if_empty(path.parent)
    index = read_index(results)
    index.pop(copy_name(path), None)
    write_index(results, index)
    return target


def _under_its_key(record: RunRecord) -> RunRecord | None:
    """The record under the key that this version gives its experiment, with what it measured; None where it has it.
    Raises ConfigError, and DataError for one that was edited."""
    experiment = from_record(record.experiment)
    if record.cell_key == experiment.cell_key:
        return None
    if record.edited:
        raise DataError("its digest is of other content, so it was edited afterwards")
    told = {
        "cell_key": experiment.cell_key,
        "measured": measurements(experiment.evaluation),
        "migrated_from": [*record.result.get("migrated_from", ()), record.cell_key],
    }
    return replace(record, cell_key=experiment.cell_key, result={**record.result, **told})


def _better(there: RunRecord, moved: RunRecord) -> RunRecord:
    """The one that is there. Raises DataError where numbers differ."""
    if (why := disagreement(there, moved, exact=False)) is not None:
        raise DataError(f"another record of this run differs: {why}")
    return there


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()
