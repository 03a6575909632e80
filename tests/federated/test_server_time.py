"""The time of a round at the server: what it trains and averages, without waiting for clients."""

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmark.federated.engines import EngineOptions
from benchmark.methods import protocol as fl
from benchmark.methods.shared import ServerUpdate, fit_each, mean_of
from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment

AT_CLIENT, AT_SERVER, AVERAGING = 0.06, 0.04, 0.05  # seconds


@dataclass(frozen=True, kw_only=True)
class Sleeps(ServerUpdate):
    seconds: float

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        time.sleep(self.seconds)
        return replace(self.begin(received, private, reader), trainable={})

    def finish(self, local: fl.Local) -> fl.Tree:
        return {"number": 1.0}


@dataclass(frozen=True, kw_only=True)
class Slow(fl.Method):
    """Four clients that sleep, a server that sleeps, and a method that sleeps while it averages."""

    needs = frozenset({"server"})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student = state.server["student"]
        mean_of((), otherwise=student)
        for _ in fit_each(world, range(4), Sleeps(seconds=AT_CLIENT), {"student": student}, {}):
            time.sleep(AVERAGING / 4)
        world.fit_one(fl.SERVER, Sleeps(seconds=AT_SERVER), {"student": student})
        return state, {}


@pytest.mark.parametrize("engine", ["reference", "pool"])
def test_server_time_has_no_work_of_clients(engine: Any, tmp_path: Path) -> None:
    experiment = tiny_experiment(method=Slow())
    workers = 1 if engine == "reference" else 2  # in two workers, two clients sleep at the same time
    # While the last client sleeps in a worker, the method may average the other three.
    together = 0.0 if engine == "reference" else 3 / 4 * AVERAGING
    run(experiment, tmp_path, engine=EngineOptions(engine=engine, workers=workers if workers > 1 else None))
    (folder,) = (tmp_path / "runs" / experiment.cell_key).iterdir()
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for line in rounds:
        assert line["time/server_seconds"] >= AT_SERVER + AVERAGING
        of_clients = 4 / workers * AT_CLIENT - together
        assert line["time/server_seconds"] + of_clients <= line["time/round_seconds"] + 1e-3
    result = record_of(folder).result
    assert result["server_seconds"] == pytest.approx(sum(line["time/server_seconds"] for line in rounds), abs=1e-3)
    assert "time/server_seconds" not in result["last"]
