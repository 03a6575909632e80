"""Write and read compact copies of finished runs, which are in git: results/reference/<cell_key>/seed=<n>.json.gz.

A run that was also computed on a second kind of device has a second copy: seed=<n>@cpu.json.gz or
seed=<n>@nvidia-h200.json.gz.

Git records their history: `git status results/reference` lists the copies that were changed, added
or deleted since a commit.
"""

import gzip
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import DataError, one_line
from benchmark.files import json_object, write_atomically
from benchmark.records.provenance import ROOT
from benchmark.records.record import NO_METRICS, RunRecord, canonical, check_result_is_of
from benchmark.records.schema import COPY, check

RESTORE = "`git checkout` restores it"
COMMITTED = ROOT / "results"  # its copies count for every results folder
LARGEST = 1 << 25  # bytes of a copy's text: a hundred times the largest committed copy
# Prefixes of the metrics that determine which rounds are kept.
_EVALUATED = ("test/", "validation/", "diversity/gradient/")


def reference_folders(results: Path) -> list[Path]:
    """Return the folders with the copies of cells, including the checkout's; later ones override earlier ones."""
    ours, here = COMMITTED / "reference", results / "reference"
    return [here] if here.resolve() == ours.resolve() else [ours, here]


def write_reference(results: Path, record: RunRecord) -> Path:
    """Write a finished run's compact copy into `results/reference`. Raise DataError if the record was edited."""
    path = copy_path(results / "reference", record)
    write_atomically(path, copied(record))
    return path


def copy_path(folder: Path, record: RunRecord, known: Iterable[Path] = ()) -> Path:
    """Return where `folder` has the run's copy, or will have it.

    It is a second copy if the first one was made by a different engine or on a different kind of device. The first one
    may also be in one of the folders `known`.
    """
    first = f"{record.cell_key}/seed={record.seed}.json.gz"
    present = [place / first for place in (folder, *known) if (place / first).is_file()]
    if all(read_copy(path).trained_by == record.trained_by for path in present):
        return folder / first
    device = re.sub(r"[^a-z0-9]+", "-", record.trained_by[1].removeprefix("a ").lower()).strip("-")
    return folder / record.cell_key / f"seed={record.seed}@{device}.json.gz"


def copied(record: RunRecord) -> bytes:
    """Return the compact copy as the bytes of a file.

    Raise DataError for a record that was edited, because the copy's digest would hide that.
    """
    if record.edited:
        raise DataError(
            f"{record.path} was edited after it was written, and cannot be committed or submitted (`fssl verify`)"
        )
    return gzip.compress(canonical(pack(record)) + b"\n", mtime=0)


def read_copy(path: Path) -> RunRecord:
    """Return the record of a committed copy. Raise DataError as in `copy_of`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}); {RESTORE}") from None
    return copy_of(content, path)


def copy_of(content: bytes, path: Path, remedy: str = RESTORE) -> RunRecord:
    """Return the record of the compact copy at `path`.

    Raise DataError if the content is not a compact copy, or belongs to a different cell or seed
    than its path.
    """
    unzip = zlib.decompressobj(wbits=31)  # for gzip files
    try:
        text = unzip.decompress(content, LARGEST)
    except zlib.error as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}); {remedy}") from None
    if not unzip.eof or unzip.unused_data:  # it is truncated, has trailing bytes, or is larger than a copy can be
        raise DataError(f"{path} cannot be read (not one complete gzip file of at most {LARGEST:,} bytes); {remedy}")
    record = unpack(check(json_object(text, path), COPY, f"{path}", remedy), path)
    check_result_is_of(record)
    for what, filed, named in (
        ("cell", path.parent.name, record.cell_key),
        ("seed", path.name.removesuffix(".json.gz").partition("@")[0], f"seed={record.seed}"),
    ):
        if filed != named:
            raise DataError(f"{path} contains a record of {what} {named}; {remedy}")
    return record


def pack(record: RunRecord) -> dict[str, Any]:
    """Build the compact copy as JSON values, with the rounds as one list per metric.

    Counts have a value for each round. For all other metrics, `evaluated` has the values of the
    rounds that are kept, with six significant digits, and `summaries` has statistics over all
    rounds.
    """
    rounds = record.rounds
    # In a copy of a copy, a metric that no kept round has appears only in the summaries.
    names = sorted({name for line in (*rounds, record.summaries) for name in line} - NO_METRICS)
    # The result has the sums of the clocks.
    others = [name for name in names if not _is_count(name) and not name.startswith("time/")]
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
    """Return a hexadecimal hash of 128 bits over all of a compact copy except the digest itself."""
    return hashlib.sha256(canonical({**copy, "digest": None})).hexdigest()[:32]


def unpack(copy: Mapping[str, Any], path: Path) -> RunRecord:
    """Return the record of a compact copy. Raise DataError for content that is not one."""
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
        raise DataError(f"{path} is not a compact record ({error!r}); {RESTORE}") from None


def _short(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
