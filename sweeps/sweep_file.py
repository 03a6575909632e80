"""W&B sweep files: written from a grid, read back strictly. W&B itself checks a file only on its server."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmark.config import nearest
from benchmark.errors import ConfigError
from sweeps.factors import NAMES, check
from sweeps.grid import Grid

COMMAND = ("${env}", "${interpreter}", "-m", "benchmark.cli.main", "run", "--sweep", "${args_json_file}")
PROGRAM = "benchmark/cli/main.py"  # the agent wants one, though the command does not use it
METRIC = {"name": "test/accuracy", "goal": "maximize"}
FIELDS = ("name", "description", "project", "program", "method", "metric", "run_cap", "command", "parameters")
# What a text looks like that was meant as something else: YAML 1.1 wants 1.0e-3, and knows null, not None.
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")
_OCTAL = re.compile(r"[-+]?0\d+")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """What is wrong, and in which line (from 1)."""

    line: int
    text: str


def written(grid: Grid, *, name: str, made_by: str) -> str:
    """The sweep file of a grid; `made_by` is the command that makes it again."""
    parameters = {
        factor: {"value": values[0]} if len(values) == 1 else {"values": list(values)}
        for factor, values in grid.items()
    }
    content = {
        "name": name,
        "project": "fssl",
        "program": PROGRAM,
        "method": "grid",
        "metric": METRIC,
        "command": list(COMMAND),
        "parameters": parameters,
    }
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=False, width=120, allow_unicode=True)
    return f"# made by: {made_by}\n{text}"


def read(path: Path) -> dict[str, list[Any]]:
    """The grid of a sweep file. Raises ConfigError that names the file, the line and what to write."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    if troubles := lint(text):
        raise ConfigError(f"{path}: line {troubles[0].line}: {troubles[0].text}")
    parameters = yaml.safe_load(text)["parameters"]
    return {name: entry["values"] if "values" in entry else [entry["value"]] for name, entry in parameters.items()}


def config(path: Path) -> dict[str, Any]:
    """The file's content as the server is given it; the file has to be one that `read` takes. Raises ConfigError."""
    read(path)
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return content


def lint(text: str) -> list[Trouble]:
    """Everything that is wrong with a sweep file of a grid of factors."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        return [Trouble(line=mark.line + 1 if mark else 1, text=f"is no plain YAML ({problem})")]
    if not isinstance(node, yaml.MappingNode):
        return [Trouble(line=1, text="holds no table of fields")]
    return sorted(_top(node), key=lambda trouble: trouble.line)


def _fields(node: yaml.MappingNode) -> dict[str, tuple[Any, yaml.Node]]:
    return {key.value: (key, value) for key, value in node.value}


def _top(node: yaml.MappingNode) -> Iterator[Trouble]:
    fields = _fields(node)
    for name, (key, _) in fields.items():
        if name not in FIELDS:
            yield _at(key, f"unknown field {name!r}; {nearest(name, FIELDS)}")
    for name in ("method", "command", "parameters"):
        if name not in fields:
            yield Trouble(line=1, text=f"{name} is missing")
    if "method" in fields and fields["method"][1].value != "grid":
        yield _at(fields["method"][1], f"method: {fields['method'][1].value!r}; write grid")
    if "command" in fields:
        words = tuple(word.value for word in fields["command"][1].value)
        if words != COMMAND:
            yield _at(fields["command"][1], f"command: is not ours; write {' '.join(COMMAND)}")
    if "parameters" in fields:
        parameters = fields["parameters"][1]
        if not isinstance(parameters, yaml.MappingNode) or not parameters.value:
            yield _at(parameters, "parameters: the grid is empty")
        else:
            for name, (key, entry) in _fields(parameters).items():
                yield from _parameter(name, key, entry)


def _parameter(name: str, key: yaml.Node, entry: yaml.Node) -> Iterator[Trouble]:
    if name not in NAMES:
        yield _at(key, f"parameters: unknown factor {name!r}; {nearest(name, NAMES)}")
        return
    if not isinstance(entry, yaml.MappingNode):
        yield _at(key, f"parameters.{name}: has no values; write value: or values: [...]")
        return
    fields = _fields(entry)
    if continuous := sorted(fields.keys() & {"min", "max", "mu", "sigma", "q", "distribution", "probabilities"}):
        yield _at(key, f"parameters.{name}.{continuous[0]}: a grid has no ranges; write values: [...]")
    elif len(fields) != 1 or not fields.keys() <= {"value", "values"}:
        yield _at(key, f"parameters.{name}: has {', '.join(fields) or 'nothing'}; write value: or values: [...]")
    elif "value" in fields:
        yield from _scalar(name, fields["value"][1])
    elif not isinstance(fields["values"][1], yaml.SequenceNode) or not fields["values"][1].value:
        yield _at(key, f"parameters.{name}.values: is no list of values; give at least one")
    else:
        for value in fields["values"][1].value:
            yield from _scalar(name, value)


def _scalar(name: str, node: yaml.Node) -> Iterator[Trouble]:
    where = f"parameters.{name}"
    if not isinstance(node, yaml.ScalarNode):
        yield _at(node, f"{where}: a list or table; give one value")
        return
    kind, text = node.tag.rpartition(":")[2], node.value
    if kind == "str" and node.style is None and _NUMBER.fullmatch(text):
        yield _at(node, f"{where}: YAML reads {text} as a text; write {float(text)}")
    elif kind == "int" and _OCTAL.fullmatch(text):
        yield _at(node, f"{where}: YAML reads {text} as {int(text, 8)}; write it without the leading zero")
    elif kind == "bool":
        yield _at(node, f"{where}: YAML reads {text} as true or false; no factor is that")
    elif kind in ("str", "int", "float"):
        try:
            check(name, yaml.safe_load(yaml.serialize(node)))
        except ConfigError as error:
            yield _at(node, f"parameters.{error}")
    else:
        yield _at(node, f"{where}: {text or 'nothing'} is no number and no name")


def _at(node: yaml.Node, text: str) -> Trouble:
    return Trouble(line=node.start_mark.line + 1, text=text)


def same(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """What a server's configuration of a sweep and a file's differ in, of what decides what is run here."""
    return [
        f"{name}: the server has {theirs.get(name)!r}, the file {ours.get(name)!r}"
        for name in ("method", "program", "command", "parameters")
        if theirs.get(name) != ours.get(name)
    ]
