"""`fssl report`: the site, the summary and the committed copies, from records alone."""

import argparse
from pathlib import Path

from benchmark.cli.main import add_places
from benchmark.cli.reproduce import DEFAULT_SITE
from benchmark.papers.catalogue import ITEMS, items
from benchmark.papers.profiles import PROFILES
from benchmark.tracking.reading import write_reference
from reports.site import build
from reports.summary import write_summary
from sweeps.plan import Plan, plan, restricted


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = "A pure function of the records: trains nothing. Items with no record at all are left out."
    command.add_argument("items", nargs="*", metavar="ITEM", help="default: all")
    command.add_argument("--profile", action="append", help="default: every profile")
    command.add_argument("--site", type=Path, default=DEFAULT_SITE)
    command.add_argument(
        "--commit-reference",
        action="store_true",
        help="also write results/summary.csv and the compact copies in results/reference/, which git keeps",
    )
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    results = []
    for profile in options.profile or PROFILES:
        for item in items(options.items or ITEMS, profile):
            planned = plan([item], options.results, with_reference=profile != "demo")
            records = restricted(planned.records, planned.runs)
            if any(records.values()):
                results.append((item, records))
                if options.commit_reference and profile != "demo":
                    _commit(planned, options.results)
    if options.commit_reference:
        kept = [(item, records) for item, records in results if item.profile != "demo"]
        write_summary(kept, options.results / "summary.csv")
    print(build(results, options.site))
    return 0


def _commit(planned: Plan, results: Path) -> None:
    for run in planned.runs:
        record = planned.records.get(run.cell_key, {}).get(run.seed)
        if record is not None and record.status in ("done", "diverged"):
            write_reference(results, record)
