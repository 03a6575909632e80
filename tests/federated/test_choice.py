"""The engine of a run: chosen by the work, by name, or refused; kept on resume, and by who trains a record again."""

import contextlib
from dataclasses import replace

import pytest
import torch

from benchmark.experiment import Federation
from benchmark.federated.engines import EngineOptions, build_engine
from benchmark.federated.environment import prepare
from benchmark.federated.process_pool import ProcessPool
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.sharing.verify import retrain
from tests.conftest import record_of

POOL_OF_ONE = EngineOptions(engine="pool", workers=1)
FEW, MANY = 1, 5_000  # rounds of two clients and a local step: beyond 10,000 steps workers pay


@pytest.mark.parametrize(
    ("name", "cores", "C", "rounds", "processes"),
    [
        ("auto", 2, 2, MANY, 2),
        ("auto", 2, 2, MANY - 1, 1),  # a little less
        ("auto", 2, 1, 2 * MANY, 1),  # one job at a time
        ("auto", 1, 2, MANY, 1),
        ("pool", 2, 1, FEW, 2),  # the client's job and the server's
        ("pool", 8, 2, FEW, 3),  # no more than there are jobs
        ("reference", 2, 2, MANY, 0),
    ],
)
def test_processes_are_known_before_there_is_data_and_are_what_is_built(tiny, name, cores, C, rounds, processes):
    """A pool of one is this process. Whatever the number, the settings that decide the bits are those of a campaign's
    runs (`sweeps.launcher`), where no other engine is asked for."""
    environment = prepare(replace(tiny, federation=Federation(K=2, C=C, T=1, rounds=rounds)))
    options = EngineOptions(engine=name, workers=cores, devices=("cpu",))
    assert options.processes(environment.experiment) == processes
    with (
        contextlib.closing(build_engine(options, environment)) as built,
        contextlib.closing(build_engine(POOL_OF_ONE, environment)) as launchers,
    ):
        assert isinstance(built, ProcessPool) == (processes > 1)
        assert ({**built.settings, "workers": 1} == launchers.settings) == (processes > 0)
        assert built.settings.get("workers", 0) == processes and "device" not in built.settings


@pytest.mark.parametrize(("engine", "threads"), [("reference", 2), ("pool", 1)])
def test_a_record_is_trained_again_by_its_own_engine_and_threads(tiny, tmp_path, engine, threads):
    """To the bit, which is only expected where both are the record's."""
    tiny = replace(tiny, federation=replace(tiny.federation, rounds=1))  # threads wait long where other tests compute
    run(tiny, tmp_path, engine=EngineOptions(engine=engine, threads=threads))
    torch.set_num_threads(1)
    found = retrain(record_of(run_folder(tmp_path, tiny)))
    assert found.exact and found.trouble is None
    assert torch.get_num_threads() == threads
