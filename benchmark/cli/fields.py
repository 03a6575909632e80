"""The fields of an experiment for `fssl run --help`: name, default, and the comment in its source."""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from benchmark.config import kind_of

WIDTH = 100  # columns
_FIELD = re.compile(r"    (\w+): [^#]*?(?:#\s*(.*))?$")


def comments(cls: type) -> dict[str, str]:
    """Field -> the comment at the end of its line, or above it."""
    texts: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        if line.startswith("    # "):
            above.append(line[6:].strip())
            continue
        if match := _FIELD.match(line):
            texts.setdefault(match[1], " ".join((match[2] or " ".join(above)).split()))
        above = []
    return texts


def lines_of(value: Any, path: str = "") -> Iterator[str]:
    """A line for each field: the value's own first, then its groups'. `path`: where a group lies in the experiment."""
    texts, hints = comments(type(value)), get_type_hints(type(value))
    inner = [f.name for f in fields(value) if is_dataclass(getattr(value, f.name))]
    for f in fields(value):
        if f.name not in inner:
            current = getattr(value, f.name)
            shown = json.dumps(current) if current is None or isinstance(current, bool) else current
            choices = f"one of {', '.join(get_args(hints[f.name]))}. " if get_origin(hints[f.name]) is Literal else ""
            line = f"--{path}{f.name}={shown}  {choices}{texts.get(f.name, '')}".rstrip()
            yield textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    for name in inner:
        group = getattr(value, name)
        summary = " ".join((inspect.getdoc(type(group)) or "").split("\n\n")[0].split())
        yield "\n" + textwrap.fill(f"{path}{name} ({kind_of(type(group))}): {summary}", WIDTH)
        yield from lines_of(group, f"{path}{name}.")
