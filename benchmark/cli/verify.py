"""`fssl verify` checks that run records are complete and unchanged, and accepts or refuses a submission."""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.cli.main import add_methods, number
from benchmark.errors import ConfigError, DataError
from benchmark.papers.item import CONFIRMING, Item
from benchmark.papers.items import items
from benchmark.plain import expanded
from benchmark.records.collect import all_records
from benchmark.records.git_history import changed_copies, history_faults
from benchmark.records.not_committed import left_out_in_words
from benchmark.records.record import FINISHED, RunRecord
from benchmark.records.versions import older_numerics
from benchmark.sharing.verify import check_records, retrain_each, troubles_of, why_not_here
from benchmark.verdicts.open_claims import decided_cells
from benchmark.verdicts.registered import troubles_of_claims, troubles_of_registration
from reports.records_page import number_of_no_table
from sweeps.plan import plan


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "items", nargs="*", metavar="ITEM", help="a submission (bundle.zip), or with --claims ssfl/tab2, ssfl or all"
    )
    command.add_argument(
        "--profile", default="laptop", help="the profile of the ITEMs: demo, laptop (default), gpu or paper"
    )
    command.add_argument(
        "--retrain",
        type=number(0),
        default=0,
        metavar="N",
        help="train N finished runs again, drawn from the runs that this machine can train, and compare all numbers: "
        "bit by bit, and compact copies to six digits, on the same type of processor with equal packages and numerics; "
        "in all other cases only the final accuracy, within the spread between processors",
    )
    command.add_argument(
        "--claims",
        action="store_true",
        help="train one confirmatory run again of each cell that decides a claim of the ITEMs",
    )
    command.add_argument(
        "--seed",
        type=int,
        help="the seed that draws the runs to train again (default: 0; for a submission, a new draw each time)",
    )
    command.add_argument(
        "--trust",
        action="store_true",
        help="run the custom code of a submission, which is not sandboxed, and read the image folders that it names",
    )
    command.add_argument("--accept", action="store_true", help="show the submission on the site if it is accepted")
    command.add_argument(
        "--for-board",
        action="store_true",
        help="report for each cell of a submission whether it is accepted, refused or not checkable, after training "
        "--retrain N of its runs again in separate processes; exit code 0 if a cell is accepted and none refused, "
        "66 if one is refused, 69 if none could be checked",
    )
    command.add_argument(
        "--report", type=expanded, metavar="FILE", help="with --for-board: write the verdicts as Markdown"
    )
    command.add_argument(
        "--budget",
        type=number(0.1, kind=float),
        default=60.0,
        metavar="MINUTES",
        help="with --for-board: the time for training runs again (default: 60); a run that does not end in it is "
        "stopped",
    )
    command.add_argument("--by", default="", metavar="NAME", help="with --for-board: who verifies, for the board")
    command.add_argument("--json", action="store_true", help="print only one JSON object")
    add_methods(command)


def run_command(options: argparse.Namespace) -> int:
    """Check every run record of this machine and every committed copy.

    The command checks types, key and seed, sums, digests, claims, equal rounds under two seeds, local steps and bytes,
    whether the test images can give the accuracies, and commits. It computes hashes of data and partitions again if the
    data are on this machine. Committed copies must be unchanged in git. The exit code is 66 if any check fails. A
    submission, which `fssl submit` wrote, is accepted or refused; its custom code does not run without --trust. With
    --for-board, each cell of a submission gets a separate verdict. Only --retrain can detect fabricated numbers that
    are consistent with each other, such as changed accuracies, curves that were exchanged between seeds, or a
    divergence that did not happen.
    """
    bundles = [name for name in options.items if name.endswith(".zip")]
    _check_options(options, bundles)
    if options.for_board:
        from benchmark.cli.for_board import run_for_board

        return run_for_board(Path(bundles[0]), options)
    if bundles:
        from benchmark.cli.submit import verify_bundle

        return max([verify_bundle(Path(name), options) for name in bundles])
    chosen = items(options.items, options.profile)
    troubles: list[str] = []
    records = list(all_records(options.results, troubles))
    if not records and not troubles:
        raise DataError(f"{options.results}: has no record to verify; name a folder of results: --results PATH")
    faults, absent = check_records(records)
    others, not_compared = further_troubles(records)
    troubles += [*changed_copies(options.results), *faults, *others]
    retrained = retrain_each(_to_retrain(records, chosen, options), silent=options.json)
    troubles += troubles_of(retrained)
    summary = {
        "records": len(records),
        "of_no_table": number_of_no_table(records),
        "left_out": left_out_in_words(options.results),
        "older_numerics": older_numerics(records),
        "troubles": troubles,
        "absent": sorted(absent),
        "not_compared": sorted(not_compared),
        "retrained": {str(path): vars(outcome) for path, outcome in retrained.items()},
    }
    if options.json:
        print(json.dumps(summary))
    else:
        _print_summary(summary)
    return DataError.exit_code if troubles else 0


def _check_options(options: argparse.Namespace, bundles: Sequence[str]) -> None:
    """Raise ConfigError for options that do not belong together."""
    if bundles and (len(bundles) < len(options.items) or options.claims):
        raise ConfigError(f"{bundles[0]} is a submission; verify submissions without ITEMs and --claims")
    if options.for_board:
        if len(bundles) != 1:
            raise ConfigError("--for-board needs one submission; type `fssl verify --for-board bundle.zip --retrain 1`")
        return
    if options.report is not None or options.by:
        raise ConfigError("--report and --by apply only with --for-board; add it")
    if bundles:
        return
    if options.trust or options.accept:
        raise ConfigError("--trust and --accept apply only to a submission; type `fssl verify bundle.zip`")
    if options.items and not options.claims:
        words = " ".join(options.items)
        raise ConfigError(f"{words}: only with --claims; type `fssl verify` for all records, or add --claims")


def _print_summary(summary: Mapping[str, Any]) -> None:
    """Print the faults and counts, and on standard error what was not checked."""
    for line in summary["troubles"]:
        print(line)
    if summary["absent"]:
        print(f"not computed again, because these files are missing: {', '.join(summary['absent'])}", file=sys.stderr)
    for line in summary["older_numerics"]:
        print(f"not reproduced bit by bit by this code, and valid: {line}")
    if summary["not_compared"]:
        print(f"not compared with git: {'; '.join(summary['not_compared'])}", file=sys.stderr)
    if summary["of_no_table"]:
        number = summary["of_no_table"]
        print(f"{number} of the records are of cells that no table has, and count in none", file=sys.stderr)
    if summary["left_out"]:
        print(summary["left_out"], file=sys.stderr)
    print(f"{summary['records']} records, {len(summary['troubles'])} troubles")


def further_troubles(records: Sequence[RunRecord], *, trusted: bool = True) -> tuple[list[str], set[str]]:
    """Return contradictions with git, registered claims and settings, and the comparisons with git that were
    impossible.

    Custom code that run records name is only used if `trusted`.
    """
    from sweeps.expected import count_faults

    faults, not_compared = history_faults(records)
    of_claims = [*troubles_of_claims(records), *troubles_of_registration(records)]
    return [*faults, *of_claims, *count_faults(records, trusted=trusted)], not_compared


def _to_retrain(records: Sequence[RunRecord], named: Sequence[Item], options: argparse.Namespace) -> list[RunRecord]:
    """Draw N finished runs with equal probability, and with --claims one confirmatory run of each decided cell."""
    if not options.retrain and not options.claims:
        return []
    draw = random.Random(options.seed or 0)
    finished = [record for record in records if record.status in FINISHED]
    here = [record for record in finished if why_not_here(record) is None]
    if options.retrain and not here:
        raise ConfigError(f"--retrain: {options.results} has no finished run that this machine can train again")
    chosen = draw.sample(here, min(options.retrain, len(here)))
    if not options.claims:
        return chosen
    if not named:
        raise ConfigError("--claims needs tables or figures; type them, such as `fssl verify ssfl/tab2 --claims`")
    planned = plan(named, options.results, with_reference=options.profile != "demo", tell=False)
    decided = {key for item in planned.items for key in decided_cells(item, planned.records)}
    for key in sorted(decided):
        able = _confirming(here, key)
        # If this machine can train no run, the outcome has the reason.
        chosen.append(draw.choice(able or _confirming(finished, key)))
    return chosen


def _confirming(records: Iterable[RunRecord], cell_key: str) -> list[RunRecord]:
    return [record for record in records if record.cell_key == cell_key and record.seed in CONFIRMING]
