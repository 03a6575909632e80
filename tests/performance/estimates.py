"""Compare the planned hours of cells with the hours of their committed records.

    python -m tests.performance.estimates [--results results] [--every 1]

A cell's estimate is counted in seconds of the reference processor: nothing is timed, and no record is read for it.
Records are those of finished runs on a CPU that name their CPU seconds and were made by the engine that launchers train
with. A different machine, or a loaded one, has a different speed: the share of cells within a factor of 1.5 is printed
as it is, and with one factor for each machine, the median of recorded over estimated.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from benchmark.experiment import Experiment, from_record
from benchmark.records.copies import read_copy
from benchmark.records.provenance import hardware
from benchmark.records.record import RunRecord
from sweeps.cost import ENGINE, count

WITHIN = 1.5


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A cell's runs on one machine."""

    machine: str
    run: Experiment
    runs: int
    recorded: float  # mean CPU seconds
    estimate: float

    @property
    def ratio(self) -> float:
        return self.recorded / self.estimate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--every", type=int, default=1, help="one cell in so many")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = defaultdict(list)
    for cell in compared(options.results, options.every):
        ratios[cell.machine].append(cell.ratio)
        what = f"{type(cell.run.method).__name__} {cell.run.model.network} {cell.run.data.name} {cell.run.profile}"
        numbers = f"recorded {cell.recorded / 3600:8.4f} estimate {cell.estimate / 3600:8.4f} core-hours"
        print(f"{cell.run.cell_key}  {numbers}, ratio {cell.ratio:5.2f}  {cell.runs:2} runs  {what}", flush=True)
    print(f"this machine: {_machine(hardware())}")
    for machine, values in ratios.items():
        factor = median(values)
        print(
            f"{machine}: {len(values)} cells, within {WITHIN}: {100 * share_within(values, 1.0):.0f} %; "
            f"with the machine's factor {factor:.2f}: {100 * share_within(values, factor):.0f} %"
        )


def compared(results: Path, every: int) -> Iterator[Compared]:
    """Yield one cell in so many, once per machine that has recorded it."""
    for folder in sorted((results / "reference").glob("*/"))[::every]:
        measured = records_by_machine([read_copy(path) for path in sorted(folder.glob("seed=*.json.gz"))])
        for machine, records in measured.items():
            run = from_record(records[0].experiment)
            recorded = fmean(record.result["cpu_seconds"] for record in records)
            estimate = count(run).whole.seconds
            yield Compared(machine=machine, run=run, runs=len(records), recorded=recorded, estimate=estimate)


def records_by_machine(records: list[RunRecord]) -> dict[str, list[RunRecord]]:
    """Select finished runs that tell what they cost on a CPU with the engine of launchers."""
    measured = defaultdict(list)
    for record in records:
        engine = record.manifest.get("engine", {})
        of_launchers = engine.get("name") == ENGINE and "device" not in engine
        if record.status == "done" and of_launchers and record.result.get("cpu_seconds"):
            measured[_machine(record.manifest.get("hardware", {}))].append(record)
    return measured


def share_within(ratios: list[float], factor: float) -> float:
    return fmean(1 / WITHIN <= ratio / factor <= WITHIN for ratio in ratios)


def _machine(facts: dict[str, object]) -> str:
    return json.dumps(facts, sort_keys=True)


if __name__ == "__main__":
    main()
