"""Committed copies come out again: the first rounds of a cheap one per method, norm and engine, bit by bit.

"No number moves" in a commit message is what this checks. Copies have six significant digits of evaluated rounds and
counts of all; what they keep has to be equal. This holds on the type of processor and with the packages that a copy
names, so that on another machine most are "not checked".
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from benchmark.data.datasets import at_hand
from benchmark.errors import Stopped
from benchmark.experiment import from_record
from benchmark.federated.engines import EngineOptions
from benchmark.federated.module import FederatedModule
from benchmark.methods.catalogue import METHODS
from benchmark.numerics import numerics_in_words
from benchmark.records.collect import all_records
from benchmark.records.copies import COMMITTED, _short
from benchmark.records.provenance import equal_bits_expected
from benchmark.records.record import RunRecord, metrics_in, read_run, run_folder
from benchmark.records.run import run
from benchmark.records.verify import why_not_here

ROUNDS = 30
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
    """The finished copies of each method by norm and engine; the cheapest round comes first."""
    kinds: dict[str, dict[Kind, list[RunRecord]]] = {}
    for record in all_records(COMMITTED, []):
        if record.is_copy and record.status == "done" and "cpu_seconds" in record.result:
            kind = (record.experiment["model"]["norm"], engine_of(record))
            kinds.setdefault(record.experiment["method"]["kind"], {}).setdefault(kind, []).append(record)
    for copies in (copies for of_method in kinds.values() for copies in of_method.values()):
        copies.sort(key=lambda record: record.result["cpu_seconds"] / record.result["rounds"])
    return kinds


def engine_of(record: RunRecord) -> str:
    engine = record.manifest["engine"]
    return f"{engine['name']} on {engine['device']}" if "device" in engine else str(engine["name"])


@cache
def this_machine(engine: EngineOptions) -> dict[str, Any]:
    """The manifest of a run on this machine."""
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
    """Why its bits need not come out again here; None if they have to."""
    if not at_hand(record.experiment["data"]["name"]):
        return f"{record.experiment['data']['name']} is not here"
    if not record.is_current:
        return numerics_in_words(record.numerics)
    if reason := why_not_here(record):
        return reason
    here = this_machine(EngineOptions().as_recorded(record.manifest))
    if not equal_bits_expected(record.manifest, here):
        return f"it is of {record.manifest['hardware']['processor']}, torch {record.manifest['packages']['torch']}"
    return None


def differences(record: RunRecord, folder: Path) -> Iterator[str]:
    """What the record's first rounds and those of the run in the folder do not have equal."""
    again = read_run(folder)
    assert again is not None
    last = min(ROUNDS, record.result["rounds"])
    assert len(again.rounds) == last
    for before, now in zip(record.rounds[:last], again.rounds, strict=True):
        metrics, kept = metrics_in(now), metrics_in(before)
        for name in kept.keys() & metrics.keys():
            if _short(metrics[name]) != kept[name]:
                yield f"round {before['round']}: {name} is {metrics[name]}, it was {kept[name]}"
        yield from (f"round {before['round']}: {name} is not measured" for name in kept.keys() - metrics.keys())


def first_rounds_again(record: RunRecord, results: Path) -> list[str]:
    experiment = from_record(record.experiment)
    engine = EngineOptions().as_recorded(record.manifest)
    with contextlib.suppress(Stopped):
        run(experiment, results, engine=engine, callbacks=[StopAfter(ROUNDS)])
    return list(differences(record, run_folder(results, experiment)))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_first_rounds_of_committed_copies_come_out_again(method, tmp_path):
    checked, not_checked = 0, list[str]()
    for kind, copies in copies_of().get(method, {}).items():
        reasons = [why_not_checked(record) for record in copies]
        cheapest = next((record for record, reason in zip(copies, reasons, strict=True) if reason is None), None)
        if cheapest is None:
            not_checked.append(f"{', '.join(kind)}: not checked, {reasons[0]}")
            continue
        assert first_rounds_again(cheapest, tmp_path) == [], f"{', '.join(kind)}: {cheapest.path}"
        checked += 1
    if not_checked or not checked:
        pytest.skip(f"{checked} kinds of run are equal; {'; '.join(not_checked) or 'there are no copies'}")
