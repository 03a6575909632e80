"""`fssl bench`: how fast the engines are on this machine, beside a plain loop."""

import argparse
import importlib.metadata
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmark.bench.contenders import Options, ratios, require_proc
from benchmark.bench.works import WORKS
from benchmark.cli.main import add_places, number
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.start import usable_cores
from benchmark.records.files import write_atomically
from benchmark.records.provenance import PACKAGES, commit, hardware

WIDTH = 130  # of tables where there is no terminal
DESCRIPTION = """Time rounds of the works A, B and C by the engines and by a plain PyTorch loop, in turn. Prints a table
of each and writes results/benchmarks/NAME.json. Other programs disturb it: the load averages are in the file."""


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = DESCRIPTION
    works = "; ".join(f"{name}: {work.what}" for name, work in WORKS.items())
    command.add_argument("--work", nargs="+", choices=sorted(WORKS), default=sorted(WORKS), help=works)
    command.add_argument(
        "--rounds", type=number(1), default=5, help="counted rounds of each (default: 5), after one more"
    )
    command.add_argument("--workers", type=number(1), default=usable_cores(), help="of the pool (default: one a core)")
    command.add_argument(
        "--threads", type=number(1), default=usable_cores(), help="of the plain loop (default: one a core)"
    )
    command.add_argument("--quick", action="store_true", help="tiny works: shows that everything runs, means nothing")
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    require_proc()
    torch.set_num_threads(1)
    keep_freed_memory()
    progress, out = Console(stderr=True), Console()
    if not out.is_terminal:
        out = Console(width=WIDTH)
    chosen = Options(
        rounds=options.rounds,
        workers=options.workers,
        threads=options.threads,
        quick=options.quick,
        say=lambda line: progress.print(line, style="dim", highlight=False),
    )
    # A part of it must not take the place of the whole.
    part = sorted(options.work) if set(options.work) != set(WORKS) else []
    path = (
        options.results / "benchmarks" / f"{'-'.join(['engines', *part, *(['quick'] if options.quick else [])])}.json"
    )
    results: dict[str, Any] = {**conditions(options), "ratios": {}}
    for name in options.work:
        results["ratios"][name] = ratios(name, chosen)
        results["load_after"] = list(os.getloadavg())
        # What is measured so far, if this is broken off.
        write_atomically(path, (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())
        out.print(table(name, results["ratios"][name]))
    print(f"written: {path}")
    return 0


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """No name of a person, host or path is in it."""
    words = ["fssl bench --work", *options.work, "--rounds", options.rounds, "--workers", options.workers]
    words += ["--threads", options.threads, *(["--quick"] if options.quick else [])]
    return {
        "command": " ".join(map(str, words)),
        "code": commit(),
        "hardware": hardware(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        "load_before": list(os.getloadavg()),
    }


def table(name: str, work: Mapping[str, Any]) -> Table:
    note = (
        f"{work['rounds']} rounds each in turn after one to warm up: medians, with least and most. "
        f"{work['samples']:,} trained samples a round, every one confident. Ratios are paired, above 1: faster than "
        "the plain loop."
    )
    title = f"Work {name}: {work['what']}"
    columns = ("", "s a round", "CPU-s", "ratio", "CPU ratio", "samples/s")
    found = Table(*columns, title=title, title_justify="left", caption=note)
    for label, row in work["contenders"].items():
        found.add_row(
            label,
            brackets(row["wall_seconds"]),
            f"{row['cpu_seconds']['median']:.2f}",
            brackets(row["ratio"], "x"),
            brackets(row["cpu_ratio"], "x"),
            f"{row['samples_per_second']:,.0f}",
        )
    return found


def brackets(found: Mapping[str, float], unit: str = "") -> str:
    """Median and spread: 3.80 (3.74..3.99)."""
    return f"{found['median']:.2f}{unit} ({found['least']:.2f}..{found['most']:.2f})"
