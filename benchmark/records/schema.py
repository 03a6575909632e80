"""Define the types of a record's fields, which are checked once, when a file is read."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from benchmark.config import quoted
from benchmark.errors import DataError
from benchmark.files import ANEW

LARGEST = 1e300  # for numbers in a record


def is_number(value: object) -> bool:
    """Return whether the value is a finite number that fits into a float."""
    return type(value) in (int, float) and -LARGEST < value < LARGEST  # type: ignore[operator]


def is_whole(value: object) -> bool:
    return isinstance(value, int) and is_number(value)


KINDS: Mapping[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "a number": is_number,
    "a number or null": lambda value: value is None or is_number(value),
    "a whole number": is_whole,
    "a whole number above 0": lambda value: is_whole(value) and value > 0,
    "16 hexadecimal digits": lambda value: isinstance(value, str) and bool(re.fullmatch("[0-9a-f]{16}", value)),
    "done or diverged": lambda value: value in ("done", "diverged"),
    "true or false": lambda value: isinstance(value, bool),
}
# A name in KINDS, the type of each entry of a list, or the fields of an object. "name?" may be missing, and
# "name??" may also be null; "*" stands for all other names.
Wanted: TypeAlias = str | list[Any] | Mapping[str, Any]

NUMBERS: Wanted = {"*": "a number"}
EXPERIMENT: Wanted = {
    "data": {"name": "text", "pooled_test?": "a whole number"},
    "partition": {},
    "model": {"norm": "text", "network?": "text"},
    "method": {"kind": "text", "warm_start_rounds?": "a whole number"},
    "federation": {"rounds": "a whole number above 0"},
    "optimizer": {},
    "evaluation": {"every": "a whole number"},
    "profile?": "text",
    "seed": "a whole number",
}
_CODE: Mapping[str, Wanted] = {"commit": "text", "changes??": "text"}
_COUNTS: Wanted = {
    "server": ["a whole number"],
    "clients?": [["a whole number"]],
    "labelled?": [["a whole number"]],
}
MANIFEST: Wanted = {
    "code": _CODE,
    "packages": {"*": "text"},
    "hardware?": {"processor??": "text", "model??": "text"},
    "data": {"name": "text", "hash": "text", "partition": "text", "note?": "text", "class_counts?": _COUNTS},
    "engine": {"name": "text", "threads": "a whole number", "workers??": "a whole number"},
    "attempts?": [
        {
            "from_round": "a whole number",
            "started": "text",
            "code?": _CODE,
            "packages?": {"*": "text"},
            "hardware?": {"processor??": "text", "model??": "text"},
            "wandb?": {"id": "text", "project?": "text"},
        }
    ],
    "sources?": {"*": "text"},
    "initial_weights?": {"*": "a number"},
    "claims?": {"*": {"main": ["text"], "others": ["text"]}},
    "rule?": {"version": "a whole number", "constants": "text"},
    "numerics?": {"*": "a whole number"},
}
RESULT: Wanted = {
    "status": "done or diverged",
    "cell_key": "16 hexadecimal digits",
    "seed": "a whole number",
    "profile?": "text",
    "numerics": "a whole number",
    "rounds": "a whole number",
    "selection": "text",
    "measured?": {"every": "a whole number", "gradient_diversity_every": "a whole number"},
    "last": NUMBERS,
    "best??": NUMBERS,
    "cost": NUMBERS,
    "exchange?": {
        "training": "text",
        "pseudo_labels": "true or false",
        "state": NUMBERS,
        "holders": {"*": {"received": NUMBERS, "sent": NUMBERS, "kept": NUMBERS, "views": ["text"]}},
    },
    "measures?": {"round": ["a whole number"], "values": {"*": ["a number or null"]}},
    "wall_seconds": "a number",
    "cpu_seconds?": "a number",
    "server_seconds?": "a number",
    "error?": "text",
    "digest?": "text",
}
ROUND: Wanted = {"round": "a whole number", "cell_key?": "text", "seed?": "a whole number", "*": "a number"}
_COLUMNS: Wanted = {"round": ["a whole number"], "*": ["a number or null"]}
COPY: Wanted = {
    "cell_key": "16 hexadecimal digits",
    "seed": "a whole number",
    "experiment": EXPERIMENT,
    "manifest": MANIFEST,
    "result": RESULT,
    "counts": _COLUMNS,
    "evaluated": _COLUMNS,
    "summaries": {"*": NUMBERS},
    "digest": "text",
}


def check(value: Any, wanted: Wanted, where: str, remedy: str = ANEW) -> Any:
    """Return the value. Raise DataError that names the first field with a wrong type, and the remedy."""
    for fault in _faults(value, wanted, ""):
        raise DataError(f"{where} is wrong: {fault}; {remedy}")
    return value


def _faults(value: Any, wanted: Wanted, name: str) -> Iterator[str]:
    if isinstance(wanted, str):
        if not KINDS[wanted](value):
            yield f"{name} is {quoted(value)}, not {wanted}"
        return
    if not isinstance(value, list if isinstance(wanted, list) else dict):
        yield f"{name or 'it'} is {quoted(value)}, not a JSON {'list' if isinstance(wanted, list) else 'object'}"
        return
    if isinstance(wanted, list) and isinstance(wanted[0], str) and all(map(KINDS[wanted[0]], value)):
        return  # checks columns of numbers, most of a copy, at once
    for field, inner, kind in _fields(value, wanted):
        if not isinstance(kind, str) or not KINDS[kind](inner):  # a call for each number is slow
            yield from _faults(inner, kind, f"{name}.{field}" if name else f"{field}")


def _fields(value: Any, wanted: list[Any] | Mapping[str, Any]) -> Iterator[tuple[object, Any, Wanted]]:
    """Yield each field with its value and its required type."""
    if isinstance(wanted, list):
        yield from ((index, entry, wanted[0]) for index, entry in enumerate(value))
        return
    fields = {key.rstrip("?"): key for key in wanted}
    for field, key in fields.items():
        left_out = value.get(field) is None if key.endswith("??") else key.endswith("?") and field not in value
        if field != "*" and not left_out:
            yield field, value.get(field), wanted[key]
    if "*" in fields:
        yield from ((name, inner, wanted["*"]) for name, inner in value.items() if name not in fields)
