"""`fssl report`: the site, single tables and figures, and what git keeps, from records alone."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmark.cli.main import ROOT, add_methods, add_site, site_of
from benchmark.errors import ConfigError
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS, items
from benchmark.papers.items import profiles as profiles_of
from benchmark.papers.scale import PROFILES, check_profile
from benchmark.records.collect import read_once, read_records
from benchmark.records.copies import write_reference
from benchmark.records.record import FINISHED, Records
from reports.exports import write_item
from reports.formatting import count
from reports.front import write_findings
from reports.own_items import ItemWithRecords, with_own
from reports.reported import Reported, connect
from reports.site import build
from sweeps.plan import plan, restricted

COMMITTED = tuple(profile for profile in PROFILES if profile != "demo")  # copies of their runs


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument("items", nargs="*", metavar="ITEM", help="default: all")
    command.add_argument("--profile", action="append", help="default: every profile")
    add_site(command)
    instead = command.add_mutually_exclusive_group()
    instead.add_argument(
        "--out", type=Path, metavar="FOLDER", help="no site: only the items' tables and figures, as files"
    )
    instead.add_argument(
        "--commit-reference", action="store_true", help="also write what git keeps: results/reference/"
    )
    instead.add_argument(
        "--readme", action="store_true", help="no site: only README's table of claims, and reports/findings.md"
    )
    add_methods(command)


def run_command(options: argparse.Namespace) -> None:
    """Build the site, a pure function of the records. Train nothing. Tables without any record are left out."""
    if options.readme:
        _readme(options)
    elif options.out is not None:
        _alone(options)
    else:
        if options.commit_reference:
            _commit_reference(options)
        print(build_site(options.results, site_of(options), names=options.items, profiles=options.profile or ()))


def _readme(options: argparse.Namespace) -> None:
    """Update the README from the committed copies and nothing else, so that it is the same in every checkout."""
    if options.items or options.profile:
        raise ConfigError("--readme: is of all items; leave out ITEM and --profile")
    read = read_once(partial(read_records, with_runs=False))
    results = on_disk((*ITEMS, *VARIANTS), COMMITTED, options.results, read)
    every = connect([Reported(item, records) for item, records in results])
    write_findings(every, ROOT / "reports" / "findings.md", ROOT / "README.md")


def build_site(
    results: Path,
    site: Path,
    *,
    shown: Sequence[ItemWithRecords] = (),
    names: Sequence[str] = (),
    profiles: Sequence[str] = (),
) -> Path:
    """Build the whole site, or only the pages of what is `shown` or of the named tables and profiles."""
    troubles: list[str] = []
    read = read_once(partial(read_records, troubles=troubles))
    every, files = (*ITEMS, *VARIANTS), [name for name in names if name.endswith(".toml")]
    known = [*shown, *on_disk((*every, *files), PROFILES, results, read)]
    chosen = on_disk(names or every, profiles or PROFILES, results, read) if names or profiles else shown
    only = {(item.name, item.profile) for item, _ in chosen} if shown or names or profiles else None
    pages: dict[tuple[str, str], ItemWithRecords] = {}
    for item, records in with_own(results, known, read, troubles):
        pages.setdefault((item.name, item.profile), (item, records))  # what is shown may have fewer cells and seeds
    if not shown:
        number = count(len(pages if only is None else only), "item")
        print(f"fssl: draws the pages of {number} and of their cells ...", file=sys.stderr)
    said = list(dict.fromkeys(trouble.replace(f"{results}/", "") for trouble in troubles))  # pages are for others, too
    return build(list(pages.values()), site, only=only, troubles=said, results=results)


def _alone(options: argparse.Namespace) -> None:
    """Write each table that has a record, as files. Raise ConfigError if none has."""
    names, profiles = options.items or (*ITEMS, *VARIANTS), options.profile or PROFILES
    results = on_disk(names, profiles, options.results, partial(read_records, troubles=[]))
    if not results:
        asked = f"{', '.join(names)} under {', '.join(profiles)}"
        raise ConfigError(f"--out: no record of {asked}; `fssl reproduce` makes them")
    for item, records in results:
        print(*write_item(item, records, options.out), sep="\n")


def _commit_reference(options: argparse.Namespace) -> None:
    names = options.items or (*ITEMS, *VARIANTS)
    profiles = [profile for profile in options.profile or COMMITTED if profile != "demo"]
    for item, _ in on_disk(names, profiles, options.results):
        planned = plan(items([item.word], item.profile), options.results)  # with the trials that it was chosen by
        runs = restricted(planned.records, planned.shown)
        for record in (record for seeds in runs.values() for record in seeds.values() if record.status in FINISHED):
            if "@" in record.path.name:
                print(f"fssl: {record.path}: is of other data or code than its seed's first run, and is not committed")
            # A cell has one key under every profile: some of its runs may have been trained for the demo.
            elif record.experiment.get("profile") != "demo":
                write_reference(options.results, record)


def on_disk(
    names: Collection[str], profiles: Iterable[str], results: Path, read: Callable[..., Records] = read_records
) -> Sequence[tuple[Item, Records]]:
    """Find the tables that have any record, in any profile. Committed copies count, but never for the demo."""
    recorded = []
    for profile in profiles:
        check_profile(profile)
        for item in items([name for name in names if name not in VARIANTS or profile in profiles_of(name)], profile):
            if item.profile != profile:
                continue  # another profile has the same runs, and shows them
            planned = plan([item], results, with_reference=profile != "demo", read=read)
            records = restricted(planned.records, planned.shown)
            if any(records.values()):
                recorded.append((planned.items[0], records))
    return recorded
