"""`fssl plan`: what `reproduce` would run, and what it would cost, before anything runs."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.cli.main import add_places
from benchmark.cli.reproduce import add_quoted, add_scope, checked_seeds, uses_reference
from benchmark.papers.catalogue import items
from benchmark.papers.census import census
from sweeps.cost import Cost, cost_of
from sweeps.plan import plan
from sweeps.speed import Stopwatch


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Counts runs, local steps, FLOPs and bytes by a dry run of each method, and says where a count is not exact; "
        "hours come from timing each kind of job on this machine (random images: no data set is needed)."
    )
    add_scope(command)
    add_quoted(command)
    command.add_argument(
        "--json", action="store_true", help="print one JSON object an item (and one for all of several), nothing else"
    )
    command.add_argument("--all", action="store_true", help="also count runs that are done already")
    command.set_defaults(act=act, with_reference=None)
    add_places(command)


def act(options: argparse.Namespace) -> int:
    seeds, stopwatch = checked_seeds(options.seeds), Stopwatch()
    chosen = items(options.items, options.profile, options.also, also_quoted=options.also_quoted)
    parts = [(item.name, [item]) for item in chosen]
    if len(chosen) > 1:  # tables share runs: the whole is less than the sum
        parts.append((", ".join(options.items), chosen))
    for name, part in parts:
        planned = plan(part, options.results, seeds=seeds, with_reference=uses_reference(options))
        runs = planned.runs if options.all else planned.missing
        total = sum((cost_of(run, stopwatch, options.data_root) for run in runs), Cost())
        counted = {
            "item": name,
            "profile": options.profile,
            "cells": planned.cells,
            "runs": len(runs),
            **total.to_json(),
            **(asdict(census(planned.items)) if len(part) > 1 else {}),
        }
        if options.json:
            print(json.dumps(counted))
        else:
            _print(counted, len(planned.runs) - len(planned.missing), Console())
    return 0


def _print(counted: dict[str, Any], done: int, console: Console) -> None:
    table = Table(title=f"{counted['item']}, profile {counted['profile']}", show_header=False, title_justify="left")
    rows = [
        ("cells", f"{counted['cells']}"),
        *(_kinds(counted) if "published" in counted else ()),
        ("runs", f"{counted['runs']} ({done} done already)"),
        ("local steps", f"{counted['local_steps']:,}"),
        ("FLOPs", f"{counted['flops']:.3g}"),
        ("bytes up", f"{counted['bytes_up'] / 1e9:,.2f} GB"),
        ("bytes down", f"{counted['bytes_down'] / 1e9:,.2f} GB"),
        ("hours here", f"{counted['hours']:,.2f} on {counted['cores']} cores (timed on a few jobs just now)"),
        *(("note", note) for note in counted["notes"]),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _kinds(counted: dict[str, Any]) -> list[tuple[str, str]]:
    """Of the whole of several items, each shared cell once."""
    again, quoted = counted["measured_again"], counted["quoted"]
    more = f", and {again} of them again to measure more on the way" if again else ""
    return [
        ("of the paper", f"{counted['published']}{more}"),
        ("of ours", f"{counted['controls']} controls, {counted['rungs']} rungs of a ladder"),
        *([("only shown", f"{quoted} quoted (--also-quoted trains them)")] if quoted else []),
    ]
