"""Compose the page on records: confirmatory runs that are not committed, and copies of cells that no table has."""

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.data.folder import public_name
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS, item_of, profiles
from benchmark.records.collect import read_records
from benchmark.records.not_committed import LeftOut, left_out
from benchmark.records.record import RunRecord
from benchmark.records.seeds import seeds_text
from reports.tables import Table, table_of


@functools.cache
def keys_of_items() -> frozenset[str]:
    """Return the keys of all cells of the suite's items under every profile, including the cells that trials may
    choose.
    """
    builders: Mapping[str, Callable[..., Item]] = {**ITEMS, **VARIANTS}
    keys = set[str]()
    for name, build in builders.items():
        for item in (item_of(build, profile) for profile in profiles(name)):
            keys |= {cell.cell_key for cell in item.cells}
            for choice in item.choices:
                keys |= {e.cell_key for e in (*choice.trials.values(), *choice.finals.values())}
    return frozenset(keys)


def copies_of_no_table(results: Path, keys: Collection[str]) -> dict[str, Mapping[int, RunRecord]]:
    """Return the committed copies of cells that are not among these keys, by cell and seed."""
    folder = results / "reference"
    cells = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    others = [cell for cell in cells if cell not in keys]
    found = read_records(results, others, with_reference=True, with_runs=False, troubles=[])
    return {key: runs for key, runs in found.items() if runs}


def number_of_no_table(records: Iterable[RunRecord]) -> int:
    """Count the records that are committed copies of cells that no item has."""
    committed = [record.cell_key for record in records if record.path.parent.parent.name == "reference"]
    return sum(key not in keys_of_items() for key in committed)


def copies_table(copies: Mapping[str, Mapping[int, RunRecord]]) -> Table:
    """Return a table of copies with one row per cell."""
    rows = []
    for key, runs in copies.items():
        experiment = next(iter(runs.values())).experiment
        rows.append(
            (
                key,
                experiment["method"]["kind"],
                public_name(experiment["data"]["name"]),
                str(experiment.get("profile", "unknown")),
                str(len(runs)),
                seeds_text(runs),
            )
        )
    heads = ("Cell", "Method", "Data", "Profile", "Copies", "Seeds")
    return table_of("no-table", "Copies in cells of no table", heads, rows, words=4)


def ledger_table(groups: Collection[LeftOut]) -> Table:
    """Return a table of confirmatory runs that are not committed, with one row per group of runs."""
    rows = [
        (
            f"{group.item}, {group.profile}",
            ", ".join(group.cells),
            group.seeds,
            f"{group.device}; begun {group.begun}, commit {group.commit}",
            f"{group.reason} {group.source}",
            str(group.count),
        )
        for group in groups
    ]
    heads = ("Item", "Cells", "Seeds", "Where and when", "Why they are not committed", "Runs")
    return table_of("ledger", "Confirmatory runs that are not committed", heads, rows, words=5)


def records_values(results: Path | None) -> dict[str, Any]:
    """Return the values of the page on records."""
    groups = left_out(results) if results else ()
    copies = copies_of_no_table(results, keys_of_items()) if results else {}
    return {
        "ledger": ledger_table(groups),
        "n_left_out": sum(group.count for group in groups),
        "copies": copies_table(copies),
        "n_copies": sum(map(len, copies.values())),
    }
