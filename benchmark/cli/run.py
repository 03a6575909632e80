"""`fssl run`: one experiment from a file and `--a.b=c`, with its record as result."""

import argparse
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmark.cli.main import add_places
from benchmark.config import nearest, override
from benchmark.errors import ConfigError, Diverged
from benchmark.experiment import Experiment, from_json, to_json
from benchmark.papers.catalogue import items


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Train one experiment and write its record; a finished one is not trained again, an interrupted one goes on. "
        "Fields are set by name: --method.averaging=grouping --method.averaging.S=3 --federation.T=8."
    )
    command.add_argument("--config", type=Path, help="JSON, YAML or TOML file with an experiment's fields")
    command.add_argument("--cell", metavar="ITEM:LABEL", help='start from a paper\'s cell: "ssfl/tab2:FedAvg/full"')
    command.add_argument("--profile", default="demo", help="profile of --cell (default: demo)")
    command.add_argument("--json", action="store_true", help="print result.json and its folder, nothing else")
    command.add_argument(
        "--threads", type=int, default=1, help="threads a tensor operation (default: 1, fastest for small networks)"
    )
    command.add_argument(
        "--engine",
        default="auto",
        help="auto (default), reference (one job after another), cpu (worker processes; the same numbers) or gpu (one "
        "CUDA device; numbers agree to 1e-5). auto takes gpu where there is a CUDA device",
    )
    command.add_argument("--device", help="device of the gpu engine: cuda, cuda:1, or cpu, which only tests it")
    command.add_argument(
        "--gpu-candidate",
        default="measured",
        help="how the gpu engine takes local steps: graphs (clients as branches of a CUDA graph), batched (stacked "
        "clients) or plain (one by one); default: measured on the first jobs. An update that draws or reads numbers "
        "within a step is run plain whatever is asked for",
    )
    command.add_argument("--workers", type=int, help="processes of the cpu engine (default: one a core)")
    command.add_argument("--print-config", action="store_true", help="print the resolved experiment and stop")
    add_places(command)
    command.set_defaults(act=act, takes_overrides=True)


def act(options: argparse.Namespace) -> int:
    experiment = resolve(options.config, options.rest, cell=options.cell, profile=options.profile)
    if options.print_config:
        print(json.dumps({"cell_key": experiment.cell_key, **to_json(experiment)}, indent=1))
        return 0
    from benchmark.cli.progress import RunProgress
    from benchmark.tracking.recorder import run_folder
    from benchmark.tracking.run import run

    folder = run_folder(options.results, experiment)
    callbacks = [] if options.json else [RunProgress(experiment)]
    if options.threads < 1:
        raise ConfigError(f"--threads: {options.threads}; at least 1 would be right")
    result = run(
        experiment,
        options.results,
        data_root=options.data_root,
        callbacks=callbacks,
        threads=options.threads,
        engine=options.engine,
        workers=options.workers,
        device=options.device,
        gpu_candidate=options.gpu_candidate,
    )
    if options.json:
        print(json.dumps({**result, "folder": str(folder)}))
    else:
        shown = {name: value for name, value in result["last"].items() if name.startswith(("test/", "pseudo/"))}
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        print(f"{result['status']} after {result['rounds']} rounds: {numbers}\nrecord: {folder}")
    return Diverged.exit_code if result["status"] == "diverged" else 0


def resolve(
    config: Path | None, overrides: Sequence[str], *, cell: str | None = None, profile: str = "demo"
) -> Experiment:
    """The experiment of a paper's cell or the defaults, then a file, then `--a.b=c` words. Raises ConfigError."""
    data = to_json(_cell(cell, profile) if cell else Experiment())
    if config is not None:
        merge(data, read_config(config))
    for key, text in pairs(overrides):
        if key == "_wandb":  # an argument that some sweep agents add
            continue
        override(data, key, text)
    return from_json(data)


def _cell(name: str, profile: str) -> Experiment:
    item_name, _, label = name.partition(":")
    (item,) = items([item_name], profile)
    labels = [cell.label for cell in item.cells]
    if label not in labels:
        raise ConfigError(f"--cell: {item_name} has no cell {label!r}; {nearest(label, labels)}")
    return item.cell(label).experiment


def read_config(path: Path) -> dict[str, Any]:
    """A file's fields. YAML is read safely: no tag builds an object."""
    try:
        text = path.read_text()
        if path.suffix == ".toml":
            found = tomllib.loads(text)
        elif path.suffix == ".json":
            found = json.loads(text)
        else:
            found = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"--config: {path} cannot be read ({error.strerror})") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"--config: {path} is not whole ({error})") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--config: {path} holds {type(found).__name__}; a table of fields would be right")
    found.pop("cell_key", None)  # what --print-config and experiment.json may carry
    return found


def merge(data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Set nested fields; dotted keys are taken apart; another kind drops the old kind's fields."""
    for key, value in changes.items():
        if "." in key:
            head, _, tail = key.partition(".")
            value, key = {tail: value}, head
        old = data.get(key)
        if isinstance(value, dict) and isinstance(old, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            merge(old, value)
        elif isinstance(value, str) and isinstance(old, dict):
            data[key] = old if old.get("kind") == value else {"kind": value}
        else:
            data[key] = value


def pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """`--a.b=c` and `--a.b c` as (key, text). Raises ConfigError for anything else."""
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} is not understood; fields are set as --name=value")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"--{key} has no value; --{key}=VALUE would be right")
            text = rest.pop(0)
        found.append((key, text))
    return found
