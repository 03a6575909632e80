"""The performance page: the measurements under results/benchmarks, each with the command that made it.

The files differ in shape, so that they are shown as they are: equal records as a table, plain values as facts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reports.departures import article
from reports.formatting import NONE, number
from reports.provenance import flat
from reports.tables import Column, Entry, Row, Table


def performance_values(benchmarks: Path, written: Path) -> dict[str, Any]:
    """`benchmarks`: a folder of JSON files; `written`: a page in Markdown that may be absent."""
    files = sorted(benchmarks.glob("*.json")) if benchmarks.is_dir() else []
    return {
        "files": [_file(path) for path in files],
        "written": article(written.read_text()) if written.is_file() else "",
    }


def _file(path: Path) -> dict[str, Any]:
    start = {"name": path.stem.replace("_", " "), "trouble": "", "what": "", "command": "", "tables": [], "facts": []}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return {**start, "trouble": f"{path.name} cannot be read: {error}"}
    if not isinstance(found, Mapping):
        return {**start, "trouble": f"{path.name} is no JSON object"}
    rest = {str(key): value for key, value in found.items() if key not in ("what", "command")}
    tables = {key: rows for key, value in rest.items() if (rows := _rows(value))}
    facts = flat({key: value for key, value in rest.items() if key not in tables}, joint=" ")
    return {
        **start,
        "what": str(found.get("what", "")),
        "command": str(found.get("command", "")),
        "tables": [_table(key, rows) for key, rows in tables.items()],
        "facts": [(key.replace("_", " "), value, False) for key, value in sorted(facts.items())],
    }


def _rows(value: Any) -> dict[str, Mapping[str, Any]]:
    """Name -> record, of a mapping or list of records with plain values; empty for anything else."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value, 1) if isinstance(value, list) else ()
    named = {str(key): entry for key, entry in pairs}
    plain = all(isinstance(e, Mapping) and not any(isinstance(v, Mapping) for v in e.values()) for e in named.values())
    return named if plain else {}


def _table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> Table:
    heads = list(dict.fromkeys(str(key) for row in rows.values() for key in row))
    columns = (Column(name=name.replace("_", " "), left=True), *(Column(name=h.replace("_", " ")) for h in heads))
    lines = [
        Row(entries=(Entry(text=key), *(Entry(text=_text(row.get(h))) for h in heads))) for key, row in rows.items()
    ]
    return Table(name=name, caption=name.replace("_", " "), columns=columns, rows=tuple(lines))


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: NONE}[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return number(value) if isinstance(value, float) else str(value)
