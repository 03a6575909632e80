"""`fssl bench`: how fast the engines are on this machine, beside a plain loop, in one table."""

import argparse
import importlib.metadata
import json
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table as RichTable

from benchmark.bench import memory, peaks, sections
from benchmark.bench.measuring import require_proc
from benchmark.bench.sections import Options
from benchmark.bench.tables import Table, written
from benchmark.bench.works import WORKS
from benchmark.cli.main import add_places
from benchmark.errors import ConfigError
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.processes import usable_cores
from benchmark.records.files import write_atomically
from benchmark.records.provenance import PACKAGES, commit, hardware

PARTS = ("ratios", "share", "cost", "memory", "all")
PEAK_SECONDS = 1.0

DESCRIPTION = """Time rounds of the works A, B and C by the engines and by a plain PyTorch loop, in turn, on the
machine it is given: ratios, share of the machine's peak, what confident-only saves, cost over the cohort, memory,
start, and what a round costs beside local training. Prints tables and writes results/benchmarks/NAME.json and NAME.md.
Other programs disturb it: the load averages are in the file."""
WIDTH = 130  # of tables where there is no terminal


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = DESCRIPTION
    works = "; ".join(f"{work.name}: {work.what}" for work in WORKS.values())
    command.add_argument("--work", nargs="+", choices=sorted(WORKS), default=sorted(WORKS), help=works)
    command.add_argument(
        "--only",
        choices=PARTS,
        default="all",
        help="ratios: of --work to the plain loop; cost: work A; share: a run from its start",
    )
    command.add_argument("--rounds", type=int, default=5, help="counted rounds of each (default: 5), after one more")
    command.add_argument("--workers", type=int, default=usable_cores(), help="of the cpu engine (default: one a core)")
    command.add_argument("--threads", type=int, default=usable_cores(), help="of the plain loop (default: one a core)")
    command.add_argument(
        "--whole", action="store_true", help="work C with all 500 images of a client (minutes a round), else with 100"
    )
    command.add_argument("--name", help="of the files (default: by what is measured)")
    command.add_argument("--quick", action="store_true", help="tiny works: shows that everything runs, means nothing")
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    require_proc()
    for name in ("rounds", "workers", "threads"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name}: {getattr(options, name)}; at least 1 would be right")
    torch.set_num_threads(1)
    keep_freed_memory()
    console = Console(stderr=True)
    chosen = Options(
        rounds=options.rounds,
        workers=options.workers,
        threads=options.threads,
        data_root=options.data_root,
        quick=options.quick,
        whole=options.whole,
        say=lambda line: console.print(line, style="dim", highlight=False),
    )
    name = options.name or default_name(options)
    results = head(options, name)
    folder = options.results / "benchmarks"
    for part, measure in plan(options, chosen).items():
        chosen.say(f"measuring: {part}")
        results.update(measure())
        results["load_after"] = list(os.getloadavg())
        save(folder, name, results)  # what is measured so far, if this is broken off
    out = Console()
    if not out.is_terminal:
        out = Console(width=WIDTH)
    for table in written(results):
        out.print(drawn(table))
    print(f"written: {folder / name}.json and .md")
    return 0


def plan(options: argparse.Namespace, chosen: Options) -> Mapping[str, Callable[[], dict[str, Any]]]:
    """What to measure, in order; each gives entries of the results."""
    seconds = 0.02 if chosen.quick else PEAK_SECONDS
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "ratios": lambda: measured_ratios(options.work, chosen, seconds),
        "share": lambda: {"learning": sections.learning(chosen)},
        "cost": lambda: {"cost": sections.cost(chosen)},
        "memory": lambda: {"memory": memory.memory(chosen)},
    }
    return parts if options.only == "all" else {options.only: parts[options.only]}


def measured_ratios(works: list[str], chosen: Options, seconds: float) -> dict[str, Any]:
    """The machine's peaks, since shares of them are told, and the works in turn."""
    found = peaks.peaks(chosen.threads, seconds)
    return {
        "peaks": [vars(peak) for peak in found],
        "peak_gflops": peaks.convolution_peak(found),
        "ratios": {name: sections.ratios(name, chosen) for name in works},
    }


def default_name(options: argparse.Namespace) -> str:
    """engines, and what narrows it down: a part of it must not take the place of the whole."""
    words = ["engines"]
    if options.only != "all":
        words.append(options.only)
    if set(options.work) != set(WORKS):
        words += sorted(options.work)
    words += [word for word in ("whole", "quick") if getattr(options, word)]
    return "-".join(words)


def head(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Under which conditions: no name of a person, host or path is in it."""
    words = ["fssl", "bench", "--only", options.only, "--work", *options.work]
    words += ["--rounds", str(options.rounds), "--workers", str(options.workers), "--threads", str(options.threads)]
    return {
        "name": name,
        "command": shlex.join([*words, *(f"--{flag}" for flag in ("whole", "quick") if getattr(options, flag))]),
        "code": commit(),
        "hardware": hardware(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        "load_before": list(os.getloadavg()),
    }


def save(folder: Path, name: str, results: Mapping[str, Any]) -> None:
    """NAME.json and NAME.md, each whole or not at all. Raises CannotWrite."""
    text = json.dumps(results, indent=1, allow_nan=False) + "\n"
    write_atomically(folder / f"{name}.json", text.encode())
    write_atomically(folder / f"{name}.md", page(results).encode())


def page(results: Mapping[str, Any]) -> str:
    """The tables as Markdown, under the conditions they were measured in."""
    loads = [f"{results[when][0]:.2f}" for when in ("load_before", "load_after")]
    machine = results["hardware"]
    first = (
        f"# fssl bench\n\n`{results['command']}` on {machine['processor']}, {machine['cores']} cores, torch "
        f"{results['packages']['torch']}, commit {results['code']['commit'][:12]}; load average {loads[0]} before and "
        f"{loads[1]} after. Medians, with least and most in brackets.\n\n"
    )
    return first + "\n".join(table.markdown() for table in written(results))


def drawn(table: Table) -> RichTable:
    """The table for a terminal."""
    rich = RichTable(*table.head, title=table.title, title_justify="left", caption="\n".join(table.notes))
    rich.caption_justify = "left"
    for row in table.rows:
        rich.add_row(*row)
    return rich
