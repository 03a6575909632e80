"""Compact copies of finished runs, which git keeps: results/reference/<cell_key>/seed=<n>.json.gz.

A run that a second kind of device computed has a copy of its own: seed=<n>@cpu.json.gz, seed=<n>@nvidia-h200.json.gz.

Git is their ledger: what was changed, added or deleted since a commit, `git status results/reference` lists.
"""

import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import DataError, one_line
from benchmark.files import json_object, write_atomically
from benchmark.records.provenance import ROOT
from benchmark.records.record import NO_METRICS, RunRecord, canonical, check_result_is_of
from benchmark.records.schema import COPY, check

RESTORE = "`git checkout` restores it"
COMMITTED = ROOT / "results"  # whose copies count wherever runs are written
LARGEST = 1 << 25  # bytes of a copy's text: a hundred times those of the largest that is committed
_EVALUATED = ("test/", "validation/", "diversity/gradient/")  # starts of the metrics that say which rounds are kept


def reference_folders(results: Path) -> list[Path]:
    """Where the folders of cells with copies are: those of the checkout count, too; the last ones come first."""
    ours, here = COMMITTED / "reference", results / "reference"
    return [here] if here.resolve() == ours.resolve() else [ours, here]


def write_reference(results: Path, record: RunRecord) -> Path:
    """Put a finished run's compact copy into `results/reference`. Raises DataError as `copied`."""
    path = _place(results / "reference" / record.cell_key, record)
    write_atomically(path, copied(record))
    return path


def _place(cell: Path, record: RunRecord) -> Path:
    """Where the copy belongs: apart if the first copy of the run is of another engine or device."""
    first = cell / f"seed={record.seed}.json.gz"
    if not first.is_file() or read_copy(first).trained_by == record.trained_by:
        return first
    device = re.sub(r"[^a-z0-9]+", "-", record.trained_by[1].removeprefix("a ").lower()).strip("-")
    return cell / f"seed={record.seed}@{device}.json.gz"


def copied(record: RunRecord) -> bytes:
    """The compact copy as a file. Raises DataError for a record that was edited: the copy's digest would hide it."""
    if record.edited:
        raise DataError(f"{record.path}: was edited after it was written, and is not committed or sent (`fssl verify`)")
    return gzip.compress(canonical(pack(record)) + b"\n", mtime=0)


def read_copy(path: Path) -> RunRecord:
    """The record of a committed copy. Raises DataError as `copy_of`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); {RESTORE}") from None
    return copy_of(content, path)


def copy_of(content: bytes, path: Path, remedy: str = RESTORE) -> RunRecord:
    """The record of a compact copy that lies at `path`. Raises DataError for a file that is not one, or lies under
    another cell or seed than it names."""
    unzip = zlib.decompressobj(wbits=31)  # of gzip files
    try:
        text = unzip.decompress(content, LARGEST)
    except zlib.error as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); {remedy}") from None
    if not unzip.eof or unzip.unused_data:  # it is cut off, has more behind it, or is larger than a copy can be
        raise DataError(f"{path}: cannot be read (not one whole gzip file of at most {LARGEST:,} bytes); {remedy}")
    record = unpack(check(json_object(text, path), COPY, f"{path}", remedy), path)
    check_result_is_of(record)
    for what, filed, named in (
        ("cell", path.parent.name, record.cell_key),
        ("seed", path.name.removesuffix(".json.gz").partition("@")[0], f"seed={record.seed}"),
    ):
        if filed != named:
            raise DataError(f"{path}: is a record of {what} {named}; {remedy}")
    return record


def pack(record: RunRecord) -> dict[str, Any]:
    """Build the compact copy as JSON values. Its rounds are one list per metric.

    Counts have a value per round. Of all other metrics, `evaluated` has the values of the rounds that are kept, with
    six significant digits, and `summaries` sums up all rounds.
    """
    rounds = record.rounds
    # A copy of a copy has a metric that no kept round has in its summaries alone.
    names = sorted({name for line in (*rounds, record.summaries) for name in line} - NO_METRICS)
    others = [name for name in names if not _is_count(name) and not name.startswith("time/")]  # the result sums clocks
    kept = [line for line in rounds if line is rounds[-1] or _is_evaluated(line)]
    counts: dict[str, list[Any]] = {"round": [line.get("round") for line in rounds]}
    for name in filter(_is_count, names):
        counts[name] = [line.get(name) for line in rounds]
    evaluated: dict[str, list[Any]] = {"round": [line["round"] for line in kept]}
    summaries: dict[str, dict[str, Any]] = {}
    for name in others:
        evaluated[name] = [_short(line.get(name)) for line in kept]
        if not name.startswith(_EVALUATED):
            summaries[name] = {key: _short(value) for key, value in record.summary(name).items()}
    copy = {
        "cell_key": record.cell_key,
        "seed": record.seed,
        "experiment": dict(record.experiment),
        "manifest": dict(record.manifest),
        "result": dict(record.result),
        "counts": counts,
        "evaluated": evaluated,
        "summaries": summaries,
    }
    return {**copy, "digest": copy_digest(copy)}


def _is_evaluated(line: Mapping[str, Any]) -> bool:
    return any(name.startswith(_EVALUATED) for name in line)


def _is_count(name: str) -> bool:
    return name == "local_steps" or name.startswith("comm/")


def copy_digest(copy: Mapping[str, Any]) -> str:
    """128 bits (hex) over all of a compact copy but the digest itself."""
    return hashlib.sha256(canonical({**copy, "digest": None})).hexdigest()[:32]


def unpack(copy: Mapping[str, Any], path: Path) -> RunRecord:
    """The record of a compact copy. Raises DataError for content that is not one."""
    try:
        lines: dict[int, dict[str, Any]] = {number: {} for number in copy["counts"]["round"]}
        for columns in (copy["counts"], copy["evaluated"]):
            for name, column in columns.items():
                for number, value in zip(columns["round"], column, strict=True):
                    if value is not None:
                        lines[number][name] = value
        return RunRecord(
            **{name: copy[name] for name in ("cell_key", "seed", "experiment", "manifest", "result", "summaries")},
            rounds=tuple(lines.values()),
            edited=copy["digest"] != copy_digest(copy),
            committed=True,
            path=path,
        )
    except (LookupError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not a compact record ({error!r}); {RESTORE}") from None


def _short(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
