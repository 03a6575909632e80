"""`fssl report`: the site, the summary and the committed copies, from records alone."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmark.cli.main import ROOT, add_places
from benchmark.papers.catalogue import ITEMS, items
from benchmark.papers.item import Item
from benchmark.papers.profiles import PROFILES, profile_named
from benchmark.tracking.reading import Records, write_reference
from reports.figures import curves
from reports.site import build
from reports.summary import write_summary
from sweeps.plan import Plan, plan, restricted

DEFAULT_SITE = ROOT / "reports" / "site"


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = "A pure function of the records: trains nothing. Items with no record at all are left out."
    command.add_argument("items", nargs="*", metavar="ITEM", help="default: all")
    command.add_argument("--profile", action="append", help="default: every profile")
    command.add_argument("--site", type=Path, default=DEFAULT_SITE)
    command.add_argument(
        "--commit-reference",
        action="store_true",
        help="also write what git keeps: results/summary.csv, results/reference/, and each item's curves",
    )
    command.add_argument("--pictures", type=Path, default=ROOT / "reports", help=argparse.SUPPRESS)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    results = on_disk(options.items or ITEMS, options.profile or PROFILES, options.results)
    if options.commit_reference:
        kept = [(item, records) for item, records in results if item.profile != "demo"]
        for item, records in kept:
            _commit(plan([item], options.results), options.results)
            paper, name = item.name.split("/")
            curves(item, records, path=options.pictures / paper / f"{name}-{item.profile}")
        write_summary(kept, options.results / "summary.csv")
    print(build(results, options.site))
    return 0


def on_disk(names: Iterable[str], profiles: Iterable[str], results: Path) -> Sequence[tuple[Item, Records]]:
    """The items that have any record, in any of the profiles. Committed copies count, but never for the demo."""
    found = []
    for profile in profiles:
        profile_named(profile)
        for item in items(names, profile):
            planned = plan([item], results, with_reference=profile != "demo")
            records = restricted(planned.records, planned.runs)
            if any(records.values()):
                found.append((planned.items[0], records))
    return found


def _commit(planned: Plan, results: Path) -> None:
    for run in planned.runs:
        record = planned.records.get(run.cell_key, {}).get(run.seed)
        if record is not None and record.status in ("done", "diverged"):
            write_reference(results, record)
