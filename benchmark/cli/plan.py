"""`fssl plan`: what `reproduce` would run, and what it would cost, before anything runs."""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmark.cli.budgeted import Spending, add_budget, as_json, budget_of, nothing_fits, tell
from benchmark.cli.main import add_places
from benchmark.cli.scope import add_quoted, add_scope, checked_seeds, uses_reference
from benchmark.errors import ConfigError, DataError
from benchmark.papers.catalogue import items
from benchmark.papers.census import census
from benchmark.papers.item import Item
from benchmark.records.files import write_json
from benchmark.records.provenance import hardware
from sweeps.budget import Budget
from sweeps.cost import Cost, cost_of
from sweeps.estimates import held_to_records, table
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
    add_budget(command)
    command.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of --budget: runs side by side")
    command.add_argument(
        "--check",
        action="store_true",
        help="instead: the estimates of runs that this machine has finished, beside what they cost in CPU seconds",
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="of --check: write it there as JSON")
    command.set_defaults(act=act, with_reference=None)
    add_places(command)


def act(options: argparse.Namespace) -> int:
    budget = budget_of(options)
    chosen = items(options.items, options.profile, options.also, also_quoted=options.also_quoted)
    if options.jobs < 1:
        raise ConfigError(f"--jobs: {options.jobs}; at least 1 would be right")
    if options.check:
        return _check(chosen, options)
    if budget is not None:
        return _budgeted(chosen, budget, options)
    return _counted(chosen, options)


def _counted(chosen: Sequence[Item], options: argparse.Namespace) -> int:
    """What there is to run, an item at a time and in all."""
    seeds, stopwatch = checked_seeds(options.seeds), Stopwatch()
    parts = [(item.name, [item]) for item in chosen]
    if len(chosen) > 1:  # tables share runs: the whole is less than the sum
        parts.append((", ".join(options.items), list(chosen)))
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


def _budgeted(chosen: Sequence[Item], budget: Budget, options: argparse.Namespace) -> int:
    """What `reproduce --budget` would do now."""
    start, console = time.monotonic(), Console()
    planned = plan(chosen, options.results, seeds=checked_seeds(options.seeds), with_reference=uses_reference(options))
    found = Spending(budget, options.results, options.data_root, options.jobs, start).choose(planned)
    if planned.missing and not found.fit.taken:
        raise ConfigError(nothing_fits(options.budget, found))
    if options.json:
        print(json.dumps(as_json(found, budget, planned.items)))
    else:
        tell(budget, found, planned.items, console)
    return 0


def _check(chosen: Sequence[Item], options: argparse.Namespace) -> int:
    """Estimates held to records. Raises DataError where this machine has no such record."""
    stopwatch, rows, console = Stopwatch(), [], Console()
    for item in chosen:
        planned = plan([item], options.results, seeds=checked_seeds(options.seeds), with_reference=False)
        names = {cell.cell_key: cell.label for cell in planned.items[0].cells}
        runs = [(names.get(run.cell_key, "trial"), run) for run in planned.runs]
        held = held_to_records(runs, options.results, options.data_root, stopwatch)
        if held:
            rows.append(table(held, item.name, item.profile))
            rows[-1]["by_run"] = [{**vars(one), "ratio": round(one.ratio, 3)} for one in held]
    if not rows:
        raise DataError(
            f"{options.results}/runs: no finished run of these with CPU seconds from this machine; "
            "after `fssl reproduce` of one there is"
        )
    found = {
        "what": "CPU seconds as `fssl plan` estimates them beside those of the runs' records; ratio: over the outcome",
        "command": f"fssl plan {' '.join(options.items)} --profile {options.profile} --check",
        "hardware": hardware(),
        "items": [{name: value for name, value in row.items() if name != "by_run"} for row in rows],
        "runs": [{"item": row["item"], **run} for row in rows for run in row["by_run"]],
    }
    if options.out:
        write_json(options.out, found)
    if options.json:
        print(json.dumps(found))
    else:
        _print_check(found, console)
    return 0


def _print_check(found: dict[str, Any], console: Console) -> None:
    shown = Table(box=None, pad_edge=False)
    for column in ("item", "run", "seed", "estimate (CPU s)", "outcome (CPU s)", "ratio"):
        shown.add_column(column, justify="left" if column in ("item", "run") else "right")
    for row in found["runs"]:
        numbers = f"{row['estimate']:.1f}", f"{row['outcome']:.1f}", f"{row['ratio']:.2f}"
        shown.add_row(row["item"], row["name"], str(row["seed"]), *numbers)
    for row in found["items"]:
        numbers = f"{row['estimate_cpu_seconds']:.1f}", f"{row['outcome_cpu_seconds']:.1f}", f"{row['ratio']:.2f}"
        shown.add_row(row["item"], f"all {row['runs']}, {row['within_25_percent']} within 25 %", "", *numbers)
    console.print(shown)


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
