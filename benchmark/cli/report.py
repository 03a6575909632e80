"""`fssl report`: the site, the summary, single tables and figures, and the committed copies, from records alone."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmark.cli.main import ROOT, add_places
from benchmark.errors import ConfigError
from benchmark.papers.catalogue import ITEMS, items
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES, check_profile
from benchmark.records.record import Records, read_records, write_reference
from benchmark.records.survey import Survey, cell_keys
from reports.alone import write_alone
from reports.figures import picture
from reports.orphans import orphans
from reports.paper_figures import main_figure
from reports.serve import DEFAULT_PORT, serve
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
        "--out", type=Path, metavar="FOLDER", help="no site: only the items' tables and figures, as files"
    )
    command.add_argument(
        "--serve",
        type=int,
        nargs="?",
        const=DEFAULT_PORT,
        metavar="PORT",
        help=f"build, and show the site on this machine while runs go on (default port: {DEFAULT_PORT}; 0: any)",
    )
    command.add_argument(
        "--commit-reference",
        action="store_true",
        help="also write what git keeps: results/summary.csv, results/reference/, and a picture of each item",
    )
    command.add_argument("--pictures", type=Path, default=ROOT / "reports", help=argparse.SUPPRESS)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    if options.out is not None:
        return _alone(options)
    if options.serve is not None:
        if not 0 <= options.serve <= 65535:
            raise ConfigError(f"--serve: {options.serve}; a port from 0 to 65535 would be right")
        serve(lambda: _build(options), options.site, options.serve)
        return 0
    if options.commit_reference:
        _commit_reference(options)
    print(_build(options))
    return 0


def _build(options: argparse.Namespace) -> Path:
    survey = Survey()
    results = on_disk(options.items or ITEMS, options.profile or PROFILES, options.results, survey)
    whole = not options.items and not options.profile
    others: Sequence[tuple[Item, Records]] = ()
    if whole:
        results = [*results, *_unplanned(options.results, survey)]
    else:
        asked = {(item.name, item.profile) for item, _ in results}
        every = on_disk(ITEMS, PROFILES, options.results, survey)
        others = [(item, records) for item, records in every if (item.name, item.profile) not in asked]
    return build(
        results,
        options.site,
        others=others,
        troubles=survey.troubles,
        benchmarks=options.results / "benchmarks",
        studies=options.results / "studies",
        whole=whole,
    )


def _unplanned(results: Path, survey: Survey) -> Sequence[tuple[Item, Records]]:
    """Runs that belong to no table or figure, such as those of `fssl run`."""
    keys = [key for key in cell_keys(results, with_reference=True) if key not in survey.seen]
    return orphans(survey.read(results, keys, with_reference=True), survey.troubles)


def _alone(options: argparse.Namespace) -> int:
    """Each item that has a record, as files. Raises ConfigError where none has."""
    survey = Survey()
    names, profiles = options.items or ITEMS, options.profile or PROFILES
    results = on_disk(names, profiles, options.results, survey)
    if not results:
        raise ConfigError(
            f"--out: no record of {', '.join(names)} under {', '.join(profiles)}; `fssl reproduce` makes them"
        )
    for item, records in results:
        for path in write_alone(item, records, options.out):
            print(path)
    return 0


def _commit_reference(options: argparse.Namespace) -> None:
    results = on_disk(options.items or ITEMS, options.profile or PROFILES, options.results)
    kept = [(item, records) for item, records in results if item.profile != "demo"]
    for item, records in kept:
        _commit(plan(items([item.name], item.profile), options.results), options.results)  # with what it was chosen by
        paper, name = item.name.split("/")
        picture(main_figure(item, records), options.pictures / paper / f"{name}-{item.profile}")
    write_summary(kept, options.results / "summary.csv")


def on_disk(
    names: Iterable[str], profiles: Iterable[str], results: Path, survey: Survey | None = None
) -> Sequence[tuple[Item, Records]]:
    """The items that have any record, in any of the profiles. Committed copies count, but never for the demo.
    With a survey, records that cannot be read are missing and told in its `troubles`; else they raise DataError."""
    read = survey.read if survey is not None else read_records
    found = []
    for profile in profiles:
        check_profile(profile)
        for item in items(names, profile):
            if item.profile != profile:
                continue  # another profile has the same runs, and shows them
            planned = plan([item], results, with_reference=profile != "demo", read=read)
            records = restricted(planned.records, planned.shown)
            if any(records.values()):
                found.append((planned.items[0], records))
    return found


def _commit(planned: Plan, results: Path) -> None:
    for run in planned.runs:
        record = planned.records.get(run.cell_key, {}).get(run.seed)
        if record is not None and record.status in ("done", "diverged"):
            write_reference(results, record)
