"""All records as one table, for notebooks: a row for each round of each run."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.errors import DataError
from benchmark.plain import expanded
from benchmark.records.collect import read_records
from benchmark.records.record import RunRecord

# Column -> where it is in a record's experiment.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "method": ("method", "kind"),
    "data": ("data", "name"),
    "labels": ("data", "label_setting"),
    "network": ("model", "network"),
    "partition": ("partition", "kind"),
    **{name: ("federation", name) for name in ("K", "C", "T")},
}


def load(results: str | Path) -> pd.DataFrame:
    """Every run in a folder of results, and every committed copy: what tables count.

    Columns: cell_key, seed, status, profile, the settings of `SETTINGS`, round, and one for each metric, NaN where it
    was not measured. Accuracies are fractions. A committed copy has the metrics of its evaluated rounds. Records that
    cannot be read are left out, each with a line on standard error. Raises DataError for a folder without records.
    """
    folder, troubles = expanded(results), list[str]()
    keys = {path.name for name in ("runs", "reference") for path in folder.glob(f"{name}/*") if path.is_dir()}
    records = read_records(folder, sorted(keys), with_reference=True, troubles=troubles)
    for trouble in troubles:
        print(f"fssl: {trouble}", file=sys.stderr)
    rows = [row for seeds in records.values() for record in seeds.values() for row in _rows(record)]
    if not rows:
        raise DataError(f"{folder}: no records here; name a folder of results, such as results/")
    return pd.DataFrame(rows)


def _rows(record: RunRecord) -> Iterator[dict[str, Any]]:
    """One for each round."""
    run = {
        "cell_key": record.cell_key,
        "seed": record.seed,
        "status": record.status,
        "profile": record.result.get("profile"),
        **{name: _value(record.experiment, path) for name, path in SETTINGS.items()},
    }
    for line in record.rounds:
        yield {**run, "round": line["round"], **line}


def _value(experiment: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = experiment
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
