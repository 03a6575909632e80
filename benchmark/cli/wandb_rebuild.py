"""`fssl wandb-rebuild` restores the runs in W&B from the run records."""

import argparse
import sys

from benchmark.cli.main import add_methods
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import from_record
from benchmark.papers.items import items
from benchmark.records.collect import all_records
from benchmark.records.record import RunRecord
from sweeps.plan import plan


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "items", nargs="*", metavar="ITEM", help="a table or figure (ssfl/tab2), a paper (ssfl), or all"
    )
    command.add_argument(
        "--profile", default="laptop", help="the profile of the ITEMs: demo, laptop (default), gpu or paper"
    )
    command.add_argument(
        "--offline", action="store_true", help="write files for `wandb sync` without using the network"
    )
    add_methods(command)


def run_command(options: argparse.Namespace) -> int:
    """Send every recorded round that is missing in W&B.

    The run in W&B has the id that a sweep's agent gave it, or cell_key-seed if there was no agent. Therefore a second
    call sends nothing, but a second call with --offline writes all rounds again. Without ITEMs, the command sends all
    runs of the results folder. With ITEMs, it sends their runs and committed copies.
    """
    troubles: list[str] = []
    records = (
        _records_of_items(options)
        if options.items
        else [(record, {}) for record in all_records(options.results, troubles) if not record.is_copy]
    )
    for trouble in troubles:
        print(f"fssl: {trouble}", file=sys.stderr)
    if not records:
        raise ConfigError(f"{options.results} contains no such run record; type `fssl status` to list its runs")
    failed = sum(not _mirror(record, words, options) for record, words in records)
    print(f"{len(records) - failed} of {len(records)} runs mirrored")
    return DataError.exit_code if failed or troubles else 0


def _records_of_items(options: argparse.Namespace) -> list[tuple[RunRecord, dict[str, str]]]:
    planned = plan(items(options.items, options.profile), options.results, with_reference=options.profile != "demo")
    words = {cell.cell_key: {"cell": f"{item.name}:{cell.label}"} for item in planned.items for cell in item.cells}
    recorded = [planned.records.get(run.cell_key, {}).get(run.seed) for run in planned.runs]
    return [(record, words.get(record.cell_key, {})) for record in recorded if record is not None]


def _mirror(record: RunRecord, words: dict[str, str], options: argparse.Namespace) -> bool:
    """Return whether W&B, or its files, accepted the whole run; if not, print the reason."""
    from benchmark.records.wandb_mirror import WandbMirror, made_by_agent  # needs seconds to import

    try:
        experiment = from_record(record.experiment)
    except ConfigError as error:
        print(f"fssl: {record.cell_key}, seed {record.seed}: {error}", file=sys.stderr)
        return False
    mirror = WandbMirror(
        experiment,
        lambda: record,
        words=words,
        mode="offline" if options.offline else "online",
        wandb_folder=options.results / "wandb",
        folder_name=record.path.name.removesuffix(".json.gz"),
        agents_run=made_by_agent(record),
    )
    mirror.finish(0 if record.status in ("done", "unfinished") else 1)
    return not mirror.failed
