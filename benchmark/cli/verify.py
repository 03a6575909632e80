"""`fssl verify`: whether the records are whole, and whether a bundle of another's is accepted."""

import argparse
import json
import random
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmark.cli.main import add_methods, number
from benchmark.errors import ConfigError, DataError
from benchmark.papers.item import CONFIRMING, Item
from benchmark.papers.items import items
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
    command.add_argument("items", nargs="*", metavar="ITEM", help="with --claims: ssfl/tab2, ssfl, all; or bundle.zip")
    command.add_argument("--profile", default="laptop", help="of the ITEMs: demo, laptop (default), gpu or paper")
    command.add_argument(
        "--retrain",
        type=number(0),
        default=0,
        metavar="N",
        help="train N finished runs again, chosen among those that this machine can train, and compare all numbers: "
        "bit by bit (compact copies: to six digits) on the same type of processor with the same packages and numerics, "
        "else the final accuracy, within the spread between processors",
    )
    command.add_argument(
        "--claims",
        action="store_true",
        help="train one confirming run of each cell again on which a claim of the ITEMs is decided",
    )
    command.add_argument(
        "--seed",
        type=int,
        help="of the choice of runs to train again (default: 0; of a bundle's runs: another each time)",
    )
    command.add_argument(
        "--trust",
        action="store_true",
        help="run a bundle's own code, which nothing confines, and read the folders of images that it names",
    )
    command.add_argument("--accept", action="store_true", help="put a bundle that is accepted on the site")
    command.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_methods(command)


def run_command(options: argparse.Namespace) -> int:
    """Read every record, those of this machine and the committed copies.

    Checks types, key and seed, sums, digests, claims, equal rounds under two seeds, local steps and bytes, accuracies
    that the test images can give, and commits; hashes of data and partitions are computed again where the data are
    here. Exit 66 if anything does not add up. Committed copies must be as git has them. A bundle, which `fssl submit`
    wrote, is accepted or refused, and its own code does not run without --trust. Numbers that were made up and add up
    (other accuracies, curves exchanged between seeds, a run named diverged) are only found by --retrain.
    """
    bundles = [name for name in options.items if name.endswith(".zip")]
    if bundles and (len(bundles) < len(options.items) or options.claims):
        raise ConfigError(f"{bundles[0]}: is a bundle; verify bundles without ITEMs and --claims")
    if bundles:
        from benchmark.cli.submit import verify_bundle

        return max([verify_bundle(Path(name), options) for name in bundles])
    if options.trust or options.accept:
        raise ConfigError("--trust and --accept are of a bundle: `fssl verify bundle.zip`")
    if options.items and not options.claims:
        words = " ".join(options.items)
        raise ConfigError(f"{words}: only with --claims; type `fssl verify` for all records, or add --claims")
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
    older = older_numerics(records)
    beside = number_of_no_table(records)
    if options.json:
        summary = {
            "records": len(records),
            "of_no_table": beside,
            "left_out": left_out_in_words(options.results),
            "older_numerics": older,
            "troubles": troubles,
            "absent": sorted(absent),
            "not_compared": sorted(not_compared),
            "retrained": {str(path): vars(outcome) for path, outcome in retrained.items()},
        }
        print(json.dumps(summary))
    else:
        for line in troubles:
            print(line)
        if absent:
            print(f"not computed again, as these files are not here: {', '.join(sorted(absent))}", file=sys.stderr)
        for line in older:
            print(f"not reproduced bit by bit by this code, and valid: {line}")
        if not_compared:
            print(f"not compared with git: {'; '.join(sorted(not_compared))}", file=sys.stderr)
        if beside:
            print(f"{beside} of the records are of cells that no table has, and count in none", file=sys.stderr)
        if left := left_out_in_words(options.results):
            print(left, file=sys.stderr)
        print(f"{len(records)} records, {len(troubles)} troubles")
    return DataError.exit_code if troubles else 0


def further_troubles(records: Sequence[RunRecord], *, trusted: bool = True) -> tuple[list[str], set[str]]:
    """Say what contradicts git, registered claims and settings, and what could not be compared with git.

    `trusted`: the code that records name may be used.
    """
    from sweeps.expected import count_faults

    faults, not_compared = history_faults(records)
    of_claims = [*troubles_of_claims(records), *troubles_of_registration(records)]
    return [*faults, *of_claims, *count_faults(records, trusted=trusted)], not_compared


def _to_retrain(records: Sequence[RunRecord], named: Sequence[Item], options: argparse.Namespace) -> list[RunRecord]:
    """Draw N finished runs, any of them with equal chance; with --claims one confirming run of each decided cell."""
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
        raise ConfigError("--claims: of which items? name them, such as `fssl verify ssfl/tab2 --claims`")
    planned = plan(named, options.results, with_reference=options.profile != "demo", tell=False)
    decided = {key for item in planned.items for key in decided_cells(item, planned.records)}
    for key in sorted(decided):
        able = _confirming(here, key)
        chosen.append(draw.choice(able or _confirming(finished, key)))  # if none can be trained here, it is said why
    return chosen


def _confirming(records: Iterable[RunRecord], cell_key: str) -> list[RunRecord]:
    return [record for record in records if record.cell_key == cell_key and record.seed in CONFIRMING]
