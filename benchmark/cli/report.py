"""`fssl report` builds the site, single tables and figures, and the committed copies from run records only."""

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from benchmark.cli.main import ROOT, add_methods, add_site, site_of
from benchmark.errors import ConfigError, DataError
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS, items
from benchmark.papers.items import profiles as profiles_of
from benchmark.papers.scale import PROFILES, check_profile
from benchmark.plain import expanded
from benchmark.records.collect import every_record, read_once, read_records
from benchmark.records.copies import write_reference
from benchmark.records.record import FINISHED, Records, contain_runs
from benchmark.sharing.bundle import SUBMITTED
from reports.board import shown_environments
from reports.exports import write_item
from reports.front import write_findings
from reports.item_results import ItemResults, connect
from reports.own_items import ItemWithRecords, with_own
from reports.release import write_release
from reports.site import build, build_board
from reports.submissions import submissions_in
from sweeps.plan import plan, restricted

COMMITTED = tuple(profile for profile in PROFILES if profile != "demo")  # profiles with committed copies of runs


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "items", nargs="*", metavar="ITEM", help="the tables and figures to draw, such as ssfl/tab2 (default: all)"
    )
    command.add_argument(
        "--profile", action="append", help="the profile to draw; may be given several times (default: every profile)"
    )
    add_site(command)
    instead = command.add_mutually_exclusive_group()
    instead.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write only the tables and figures, as files in FOLDER, and build no site",
    )
    instead.add_argument(
        "--commit-reference", action="store_true", help="also write the copies for git: results/reference/"
    )
    instead.add_argument("--board", action="store_true", help="build only the page of the board")
    instead.add_argument(
        "--release",
        type=expanded,
        metavar="FOLDER",
        help="write all run records as Parquet files with a data card and Croissant metadata into FOLDER, and build no "
        "site (needs pip install 'fssl[parquet]')",
    )
    instead.add_argument(
        "--readme",
        action="store_true",
        help="update only README's table of claims and the two pages of findings in reports/, and build no site",
    )
    add_methods(command)


def run_command(options: argparse.Namespace) -> None:
    """Build the site from the run records without training. Tables without any run record are left out."""
    options.items = with_all_of_papers(options.items)
    if options.readme:
        _readme(options)
    elif options.board:
        print(_board(options))
    elif options.release is not None:
        _release(options)
    elif options.out is not None:
        _alone(options)
    else:
        if options.commit_reference:
            _commit_reference(options)
        print(build_site(options.results, site_of(options), names=options.items, profiles=options.profile or ()))


def with_all_of_papers(names: Sequence[str]) -> list[str]:
    """Return the names with each paper replaced by all its tables and figures, also ablations and further settings.

    A page of a paper links to all of them, whereas `fssl reproduce ssfl` only trains the paper's own tables.
    """
    known = (*ITEMS, *VARIANTS)
    expanded: list[str] = []
    for name in names:
        of_paper = [item for item in known if name in ("all", item.partition("/")[0])]
        expanded += of_paper or [name]
    return expanded


def _board(options: argparse.Namespace) -> Path:
    """Build the page of the board from the records of its tables and the accepted submissions."""
    if options.items or options.profile:
        raise ConfigError("--board always shows the tables of reports/board.toml; leave out ITEM and --profile")
    read = read_once(partial(read_records, troubles=[]))
    results: list[tuple[Item, Records]] = []
    for environment in shown_environments():
        results += on_disk([environment.item], [environment.profile], options.results, read)
    return build_board(results, site_of(options), options.results)


def _release(options: argparse.Namespace) -> None:
    """Write the release. With ITEMs or --profile, `tables` has only these; runs and rounds are always complete."""
    troubles: list[str] = []
    read = read_once(partial(read_records, troubles=troubles))
    results = on_disk(options.items or (*ITEMS, *VARIANTS), options.profile or PROFILES, options.results, read)
    records = every_record(options.results, troubles)
    submissions, refused = submissions_in(options.results / SUBMITTED)
    for trouble in dict.fromkeys([*troubles, *refused]):
        print(f"fssl: left out: {trouble}", file=sys.stderr)
    if not records and not submissions:
        raise DataError(f"{options.results} contains no records; name a results folder: --results PATH")
    every = [ItemResults(item, records_of) for item, records_of in results]
    print(*write_release(every, records, submissions, options.release), sep="\n")


def _readme(options: argparse.Namespace) -> None:
    """Update the README from the committed copies only, so that it is the same in every checkout."""
    if options.items or options.profile:
        raise ConfigError("--readme always covers all tables and figures; leave out ITEM and --profile")
    read = read_once(partial(read_records, with_runs=False))
    results = on_disk((*ITEMS, *VARIANTS), COMMITTED, options.results, read)
    every = connect([ItemResults(item, records) for item, records in results])
    write_findings(every, ROOT / "reports", ROOT / "README.md")


def build_site(
    results: Path,
    site: Path,
    *,
    shown: Sequence[ItemWithRecords] = (),
    names: Sequence[str] = (),
    profiles: Sequence[str] = (),
) -> Path:
    """Build the whole site, or only the pages of the tables in `shown`, or of the named tables and profiles."""
    troubles: list[str] = []
    read = read_once(partial(read_records, troubles=troubles))
    every = (*ITEMS, *VARIANTS)
    files = [name for name in names if name.endswith(".toml")]
    known = [*shown, *on_disk((*every, *files), PROFILES, results, read)]
    chosen = on_disk(names or every, profiles or PROFILES, results, read) if names or profiles else shown
    only = {(item.name, item.profile) for item, _ in chosen} if shown or names or profiles else None
    pages: dict[tuple[str, str], ItemWithRecords] = {}
    for item, records in with_own(results, known, read, troubles):
        # The tables in `shown` are first and win: they may have fewer cells and seeds.
        pages.setdefault((item.name, item.profile), (item, records))
    if not shown:
        number = len(pages if only is None else only)
        what = "1 table or figure and its cells" if number == 1 else f"{number} tables and figures and their cells"
        print(f"fssl: drawing the pages of {what} ...", file=sys.stderr)
    # Readers on other machines see the pages, so problems name no local folder.
    said = list(dict.fromkeys(trouble.replace(f"{results}/", "") for trouble in troubles))
    return build(list(pages.values()), site, only=only, troubles=said, results=results)


def _alone(options: argparse.Namespace) -> None:
    """Write each table that has a run record as files. Raise ConfigError if no table has one."""
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
        planned = plan(items([item.word], item.profile), options.results)  # includes the trials that chose its settings
        runs = restricted(planned.records, planned.shown)
        for record in (record for seeds in runs.values() for record in seeds.values() if record.status in FINISHED):
            if "@" in record.path.name:
                print(
                    f"fssl: {record.path} was computed from different data or code than the first run of this seed, "
                    "and is not committed"
                )
            # A cell has the same key under every profile, so some of its runs may have been trained for the demo.
            elif record.experiment.get("profile") != "demo":
                write_reference(options.results, record)


def on_disk(
    names: Collection[str], profiles: Iterable[str], results: Path, read: Callable[..., Records] = read_records
) -> Sequence[tuple[Item, Records]]:
    """Return the tables with at least one run record under these profiles. Copies count, except for the demo.

    A table is included even if all its records were computed from different data or code; its cells then show that.
    """
    recorded = []
    for profile in profiles:
        check_profile(profile)
        for item in items([name for name in names if name not in VARIANTS or profile in profiles_of(name)], profile):
            if item.profile != profile:
                continue  # a different profile has the same runs and shows them
            planned = plan([item], results, with_reference=profile != "demo", read=read)
            records = restricted(planned.records, planned.shown)
            if contain_runs(records):
                recorded.append((planned.items[0], records))
    return recorded
