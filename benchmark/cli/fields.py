"""The fields of an experiment for `fssl run --help`: name and default, and what the source says beside each."""

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from benchmark.config import kind_of
from benchmark.experiment import Experiment

WIDTH = 100  # columns
_FIELD = re.compile(r"    (\w+): [^#]*?(?:#\s*(.*))?$")


def comments(cls: type) -> dict[str, str]:
    """Field -> the comment at its end, or above it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        if line.startswith("    # "):
            above.append(line[6:].strip())
            continue
        if match := _FIELD.match(line):
            found.setdefault(match[1], " ".join((match[2] or " ".join(above)).split()))
        above = []
    return found


def listed(experiment: Experiment) -> str:
    """All fields, a group after the other, with the values that they have here."""
    return "\n".join(_group("", experiment))


def _group(path: str, value: Any) -> Iterator[str]:
    """Its own fields before the groups in it."""
    said, hints = comments(type(value)), get_type_hints(type(value))
    inner = [f.name for f in fields(value) if is_dataclass(getattr(value, f.name))]
    for f in fields(value):
        if f.name not in inner:
            now = getattr(value, f.name)
            shown = json.dumps(now) if now is None or isinstance(now, bool) else now
            choices = f"one of {', '.join(get_args(hints[f.name]))}. " if get_origin(hints[f.name]) is Literal else ""
            line = f"--{path}{f.name}={shown}  {choices}{said.get(f.name, '')}".rstrip()
            yield textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    for name in inner:
        now = getattr(value, name)
        what = " ".join((inspect.getdoc(type(now)) or "").split("\n\n")[0].split())
        yield "\n" + textwrap.fill(f"{path}{name} ({kind_of(type(now))}): {what}", WIDTH)
        yield from _group(f"{path}{name}.", now)
