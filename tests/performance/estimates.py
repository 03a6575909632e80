"""Planned hours of cells against those that their committed records took.

    python -m tests.performance.estimates [--results results] [--every 1]

A cell's estimate is counted and timed here; no record is read for it. Records are those that name their CPU seconds and
were made by the engine that launchers train with. Another machine has another speed: the share of cells within a factor
of 1.5 is printed as it is, and with one factor for each machine, the median of recorded over estimated.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean, median

from benchmark.errors import FsslError
from benchmark.experiment import from_record
from benchmark.records.copies import read_copy
from benchmark.records.provenance import hardware
from benchmark.records.record import RunRecord
from sweeps.cost import ENGINE, count

WITHIN = 1.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--every", type=int, default=1, help="one cell in so many")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = defaultdict(list)  # recorded over estimated, by machine
    for folder in sorted((options.results / "reference").glob("*/"))[:: options.every]:
        measured = records_by_machine([read_copy(path) for path in sorted(folder.glob("seed=*.json.gz"))])
        for machine, records in measured.items():
            recorded = fmean(record.result["cpu_seconds"] for record in records) / 3600
            run = from_record(records[0].experiment)
            try:
                estimate = count(run).whole.seconds / 3600
            except FsslError as error:
                print(f"{folder.name}  cannot be counted: {error}")
                continue
            ratios[machine].append(recorded / estimate)
            what = f"{type(run.method).__name__} {run.model.network} {run.data.name} {run.profile}"
            numbers = f"recorded {recorded:8.4f} estimate {estimate:8.4f} core-hours, ratio {recorded / estimate:5.2f}"
            print(f"{folder.name}  {numbers}  {len(records):2} runs  {what}", flush=True)
    print(f"this machine: {_machine(hardware())}")
    for machine, values in ratios.items():
        factor = median(values)
        print(
            f"{machine}: {len(values)} cells, within {WITHIN}: {100 * share_within(values, 1.0):.0f} %; "
            f"with the machine's factor {factor:.2f}: {100 * share_within(values, factor):.0f} %"
        )


def records_by_machine(records: list[RunRecord]) -> dict[str, list[RunRecord]]:
    """Those that tell what they cost with the engine of launchers."""
    measured = defaultdict(list)
    for record in records:
        manifest = record.manifest
        if record.result.get("cpu_seconds") and manifest.get("engine", {}).get("name") == ENGINE:
            measured[_machine(manifest.get("hardware", {}))].append(record)
    return measured


def share_within(ratios: list[float], factor: float) -> float:
    return fmean(1 / WITHIN <= ratio / factor <= WITHIN for ratio in ratios)


def _machine(facts: dict[str, object]) -> str:
    return json.dumps(facts, sort_keys=True)


if __name__ == "__main__":
    main()
