"""Write W&B sweep files from grids, and read them strictly, because W&B checks a file only on its server."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmark.config import choose, nearest
from benchmark.errors import ConfigError
from benchmark.plain import read_table
from sweeps.factors import check, long_enough
from sweeps.grid import Grid

COMMAND = ("${env}", "${interpreter}", "-m", "benchmark.cli.main", "run", "--sweep", "${args_json_file}")
PROGRAM = "benchmark/cli/main.py"  # the agent requires a program, although the command does not use it
METRIC = {"name": "test/accuracy", "goal": "maximize"}
FIELDS = (
    "name",
    "description",
    "project",
    "program",
    "method",
    "metric",
    "run_cap",
    "command",
    "parameters",
    "early_terminate",
)
METHODS = ("grid", "random", "bayes")
MISSING = {  # the value of a field that the server requires
    "method": "write method: grid, random or bayes",
    "command": f"write command: [{', '.join(map(json.dumps, COMMAND))}]",
    "parameters": "write parameters: and below it the factors, such as R: {values: [0, 0.4]}",
}
REPORTED = ("test/accuracy", "test/loss", "validation/accuracy", "validation/loss")  # after every evaluation
# A text that was intended as a number: YAML 1.1 reads 1e-3 as a text and 1.0e-3 as a number.
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?")


def written(grid: Grid, *, name: str, made_by: str) -> str:
    """Return the text of a grid's sweep file; `made_by` is the command that prints it."""
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
    """Read the grid of a sweep file. Raise ConfigError, which names the file, the entry and a valid value."""
    content = config(path)
    if content["method"] != "grid":
        raise ConfigError(f"{path} has method {content['method']}, so W&B chooses the runs; `wandb agent` trains them")
    parameters = content["parameters"]
    return {name: entry["values"] if "values" in entry else [entry["value"]] for name, entry in parameters.items()}


def chosen_by_wandb(path: Path) -> str:
    """Return the method of a sweep that lets W&B choose the runs, such as "bayes", or an empty text for a grid.

    Raise ConfigError if no experiment accepts the ends of its ranges, or if the shortest run with the longest warm
    start ends before its clients train.
    """
    content = config(path)
    if content["method"] == "grid":
        return ""
    parameters = content["parameters"]
    lowest = {name: _end(entry, "min", 0) for name, entry in parameters.items()}
    highest = {name: _end(entry, "max", -1) for name, entry in parameters.items()}
    for values in (lowest, highest, {**highest, **_shortest(parameters)}):
        try:
            long_enough(values)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return str(content["method"])


def _shortest(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest number of rounds and the longest warm start that W&B may choose, if it chooses them."""
    chosen: dict[str, Any] = {}
    for name, end, extreme in (("federation.rounds", "min", min), ("method.warm_start_rounds", "max", max)):
        if name in parameters:
            entry = parameters[name]
            values = [entry[end]] if end in entry else entry.get("values", [entry.get("value")])
            if numbers := [value for value in values if isinstance(value, int | float)]:
                chosen[name] = extreme(numbers)
    return chosen


def _end(entry: Mapping[str, Any], end: str, place: int) -> Any:
    return entry[end] if end in entry else entry.get("values", [entry.get("value")])[place]


def config(path: Path) -> dict[str, Any]:
    """Return the file's content, which `wandb sweep` sends to the server. Raise ConfigError for an invalid file."""
    content = read_table(path)
    try:
        _check(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return content


def _check(content: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first error in a sweep file of a grid of factors."""
    for name in content:
        if name not in FIELDS:
            raise ConfigError(f"unknown field {name!r}; {nearest(name, FIELDS)}")
    for name in ("method", "command", "parameters"):
        if name not in content:
            raise ConfigError(f"{name} is missing; {MISSING[name]}")
    if content["method"] not in METHODS:
        raise ConfigError(f"method is {content['method']!r}; {choose(METHODS)}")
    if content["method"] == "grid" and "early_terminate" in content:
        raise ConfigError("early_terminate does not suit a grid, since all its runs train to their end; leave it out")
    metric = content.get("metric")
    if metric is None and (content["method"] == "bayes" or "early_terminate" in content):
        raise ConfigError("metric is missing; write name: test/accuracy and goal: maximize")
    reported = metric.get("name") if isinstance(metric, dict) else metric
    if metric is not None and reported not in REPORTED:
        raise ConfigError(f"metric is {reported!r}, which runs do not report; {nearest(reported, REPORTED)}")
    if content["command"] != list(COMMAND):
        raise ConfigError(f"command is not the command of this suite; {MISSING['command']}")
    if not isinstance(content["parameters"], dict) or not content["parameters"]:
        raise ConfigError("parameters is an empty grid; give at least one factor")
    for name, entry in content["parameters"].items():
        _check_parameter(name, entry, ranges=content["method"] != "grid")


def _check_parameter(name: Any, entry: Any, *, ranges: bool) -> None:
    if ranges and isinstance(entry, dict) and {"min", "max"} <= entry.keys() <= {"min", "max", "distribution"}:
        entry = {"values": [entry["min"], entry["max"]]}
    if not isinstance(entry, dict) or list(entry) not in (["value"], ["values"]):
        raise ConfigError(
            f"parameters.{name} has neither value: nor values: [...]; write one of them, since a grid has no ranges"
        )
    values = entry.get("values", [entry.get("value")])
    if not isinstance(values, list) or not values:
        raise ConfigError(f"parameters.{name}.values is not a list of values; give at least one")
    for value in values:
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            raise ConfigError(f"parameters.{name} has {value}, which YAML reads as a text; write {float(value)}")
        try:
            check(f"{name}", value)
        except ConfigError as error:
            raise ConfigError(f"parameters: {error}") from None


def differences(on_server: Mapping[str, Any], in_file: Mapping[str, Any]) -> list[str]:
    """Return one line for each field that decides the runs and differs between the server's sweep and the file."""
    return [
        f"{name}: the server has {on_server.get(name)!r}, the file {in_file.get(name)!r}"
        for name in ("method", "program", "command", "parameters")
        if on_server.get(name) != in_file.get(name)
    ]
