"""The performance page: the measurements under results/benchmarks, each with the command that made it.

The files differ in shape, so that they are shown as they are: plain values as facts, equal records beside each other as
a table. `reports/performance.md`, where there is one, goes before them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reports.prose import prose
from reports.words import aligned, number

HEAD = ("what", "command")


def performance_values(benchmarks: Path, written: Path) -> dict[str, Any]:
    """`benchmarks`: a folder of JSON files; `written`: a page in Markdown that may be absent."""
    return {
        "files": [_file(path) for path in sorted(benchmarks.glob("*.json"))] if benchmarks.is_dir() else [],
        "written": prose(written.read_text()) if written.is_file() else "",
    }


def _file(path: Path) -> dict[str, Any]:
    start = {"name": path.stem.replace("_", " "), "what": "", "command": "", "facts": [], "tables": [], "trouble": ""}
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return {**start, "trouble": f"{path.name} cannot be read: {error}"}
    if not isinstance(found, Mapping):
        return {**start, "trouble": f"{path.name} is no JSON object"}
    rest = {str(key): value for key, value in found.items() if key not in HEAD}
    tables = {key: value for key, value in rest.items() if _rows(value)}
    return {
        **start,
        "what": str(found.get("what", "")),
        "command": str(found.get("command", "")),
        "facts": sorted(_flat({key: value for key, value in rest.items() if key not in tables}).items()),
        "tables": [_table(key, _rows(value)) for key, value in tables.items()],
    }


def _rows(value: Any) -> dict[str, Mapping[str, Any]]:
    """Name -> record, of a mapping or list of records with plain values; empty for anything else."""
    if isinstance(value, Mapping):
        named = {str(key): entry for key, entry in value.items()}
    elif isinstance(value, Sequence) and not isinstance(value, str):
        named = {str(place): entry for place, entry in enumerate(value, start=1)}
    else:
        return {}
    plain = all(isinstance(e, Mapping) and not any(isinstance(v, Mapping) for v in e.values()) for e in named.values())
    return named if plain else {}


def _table(name: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    columns = list(dict.fromkeys(str(key) for row in rows.values() for key in row))
    down = [aligned([_text(row.get(column, "")) for row in rows.values()]) for column in columns]
    return {
        "name": name.replace("_", " "),
        "columns": [column.replace("_", " ") for column in columns],
        "rows": [(key, list(fields)) for key, *fields in zip(rows, *down, strict=True)],
    }


def _flat(entries: Mapping[str, Any], above: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in entries.items():
        name = f"{above} {str(key).replace('_', ' ')}".strip()
        if isinstance(value, Mapping):
            found |= _flat(value, name)
        else:
            found[name] = _text(value)
    return found


def _text(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "\u2013"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return number(float(value)) if isinstance(value, float) else str(value)
