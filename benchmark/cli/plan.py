"""`fssl plan`: what `reproduce` would run, and what it would cost, before anything runs."""

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.cli.main import add_places
from benchmark.cli.reproduce import add_scope, checked_seeds, uses_reference
from benchmark.papers.catalogue import items
from sweeps.cost import Cost, cost_of
from sweeps.plan import plan
from sweeps.speed import Stopwatch


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Counts runs, local steps, FLOPs and bytes by a dry run of each method, and says where a count is not exact; "
        "hours come from timing each kind of job on this machine (random images: no data set is needed)."
    )
    add_scope(command)
    command.add_argument("--json", action="store_true", help="print one JSON object an item, nothing else")
    command.add_argument("--all", action="store_true", help="also count runs that are done already")
    command.set_defaults(act=act, with_reference=None)
    add_places(command)


def act(options: argparse.Namespace) -> int:
    console, seeds, stopwatch = Console(), checked_seeds(options.seeds), Stopwatch()
    for item in items(options.items, options.profile, options.also):
        planned = plan([item], options.results, seeds=seeds, with_reference=uses_reference(options))
        runs = planned.runs if options.all else planned.missing
        total = sum((cost_of(run, stopwatch, options.data_root) for run in runs), Cost())
        counted = {
            "item": item.name,
            "profile": item.profile,
            "cells": planned.cells,
            "runs": len(runs),
            **total.to_json(),
        }
        if options.json:
            print(json.dumps(counted))
        else:
            _print(counted, len(planned.runs) - len(planned.missing), console)
    return 0


def _print(counted: dict[str, Any], done: int, console: Console) -> None:
    table = Table(title=f"{counted['item']}, profile {counted['profile']}", show_header=False, title_justify="left")
    rows = [
        ("cells", f"{counted['cells']}"),
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
