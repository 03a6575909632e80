"""`fssl verify`: whether the records are whole."""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.cli.main import add_places
from benchmark.errors import ConfigError, DataError
from benchmark.papers.catalogue import items
from benchmark.records.record import RunRecord
from benchmark.records.verify import disagreements, read, troubles_of, troubles_of_item
from sweeps.plan import plan

if TYPE_CHECKING:
    from benchmark.records.replay import Replay


def add(verb: str, command: argparse.ArgumentParser) -> None:
    _add_verify(command)
    add_places(command)
    command.set_defaults(act=act_verify)


def _add_verify(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Reads every record: schema, sums, checksums, digest, hashes of data and partitions. With ITEMs also whether "
        "each of these tables is complete and by one version of the code. Exit 66 if anything does not add up."
    )
    command.add_argument("items", nargs="*", metavar="ITEM", help="ssfl/tab2, a paper (ssfl), or all")
    command.add_argument("--profile", default="laptop", help="of the ITEMs: demo, laptop (default), gpu or paper")
    command.add_argument(
        "--replay",
        type=int,
        default=0,
        metavar="K",
        help="do the last rounds of K random runs again, compare bit by bit",
    )
    command.add_argument("--json", action="store_true", help="print one JSON object, nothing else")


def act_verify(options: argparse.Namespace) -> int:
    """Read every record and say what does not add up; exit 66 if anything does not."""
    if options.replay < 0:
        raise ConfigError(f"--replay: {options.replay}; 0 or more would be right")
    chosen = items(options.items, options.profile)
    troubles: list[str] = []
    read_from = list(_records(options.results, troubles))
    for record, path in read_from:
        troubles += troubles_of(record, path)
    troubles += disagreements(read_from)
    for item in chosen:
        planned = plan([item], options.results, seeds=None, with_reference=options.profile != "demo")
        troubles += [trouble for resolved in planned.items for trouble in troubles_of_item(resolved, planned.records)]
    replayed = _replayed(read_from, options)
    troubles += [f"{found.folder}: {trouble}" for found in replayed for trouble in found.troubles]
    finished = [record for record, path in read_from if record.result and path.is_dir()]
    undigested = sum("digest" not in record.result for record in finished)
    if options.json:
        print(json.dumps(_summary(len(read_from), troubles, undigested, replayed)))
    else:
        _print(len(read_from), troubles, undigested, replayed)
    return DataError.exit_code if troubles else 0


def _records(results: Path, troubles: list[str]) -> Iterator[tuple[RunRecord, Path]]:
    for path in sorted([*results.glob("runs/*/seed=*"), *results.glob("reference/*/seed=*.json.gz")]):
        record = read(path, troubles)
        if record is not None:
            yield record, path


def _replayed(records: Sequence[tuple[RunRecord, Path]], options: argparse.Namespace) -> list["Replay"]:
    """K finished runs, any of them with equal chance."""
    able = [path for record, path in records if record.result and path.is_dir()]
    chosen = random.sample(able, min(options.replay, len(able)))
    if not chosen:
        return []
    from benchmark.records.replay import replay  # trains, and takes seconds to load

    return [replay(path, options.data_root) for path in sorted(chosen)]


def _summary(count: int, troubles: list[str], undigested: int, replayed: Sequence["Replay"]) -> dict[str, Any]:
    return {
        "records": count,
        "troubles": troubles,
        "without_digest": undigested,
        "replayed": [
            {
                "folder": str(found.folder),
                "rounds": list(found.rounds),
                "equal": None if found.skipped else not found.troubles,
                "skipped": found.skipped,
            }
            for found in replayed
        ],
    }


def _print(count: int, troubles: list[str], undigested: int, replayed: Sequence["Replay"]) -> None:
    for found in replayed:
        rounds = f"rounds {found.rounds.start} to {found.rounds.stop - 1}"
        how = f"not done again: {found.skipped}" if found.skipped else f"{rounds} done again, {_equality(found)}"
        print(f"{found.folder}: {how}")
    for trouble in troubles:
        print(trouble)
    if undigested:
        print(
            f"{undigested} of the runs are older than digests: an edit shows only where it adds up no more",
            file=sys.stderr,
        )
    print(f"{count} records, {len(troubles)} troubles")


def _equality(found: "Replay") -> str:
    return f"{len(found.troubles)} differences" if found.troubles else "equal bit by bit"
