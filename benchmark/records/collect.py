"""Read many records at once: of some cells, of a whole results folder, or as one table."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmark.config import nearest
from benchmark.errors import ConfigError, DataError, FsslError, one_line
from benchmark.experiment import NUMERICS
from benchmark.plain import dotted_names, expanded
from benchmark.records.copies import read_copy, reference_folders
from benchmark.records.identity import apart_in_words, changed_inputs, seed_folder
from benchmark.records.record import DIFFERENT_DATA, OLD_CODE, CellRecords, Records, RunRecord, read_run

if TYPE_CHECKING:
    import pandas as pd

RELEASED = "rounds.parquet"  # the file of a release with one row per round
# Column -> part and field of a record's experiment.
SETTINGS: Mapping[str, tuple[str, str]] = {
    "method": ("method", "kind"),
    "data": ("data", "name"),
    "labels": ("data", "label_setting"),
    "network": ("model", "network"),
    "partition": ("partition", "kind"),
    "R": ("partition", "R"),
    "alpha": ("partition", "alpha"),
    "N_s": ("data", "N_s"),
    **{name: ("federation", name) for name in ("K", "C", "T", "rounds")},
    "lr": ("optimizer", "lr"),
}


def read_records(
    results: Path,
    cell_keys: Iterable[str],
    *,
    with_reference: bool,
    with_runs: bool = True,
    troubles: list[str] | None = None,
) -> Records:
    """Return the records of these cells that were computed from the current data and code (`identity`).

    A run of this machine counts instead of a committed copy of the same seed, unless it is unfinished. With
    `with_reference`, committed copies count, and with `with_runs`, this machine's runs do. Without runs, copies count
    whatever data this machine has, so that results made from them are the same in every checkout.

    The records of each cell are `CellRecords`: finished records that do not count are kept apart,
    for tables that have no other number.

    With a list as `troubles`, a damaged record is left out, and the list gets one line about it.
    The list also gets a line for each reason why records do not count, if their seed has no
    finished record that does. Without a list, a damaged record raises DataError.
    """
    records: dict[str, CellRecords] = {}
    others: list[tuple[RunRecord, Sequence[str]]] = []
    folders = [*(reference_folders(results) if with_reference else ()), *([results / "runs"] if with_runs else ())]
    for cell_key in dict.fromkeys(cell_keys):
        seeds: dict[int, RunRecord] = {}
        stale: dict[int, RunRecord] = {}
        for path in (path for folder in folders for path in runs_in(folder / cell_key, troubles)):
            record = _read(path, troubles)
            if record is None:
                continue
            not_counted = _why_not_counted(record, with_runs=with_runs)
            if not_counted is None:
                known = seeds.get(record.seed)
                seeds[record.seed] = record if known is None else _first_of(known, record)
                continue
            if not_counted.phrases:
                others.append((record, not_counted.phrases))
            if record.result:
                stale[record.seed] = replace(record, stale=not_counted.reason)
        records[cell_key] = CellRecords(dict(sorted(seeds.items())), stale=dict(sorted(stale.items())))
    if troubles is not None:
        troubles += dict.fromkeys(
            _where_apart(results, record, other)
            for record, other in others
            if record.seed not in records[record.cell_key] or not records[record.cell_key][record.seed].result
        )
    return records


class _NotCounted(NamedTuple):
    reason: str  # as in `RunRecord.stale`
    phrases: Sequence[str] = ()  # what differs from the current data and code, for a message


def _why_not_counted(record: RunRecord, *, with_runs: bool) -> _NotCounted | None:
    """Return why the record does not count, or None if it counts."""
    if record.is_copy and record.result.get("numerics") != NUMERICS:
        return _NotCounted(OLD_CODE)
    if not with_runs:
        return None
    changed = changed_inputs(record.experiment, record.manifest, finished=bool(record.result))
    if not changed:
        return None
    is_code = any(phrase.startswith("code:") for phrase in changed)
    return _NotCounted(OLD_CODE if is_code else DIFFERENT_DATA, changed)


def _first_of(known: RunRecord, record: RunRecord) -> RunRecord:
    """Return the one of two records of a run that counts, with the other among its copies if both are useful.

    The later of two copies counts, and a finished run counts instead of a copy. A second copy,
    "seed=100@cuda.json.gz", never replaces a first one. The other record is useful if it was
    computed on a different kind of device.
    """
    is_second = record.is_copy and "@" in record.path.name
    replaces = bool(record.result) and not is_second and (known.is_copy or not known.result)
    first, other = (record, known) if replaces else (known, record)
    copies = {copy.trained_by: copy for copy in (other, *known.copies) if copy.result}
    copies.pop(first.trained_by, None)
    kept = tuple(replace(copy, copies=()) for copy in copies.values())
    return replace(first, copies=kept, committed=first.committed or (replaces and known.committed))


def read_once(read: Callable[..., Records]) -> Callable[..., Records]:
    """Return a version of `read_records` for one folder that keeps all records it has read.

    Items share cells, and reading a large folder is slow.
    """
    known: dict[tuple[str, bool], Mapping[int, RunRecord]] = {}

    def records(results: Path, cell_keys: Iterable[str], *, with_reference: bool) -> Records:
        wanted = list(dict.fromkeys(cell_keys))
        new = [cell_key for cell_key in wanted if (cell_key, with_reference) not in known]
        for cell_key, seeds in read(results, new, with_reference=with_reference).items():
            known[cell_key, with_reference] = seeds
        return {cell_key: known[cell_key, with_reference] for cell_key in wanted}

    return records


def _where_apart(results: Path, record: RunRecord, other: Sequence[str]) -> str:
    """Return one line for all seeds about records that were computed from different data or code."""
    folder = seed_folder(results / "runs" / record.cell_key, record.experiment)
    return apart_in_words(other, folder.with_name(folder.name.replace(str(record.seed), "<n>", 1)))


def all_records(results: Path, troubles: list[str]) -> Iterator[RunRecord]:
    """Yield every run and every committed copy; append a problem for each one that cannot be read."""
    cells = sorted([*results.glob("runs/*"), *results.glob("reference/*")])
    for path in (path for cell in cells for path in runs_in(cell, troubles)):
        record = _read(path, troubles, with_rounds=True)
        if record is not None:
            yield record


def runs_in(cell: Path, troubles: list[str] | None) -> list[Path]:
    """Return the folders of a cell's runs, or the files of its copies.

    A folder that this user may not read is appended to `troubles`, or raises OSError without that
    list.
    """
    is_run = re.compile(r"seed=.*\.json\.gz" if cell.parent.name == "reference" else "seed=.*").fullmatch
    try:
        return sorted(cell / name for name in os.listdir(cell) if is_run(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if troubles is None:
            raise
        troubles.append(f"{cell}: {error.strerror}")
        return []


def _read(path: Path, troubles: list[str] | None, *, with_rounds: bool = False) -> RunRecord | None:
    """Read one record; with `with_rounds`, also check its rounds, even if a digest matches them.

    Return None if there is no run. Append a damaged record to `troubles`, or raise its error
    without that list.
    """
    try:
        record = read_copy(path) if path.suffix == ".gz" else read_run(path)
        if record is not None and with_rounds:
            tuple(record.rounds)
        return record
    except (FsslError, OSError) as error:
        if troubles is None:
            raise
        troubles.append(trouble_with(path, error))
        return None


def trouble_with(path: Path, error: Exception) -> str:
    """Return the error in one line that begins with the path; errors of a failing disk do not contain the path."""
    message = one_line(error)
    return message if message.startswith(str(path)) else f"{path}: {message}"


def load(results: str | Path, *fields: str) -> "pd.DataFrame":
    """Return a table with every run and every committed copy in a results folder, as counted in tables.

    The columns are cell_key, seed, status, profile, the settings of `SETTINGS`, one for each name in `fields`, round,
    and one per metric, with NaN if it was not measured. `fields` are dotted names of further settings, such as
    "method.threshold" or "optimizer.schedule.kind"; a run without such a field has NaN. Accuracies are fractions. A
    committed copy has the metrics of its evaluated rounds. Seeds from 1000 on are trials of `fssl tune`. Records that
    cannot be read are left out, each with a line on standard error. Raise DataError for a folder without records, and
    ConfigError for a field that no run has.

    `results` may also be the folder of a release (`fssl report --release`); its table has one more column,
    "trained_by", and no `fields`.
    """
    folder = expanded(results)
    troubles = list[str]()
    if (folder / RELEASED).is_file():
        if fields:
            raise ConfigError(f"{folder} is a release; read the column experiment of its runs.parquet for {fields[0]}")
        return _read_parquet(folder / RELEASED)
    records = every_record(folder, troubles)
    for trouble in troubles:
        print(f"fssl: {trouble}", file=sys.stderr)
    frame = frame_of(records, fields)
    if not len(frame):
        raise DataError(f"{folder} contains no records; name a results folder, such as results/")
    for name in fields:
        if frame[name].isna().all():
            known = set[str]()
            for record in records:
                known.update(dotted_names(record.experiment))
            raise ConfigError(f"no run has a value of the field {name!r}; {nearest(name, sorted(known))}")
    return frame


def every_record(folder: Path, troubles: list[str]) -> list[RunRecord]:
    """Return every run and every committed copy in a results folder, as counted in tables."""
    keys = {path.name for name in ("runs", "reference") for path in folder.glob(f"{name}/*") if path.is_dir()}
    records = read_records(folder, sorted(keys), with_reference=True, troubles=troubles)
    return [record for seeds in records.values() for record in seeds.values()]


def frame_of(records: Iterable[RunRecord], fields: Sequence[str] = ()) -> "pd.DataFrame":
    """Return the rounds of these records as a table, with the columns of `load`."""
    import pandas as pd  # slow to import, and only notebooks need it

    rows: list[dict[str, Any]] = []
    for record in records:
        rows += _rows(record, fields)
    return pd.DataFrame(rows)


def _read_parquet(path: Path) -> "pd.DataFrame":
    """Read the rounds of a release. Raise ConfigError without pyarrow, and DataError if the file is damaged."""
    import pandas as pd

    try:
        return pd.read_parquet(path, engine="pyarrow")
    except ImportError:
        raise ConfigError(f"{path} needs the package pyarrow; type pip install 'fssl[parquet]'") from None
    except (OSError, ValueError) as error:  # pyarrow's errors are of these types
        raise DataError(f"{path} is not a release ({one_line(error)}); `fssl report --release` writes one") from None


def _value_at(experiment: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name such as "optimizer.schedule.kind", or None if there is none."""
    value: Any = experiment
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _rows(record: RunRecord, fields: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield one row per round."""
    named = {name: _value_at(record.experiment, name) for name in fields}
    run = {
        "cell_key": record.cell_key,
        "seed": record.seed,
        "status": record.status,
        "profile": record.result.get("profile"),
        **{name: record.experiment[part].get(field) for name, (part, field) in SETTINGS.items()},
        **named,
    }
    for line in record.rounds:
        measured = {name: values[line["round"]] for name, values in record.measures.items() if line["round"] in values}
        yield {**run, "round": line["round"], **measured, **line}
