"""`fssl run` trains one experiment, given by a file and `--a.b=c`, and writes its run record."""

import argparse
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from rich.console import Console

from benchmark.cli.main import Parser, site_of
from benchmark.cli.shared_options import add_devices, add_wandb
from benchmark.config import kind_of, merge
from benchmark.errors import ConfigError, Diverged
from benchmark.experiment import Experiment, to_json
from benchmark.papers.items import cell_named
from benchmark.papers.own import DEFAULT
from benchmark.papers.warm_start import ends_in_warm_start, too_short_in_words
from benchmark.plain import check_once, dotted_names, read_table
from sweeps.factors import experiment_of, with_fields

WIDTH = 100  # columns
_FIELD = re.compile(r"    (\w+): [^#]*?(?:#\s*(.*))?$")


def add_arguments(verb: str, command: Parser) -> None:
    command.add_argument("--config", type=Path, help="a JSON, YAML or TOML file with fields of an experiment")
    command.add_argument(
        "--cell", metavar="ITEM:LABEL", help='start from a cell of a paper, such as "ssfl/tab2:FedAvg/full"'
    )
    command.add_argument("--profile", help="the profile of --cell (default: demo)")
    command.add_argument(
        "--sweep",
        type=Path,
        metavar="FILE",
        help="the JSON file of a sweep agent, which gives factors by letter or a cell of a paper",
    )
    command.add_argument("--json", action="store_true", help="print only result.json and its folder")
    command.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads per tensor operation (default: 1, which is fastest for small networks)",
    )
    command.add_argument(
        "--engine",
        default="auto",
        help="auto (default), reference (trains one job after the other), pool (worker processes and a faster local "
        "step with different last bits) or stacked (trains the jobs of a round together, which is fast on a GPU; auto "
        "chooses it on a CUDA device). A run that is resumed keeps the engine that it began with",
    )
    add_devices(command, "workers of the pool (default: auto, the first CUDA device or the cores)")
    command.add_argument(
        "--workers", type=int, help="the number of processes of the pool (default: one per device or core)"
    )
    command.add_argument("--print-config", action="store_true", help="print the resolved experiment and stop")
    add_wandb(command)
    command.set_defaults(fields_of=Experiment)
    head = "fields of an experiment and their defaults (for a different method, type --print-config):"
    command.more = lambda: "\n".join([head, *lines_of(DEFAULT)])


def comments(cls: type) -> dict[str, str]:
    """Return the comment of each field, which is at the end of its line or above it."""
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
    """Yield one line per field: first the fields of the value itself, then the fields of its
    groups.

    `path` is the dotted name of the group.
    """
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


def run_command(options: argparse.Namespace) -> int:
    """Train one experiment and write its run record.

    A finished run is not trained again, and an interrupted run resumes. Fields are set by name, such as
    --federation.K=10 --federation.C=5 --partition.R=0.6, --data mnist or --method semifl. --precision is fp32, bf16
    (autocast) or, only on CUDA, tf32. With tf32, convolutions and matrix products are rounded as by torch's default
    when the papers were written.
    """
    start = _start(options)
    experiment = resolve(options.config, options.rest, start=start)
    if options.print_config:
        print(json.dumps({"cell_key": experiment.cell_key, **to_json(experiment)}, indent=1))
        return 0
    from benchmark.records.record import run_folder
    from reports.own_items import note_cells

    by_design = start is not None and ends_in_warm_start(start)
    if ends_in_warm_start(experiment) and not by_design:
        text = too_short_in_words(experiment, "--{name}={value}")
        print(f"fssl: no client trains on unlabelled images in this run: {text}", file=sys.stderr)
    given = {"profile": options.profile or "demo", **_words(options)} if options.cell else _words(options)
    note_cells({name: [value] for name, value in given.items()}, options.results)
    folder = run_folder(options.results, experiment)
    result = _train(experiment, folder, options)
    _say_what_differs(result, experiment, folder)
    if options.json:
        print(json.dumps({**result, "folder": str(folder)}))
    else:
        last = result["last"]
        shown = {name: last[name] for start in ("test/", "pseudo/") for name in last if name.startswith(start)}
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        print(f"{result['status']} after {result['rounds']} rounds: {numbers}{_nothing_kept(experiment, last)}")
        print(f"record: {folder}")
        print(f"page, once `fssl report` has drawn it: {site_of(options) / 'cells' / experiment.cell_key}.html")
    return Diverged.exit_code if result["status"] == "diverged" else 0


def _nothing_kept(experiment: Experiment, last: Mapping[str, Any]) -> str:
    """Return advice if the last round gave or selected no pseudo-label, and an empty text if not.

    The text is also empty for a run that ends in its warm start: it has no pseudo-labels at any threshold.
    """
    if ends_in_warm_start(experiment):
        return ""
    names = [name for name in dotted_names(to_json(experiment)["method"], "method") if name.endswith(".threshold")]
    if not names or last.get("pseudo/kept"):
        return ""
    hint = f"more rounds or a lower --{names[0]} may select some"
    return f"\nthe last round selected no pseudo-label at threshold {attrgetter(names[0])(experiment)}; {hint}"


def _say_what_differs(result: Mapping[str, Any], experiment: Experiment, folder: Path) -> None:
    """Print a message if a finished run is measured in other rounds than requested. It is not trained again."""
    from benchmark.records.record import measurements

    for name, asked in measurements(experiment.evaluation).items():
        measured = result.get("measured", {}).get(name, asked)
        if measured != asked:
            hint = "without this folder it is trained anew"
            print(f"fssl: {folder}: is measured with {name} {measured}, not {asked}; {hint}", file=sys.stderr)


def _train(experiment: Experiment, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    from pytorch_lightning.callbacks import LambdaCallback

    from benchmark.cli.progress import Display, look
    from benchmark.federated.devices import devices_named
    from benchmark.federated.engines import EngineOptions
    from benchmark.records.run import run
    from benchmark.records.wandb_mirror import mirrored, mode_asked
    from benchmark.verdicts.families import begun_under

    def watch(*_: object) -> None:
        display.show(lambda: [look(folder, experiment, "training")])

    console = Console(stderr=True, quiet=options.json)
    devices = devices_named(options.devices)
    engine = EngineOptions(engine=options.engine, workers=options.workers, threads=options.threads, devices=devices)
    mirror = mirrored(
        experiment,
        folder,
        words=_words(options),
        mode=mode_asked(options.wandb),
        wandb_folder=Path(options.results) / "wandb",
    )
    with Display(console) as display, mirror as mirrors:
        return run(
            experiment,
            options.results,
            callbacks=[LambdaCallback(on_train_batch_end=watch), *mirrors],
            engine=engine,
            begun_under=partial(begun_under, experiment, options.results),
        )


def _words(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the run as a sweep would name them."""
    if options.sweep:
        return read_table(options.sweep)
    return {"cell": options.cell} if options.cell else {}


def _start(options: argparse.Namespace) -> Experiment | None:
    if options.sweep is None:
        if options.profile and not options.cell:
            raise ConfigError("--profile applies only to --cell; name a cell, such as --cell ssfl/tab2:FedAvg/full")
        return cell_named(options.cell, options.profile or "demo") if options.cell else None
    if options.cell or options.config or options.profile:
        raise ConfigError("--sweep gives the whole experiment; leave out --cell, --profile and --config")
    return experiment_of(read_table(options.sweep))


def resolve(config: Path | None, overrides: Sequence[str], *, start: Experiment | None = None) -> Experiment:
    """Build the experiment from the start (default: DEFAULT), a file, then `--a.b=c` words. Raise ConfigError."""
    data = to_json(start or DEFAULT)
    file = {} if config is None else read_table(config)
    file.pop("cell_key", None)  # --print-config and experiment.json may contain it
    merge(data, file)
    words = [("data.name" if key == "data" else key, text) for key, text in pairs(overrides)]
    try:
        check_once([f"--{key}" for key, _ in words])
    except ValueError as error:
        raise ConfigError(str(error)) from None
    values = {key: text for key, text in words if key != "_wandb"}  # some sweep agents add the argument `_wandb`
    return with_fields(data, values, given=dotted_names(file))


def pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Parse `--a.b=c` and `--a.b c` as (key, text). Raise ConfigError for other words."""
    settings = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ConfigError(f"{word!r} is not understood; fields are set as --name=value")
        key, equals, text = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ConfigError(f"--{key} has no value; type --{key}=VALUE")
            text = rest.pop(0)
        settings.append((key, text))
    return settings
