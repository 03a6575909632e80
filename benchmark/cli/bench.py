"""`fssl bench`: how fast the engines are on this machine, beside a plain loop."""

import argparse
import importlib.metadata
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown

from benchmark.bench.contenders import Options, ratios, require_proc
from benchmark.bench.memory import memory
from benchmark.bench.outside import outside
from benchmark.bench.works import WORKS
from benchmark.cli.main import add_places
from benchmark.errors import ConfigError
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.start import usable_cores
from benchmark.records.files import write_atomically
from benchmark.records.provenance import PACKAGES, commit, hardware

PARTS = ("ratios", "memory", "outside")
WIDTH = 130  # of tables where there is no terminal
DESCRIPTION = """Time rounds of the works A, B and C by the engines and by a plain PyTorch loop, in turn; memory and
start of large federations; and what a round costs beside local training. Prints tables and writes
results/benchmarks/NAME.json and NAME.md. Other programs disturb it: the load averages are in the file."""


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = DESCRIPTION
    works = "; ".join(f"{work.name}: {work.what}" for work in WORKS.values())
    command.add_argument("--work", nargs="+", choices=sorted(WORKS), default=sorted(WORKS), help=works)
    command.add_argument("--only", choices=PARTS, help="ratios: of --work to the plain loop; outside: work A")
    command.add_argument("--rounds", type=int, default=5, help="counted rounds of each (default: 5), after one more")
    command.add_argument("--workers", type=int, default=usable_cores(), help="of the pool (default: one a core)")
    command.add_argument("--threads", type=int, default=usable_cores(), help="of the plain loop (default: one a core)")
    command.add_argument("--name", help="of the files (default: by what is measured)")
    command.add_argument("--quick", action="store_true", help="tiny works: shows that everything runs, means nothing")
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    require_proc()
    for name in ("rounds", "workers", "threads"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name}: {getattr(options, name)}; choose 1 or more")
    torch.set_num_threads(1)
    keep_freed_memory()
    console = Console(stderr=True)
    chosen = Options(
        rounds=options.rounds,
        workers=options.workers,
        threads=options.threads,
        quick=options.quick,
        say=lambda line: console.print(line, style="dim", highlight=False),
    )
    measure = {
        "ratios": lambda: {name: ratios(name, chosen) for name in options.work},
        "memory": lambda: memory(chosen),
        "outside": lambda: outside(chosen),
    }
    name = options.name or default_name(options)
    results, folder = head(options, name), options.results / "benchmarks"
    for part in [options.only] if options.only else PARTS:
        chosen.say(f"measuring: {part}")
        results[part] = measure[part]()
        results["load_after"] = list(os.getloadavg())
        text = json.dumps(results, indent=1, allow_nan=False) + "\n"
        write_atomically(folder / f"{name}.json", text.encode())  # what is measured so far, if this is broken off
        write_atomically(folder / f"{name}.md", page(results).encode())
    out = Console()
    if not out.is_terminal:
        out = Console(width=WIDTH)
    out.print(Markdown("\n".join(tables(results))))
    print(f"written: {folder / name}.json and .md")
    return 0


def default_name(options: argparse.Namespace) -> str:
    """engines, and what narrows it down: a part of it must not take the place of the whole."""
    words = ["engines", *filter(None, [options.only])]
    if set(options.work) != set(WORKS):
        words += sorted(options.work)
    return "-".join([*words, "quick"] if options.quick else words)


def head(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """Under which conditions: no name of a person, host or path is in it."""
    words = ["fssl", "bench", *(["--only", options.only] if options.only else []), "--work", *options.work]
    words += ["--rounds", str(options.rounds), "--workers", str(options.workers), "--threads", str(options.threads)]
    return {
        "name": name,
        "command": shlex.join([*words, "--quick"] if options.quick else words),
        "code": commit(),
        "hardware": hardware(),
        "packages": {package: importlib.metadata.version(package) for package in PACKAGES},
        "load_before": list(os.getloadavg()),
    }


def page(results: Mapping[str, Any]) -> str:
    """The tables as Markdown, under the conditions they were measured in."""
    machine, packages = results["hardware"], results["packages"]
    first = (
        f"# fssl bench\n\n`{results['command']}` on {machine['processor']}, {machine['cores']} cores, torch "
        f"{packages['torch']}, commit {results['code']['commit'][:12]}; load average {results['load_before'][0]:.2f} "
        f"before and {results['load_after'][0]:.2f} after. Medians, with least and most in brackets.\n\n"
    )
    return first + "\n".join(tables(results))


def tables(results: Mapping[str, Any]) -> list[str]:
    """A table for every part that was measured, from its JSON."""
    found = [work_table(name, work) for name, work in results.get("ratios", {}).items()]
    if "memory" in results:
        found.append(memory_table(results["memory"]["rows"]))
    if "outside" in results:
        share = f"{100 * results['outside']['not_waiting_share']:.1f} %"
        note = (
            "Of a run with records, diversity and averaging: {rounds} rounds of {round_seconds:.2f} s, a test on "
            "{test_images:,} images every {tested_every} rounds."
        )
        row = ("wall time in which nobody waits for a client", share)
        title = "Outside local training, work A"
        found.append(table(title, ("", "share"), [row], note.format(**results["outside"])))
    return found


def work_table(name: str, work: Mapping[str, Any]) -> str:
    rows = [
        (
            label,
            brackets(row["wall_seconds"]),
            f"{row['cpu_seconds']['median']:.2f}",
            brackets(row["ratio"], "x"),
            brackets(row["cpu_ratio"], "x"),
            f"{row['samples_per_second']:,.0f}",
        )
        for label, row in work["contenders"].items()
    ]
    rounds = work["contenders"]["plain loop"]["rounds"]
    note = (
        f"{rounds} rounds each in turn after one to warm up; {work['samples']:,} trained samples a round, every one "
        "confident. Ratios are paired, above 1: faster than the plain loop."
    )
    columns = ("", "s a round", "CPU-s", "ratio", "CPU ratio", "samples/s")
    return table(f"Work {name}: {work['what']}", columns, rows, note)


def memory_table(measured: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f"{row['K']:,}",
            str(row["C"]),
            row["network"],
            f"{row['data_bytes'] / 2**30:.2f}",
            f"{row['over_data_bytes'] / 2**30:.2f}",
            f"{row['start_seconds']:.1f}",
            f"{row['round_seconds']:.1f}",
        )
        for row in measured
    ]
    note = (
        "Proportional set size of the run and its workers, sampled. To start: from a new process to the first round, "
        "imports included; the first round includes the workers' own start."
    )
    columns = ("K", "C", "network", "data GiB", "over it, peak GiB", "s to start", "s a round")
    return table("Memory and start", columns, rows, note)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join([f"## {title}", "", *lines, "", note]) + "\n"


def brackets(found: Mapping[str, float], unit: str = "") -> str:
    """Median and spread: 3.80 (3.74..3.99)."""
    return f"{found['median']:.2f}{unit} ({found['least']:.2f}..{found['most']:.2f})"
