"""`fssl verify`: whether the records are whole."""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmark.cli.main import add_methods, add_places, number
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import NUMERICS
from benchmark.papers.catalogue import items
from benchmark.records.record import FINISHED, RunRecord
from benchmark.records.verify import (
    disagreements,
    equal_rounds,
    is_copy,
    records_in,
    troubles_of,
    troubles_of_data,
    troubles_of_index,
)
from benchmark.verdicts.checks import notes_of_item, notes_of_rules, troubles_of_claims
from sweeps.plan import plan

if TYPE_CHECKING:
    from benchmark.records.retrain import Retrained


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Reads every record, those of this machine and the committed copies: schema, sums, checksums, digests, claims, "
        "equal rounds under two seeds, and whether a copy was changed, renamed, deleted or added; hashes of data and "
        "partitions are computed again where the data set is here. Exit 66 if anything does not add "
        "up. With ITEMs also notes on each of these tables: seeds that have not been run, and runs of several versions "
        "of the code; they change no exit code."
    )
    command.add_argument("items", nargs="*", metavar="ITEM", help="ssfl/tab2, a paper (ssfl), or all")
    command.add_argument("--profile", default="laptop", help="of the ITEMs: demo, laptop (default), gpu or paper")
    command.add_argument(
        "--retrain",
        type=number(0),
        default=0,
        metavar="N",
        help="train N finished runs again, chosen among all, and compare: bit by bit where the machine is the same, "
        "else (and committed copies) to six digits",
    )
    command.add_argument("--seed", type=int, default=0, help="of the choice of --retrain (default: 0)")
    command.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    add_methods(command)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    """Read every record and say what does not add up; exit 66 if anything does not."""
    chosen = items(options.items, options.profile)
    troubles: list[str] = []
    records = list(records_in(options.results, troubles))
    for record, path in records:
        troubles += troubles_of(record, path)
    troubles += troubles_of_index(options.results, options.results.glob("reference/*/seed=*.json.gz"))
    found, absent = troubles_of_data(records, options.data_root)
    troubles += [*disagreements(records), *found, *equal_rounds(records), *troubles_of_claims(records)]
    notes = notes_of_rules(records)
    for item in chosen:
        planned = plan([item], options.results, with_reference=options.profile != "demo", tell=False)
        notes += [note for resolved in planned.items for note in notes_of_item(resolved, planned.records)]
    retrained = _trained_again(records, options)
    troubles += [f"{path}: {one.trouble}" for path, one in retrained.items() if one.trouble is not None]
    if retrained and all(one.skipped is not None for one in retrained.values()):
        troubles.append(f"--retrain: nothing was compared: {next(iter(retrained.values())).skipped}")
    undigested = sum(bool(record.result) and "digest" not in record.result and not is_copy(p) for record, p in records)
    if options.json:
        told = {
            "records": len(records),
            "troubles": troubles,
            "notes": notes,
            "without_digest": undigested,
            "absent": sorted(absent),
        }
        print(json.dumps({**told, "retrained": {str(path): vars(found) for path, found in retrained.items()}}))
    else:
        for line in (*troubles, *(f"note: {note}" for note in notes)):
            print(line)
        if absent:
            print(f"not computed again, as the data are not here: {', '.join(sorted(absent))}", file=sys.stderr)
        if undigested:
            words = "runs are older than digests: an edit shows only where sums no longer fit"
            print(f"{undigested} {words}", file=sys.stderr)
        print(f"{len(records)} records, {len(troubles)} troubles")
    return DataError.exit_code if troubles else 0


def _trained_again(records: Sequence[tuple[RunRecord, Path]], options: argparse.Namespace) -> dict[Path, "Retrained"]:
    """N finished runs, any of them with equal chance; what came of each is told at once, since training takes time."""
    finished = ((record, path) for record, path in records if record.status in FINISHED)
    able = [(record, path) for record, path in finished if record.result.get("numerics") == NUMERICS]
    chosen = random.Random(options.seed).sample(able, min(options.retrain, len(able)))
    if not chosen:
        if options.retrain:
            raise ConfigError(f"--retrain: {options.results} has no finished run of this version to train again")
        return {}
    from benchmark.records.retrain import retrain  # trains, and takes seconds to load

    found = {}
    for record, path in chosen:
        found[path] = retrain(record, options.data_root, copied=is_copy(path))
        if not options.json:
            print(f"{path}: {found[path].words()}", flush=True)
    return found
