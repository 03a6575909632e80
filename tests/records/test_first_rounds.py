"""Committed copies come out again: the first rounds of a cheap one per method, norm and engine, bit by bit.

"No number moves" in a commit message is what this checks. Copies have six significant digits of evaluated rounds and
counts of all; what they keep has to be equal. This holds on the type of processor and with the packages that a copy
names, so that on another machine most are "not checked". Older copies name a processor that stands for several types
("AMD EPYC"): if a copy differs, its own commit trains the same rounds here, and this code has to agree with that.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from benchmark.data.datasets import is_available
from benchmark.errors import Stopped
from benchmark.experiment import from_record
from benchmark.federated.engines import EngineOptions
from benchmark.federated.module import FederatedModule
from benchmark.methods.registry import METHODS
from benchmark.numerics import CURRENT
from benchmark.records.collect import all_records
from benchmark.records.copies import COMMITTED, _short
from benchmark.records.provenance import ROOT, equal_bits_expected
from benchmark.records.record import RunRecord, metrics_in, read_run, run_folder
from benchmark.records.run import run
from benchmark.sharing.verify import why_not_here

ROUNDS = 30  # and some with clients, if the warm start has more
ROUNDS_WITH_CLIENTS = 5
MOST_SECONDS = 60  # of CPU time, as recorded: RSCFed's warm start of 150 rounds takes longer
# Trains the rounds with the code of the current folder, whatever version it has, and prints what each measured.
OTHER_CODE = """
import inspect, json, sys
from pathlib import Path
import pytorch_lightning as pl
from benchmark.experiment import from_json
from benchmark.records.run import run

assert Path(inspect.getfile(run)).is_relative_to(Path.cwd())
given = json.loads(Path(sys.argv[1]).read_text())

class Print(pl.Callback):
    done = 0

    def on_train_batch_end(self, trainer, module, *args):
        self.done += 1
        print("ROUND", json.dumps({name: float(value) for name, value in module.metrics.items()}), flush=True)
        trainer.should_stop = self.done >= given["rounds"]

engine = given["engine"]
options = {name: engine[name] for name in ("workers", "threads") if name in engine}
options = {"engine": engine["name"], **({} if engine["name"] == "reference" else options)}
if "threads" not in inspect.signature(run).parameters:
    from benchmark.federated.engines import EngineOptions
    options = {"engine": EngineOptions(**options)}
run(from_json(given["experiment"]), Path(sys.argv[2]), callbacks=[Print()], **options)
"""
Kind = tuple[str, str]  # norm, engine

pytestmark = pytest.mark.slow


class StopAfter(pl.Callback):
    """Ends a run that has as many rounds as ever: schedules depend on their number."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        trainer.should_stop = pl_module.rounds_done >= self._rounds


@cache
def copies_of() -> dict[str, dict[Kind, list[RunRecord]]]:
    """Return the finished copies of each method by norm and engine; the cheapest round comes first."""
    kinds: dict[str, dict[Kind, list[RunRecord]]] = {}
    for record in all_records(COMMITTED, []):
        if record.is_copy and record.status == "done" and "cpu_seconds" in record.result:
            kind = (record.experiment["model"]["norm"], engine_of(record))
            kinds.setdefault(record.experiment["method"]["kind"], {}).setdefault(kind, []).append(record)
    for copies in (copies for of_method in kinds.values() for copies in of_method.values()):
        copies.sort(key=lambda record: rounds_of(record) * record.result["cpu_seconds"] / record.result["rounds"])
    return kinds


def rounds_of(record: RunRecord) -> int:
    """Return how many rounds are trained again."""
    warm_start = record.experiment["method"].get("warm_start_rounds") or 0
    wanted = max(ROUNDS, warm_start + ROUNDS_WITH_CLIENTS)
    affordable = max(ROUNDS, int(MOST_SECONDS * record.result["rounds"] / record.result["cpu_seconds"]))
    return min(wanted, affordable, record.result["rounds"])


def engine_of(record: RunRecord) -> str:
    engine = record.manifest["engine"]
    return f"{engine['name']} on {engine['device']}" if "device" in engine else str(engine["name"])


@cache
def this_machine(engine: EngineOptions) -> dict[str, Any]:
    """Return the manifest of a run on this machine."""
    from benchmark.experiment import Experiment
    from benchmark.federated.engines import build_engine
    from benchmark.federated.environment import prepare
    from benchmark.records.provenance import manifest

    environment = prepare(Experiment())
    chosen = build_engine(engine, environment)
    try:
        return manifest(environment, chosen)
    finally:
        chosen.close()


def why_not_checked(record: RunRecord) -> str | None:
    """Return why this machine need not repeat the record's bits, or None if it must."""
    if not is_available(record.experiment["data"]["name"]):
        return f"{record.experiment['data']['name']} is not here"
    if reason := why_not_here(record):
        return reason
    here = this_machine(EngineOptions().as_recorded(record.manifest))
    if "model" not in record.manifest["hardware"]:  # older records have only the name
        here = {**here, "hardware": record.manifest["hardware"] | {"processor": here["hardware"]["processor"]}}
    if not equal_bits_expected(record.manifest, here):
        return f"it is of {record.manifest['hardware']['processor']}, torch {record.manifest['packages']['torch']}"
    return None


def differences(recorded: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return differences between recorded rounds, with six significant digits, and rounds trained again."""
    for number, (before, now) in enumerate(zip(recorded, again, strict=True), 1):
        metrics, kept = metrics_in(now), metrics_in(before)
        for name in sorted(kept):
            if name not in metrics or _short(float(metrics[name])) != _short(float(kept[name])):
                yield f"round {number}: {name} is {metrics.get(name)}, it was {kept[name]}"


def first_rounds(record: RunRecord, results: Path) -> Sequence[Mapping[str, Any]]:
    """Train the record's first rounds again with this code."""
    experiment, engine = from_record(record.experiment), EngineOptions().as_recorded(record.manifest)
    with contextlib.suppress(Stopped):
        run(experiment, results, engine=engine, callbacks=[StopAfter(rounds_of(record))])
    again = read_run(run_folder(results, experiment))
    assert again is not None
    return again.rounds


def by_its_own_code(record: RunRecord, place: Path) -> Sequence[Mapping[str, Any]] | None:
    """Train the same rounds with the code of the record's commit.

    Return None if this checkout does not have it, or its code is too old for `OTHER_CODE`.
    """
    code, given = place / "code", place / "given.json"
    for words in (
        ("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(code)),
        ("-C", str(code), "checkout", "--quiet", record.manifest["code"]["commit"]),
    ):
        if subprocess.run(["git", *words], capture_output=True).returncode:
            return None
    number = rounds_of(record)
    settings = {"experiment": dict(record.experiment), "engine": record.manifest["engine"], "rounds": number}
    given.write_text(json.dumps(settings))
    command = [sys.executable, "-c", OTHER_CODE, str(given), str(place / "results")]
    environment = {**os.environ, "PYTHONPATH": str(code), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=code)
    lines = [json.loads(line.removeprefix("ROUND ")) for line in done.stdout.splitlines() if line.startswith("ROUND ")]
    return lines if len(lines) == number else None


def without_moved(record: RunRecord, rounds: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Keep the metrics that the record has, without gradient diversity if it has an older version."""
    names = {name for line in record.rounds for name in line} | set(record.summaries)
    if record.numerics["diversity"] != CURRENT["diversity"]:
        names = {name for name in names if not name.startswith("diversity/")}
    kept: list[Mapping[str, Any]] = []
    for line in rounds:
        kept.append({name: line[name] for name in names & line.keys() if math.isfinite(line[name])})
    return kept


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_first_rounds_of_committed_copies_come_out_again(method, tmp_path):
    checked = 0
    not_checked = list[str]()
    for kind, copies in copies_of().get(method, {}).items():
        reasons = [why_not_checked(record) for record in copies]
        cheapest = next((record for record, reason in zip(copies, reasons, strict=True) if reason is None), None)
        if cheapest is None:
            not_checked.append(f"{', '.join(kind)}: not checked, {reasons[0]}")
            continue
        again = first_rounds(cheapest, tmp_path / "results")
        recorded = without_moved(cheapest, cheapest.rounds[: len(again)])
        where = ", ".join(kind)
        words = list(differences(recorded, again))
        if words and "model" not in cheapest.manifest["hardware"]:
            there = by_its_own_code(cheapest, tmp_path / where.replace(", ", "-"))
            if there is None:
                not_checked.append(
                    f"{where}: not checked, {words[0]}; this checkout has not the commit of {cheapest.path}"
                )
                continue
            words = list(differences(without_moved(cheapest, there), again))
        assert words == [], f"{where}: {cheapest.path}"
        checked += 1
    if not_checked or not checked:
        pytest.skip(f"{checked} kinds of run are equal; {'; '.join(not_checked) or 'there are no copies'}")
