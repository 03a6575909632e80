"""`fssl reproduce`: plan, run only what is missing, print the table with published, ours, n, verdict."""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmark.cli.budgeted import add_budget, budget_of, spend
from benchmark.cli.main import add_places
from benchmark.cli.report import DEFAULT_SITE, Reader, on_disk
from benchmark.cli.scope import add_quoted, add_reference, add_scope, checked_seeds, uses_reference
from benchmark.cli.train import add_launch, checked_launch, diverged, train
from benchmark.errors import Diverged
from benchmark.papers.catalogue import ITEMS, items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES
from reports.exports import item_result
from reports.site import build, item_page
from reports.terminal import print_item
from sweeps.plan import Plan, plan, restricted

TABLE_WIDTH = 100  # columns


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Runs what is missing and prints the table. A second call trains nothing; Ctrl-C loses nothing. With --budget "
        "it ends in time with 0, tells what is missing, and the next call goes on from the checkpoints."
    )
    add_scope(command)
    add_quoted(command)
    add_launch(command)
    add_budget(command)
    command.add_argument("--json", action="store_true", help="print one JSON object an item, nothing else")
    add_reference(command)
    command.add_argument("--site", type=Path, default=DEFAULT_SITE, help="where the report is built")
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    start = time.monotonic()
    checked_launch(options)
    budget = budget_of(options)
    chosen = items(options.items, options.profile, options.also, also_quoted=options.also_quoted)
    with_reference = uses_reference(options)
    seeds = checked_seeds(options.seeds)

    def look() -> Plan:
        return plan(chosen, options.results, seeds=seeds, with_reference=with_reference)

    console = Console(stderr=True)
    if budget is not None:
        planned = spend(budget, look, options, console, start=start)
    else:
        planned = look()
        while planned.missing:  # once, or twice where trials choose what comes after them
            train(planned, options, console)
            planned = look()
    results = [(with_seeds(item, seeds), restricted(planned.records, planned.shown)) for item in planned.items]
    mine = {(item.name, item.profile) for item, _ in results}
    reader = Reader()
    found = on_disk(ITEMS, PROFILES, options.results, reader)
    others = [pair for pair in found if (pair[0].name, pair[0].profile) not in mine]
    build(results, options.site, others=others, troubles=reader.troubles)
    for item, records in results:
        report = options.site / item_page(item)
        if options.json:
            print(json.dumps(item_result(item, records, report=str(report))))
        else:
            print_item(item, records, output(), report=str(report))
    return Diverged.exit_code if diverged(planned) else 0


def output() -> Console:
    """Standard output; in a file or pipe as wide as the tables need."""
    console = Console()
    return console if console.is_terminal else Console(width=TABLE_WIDTH)


def with_seeds(item: Item, seeds: int | None) -> Item:
    return item if seeds is None else replace(item, seeds=seeds)
