"""Local steps and bytes of records are compared with those that their settings determine, however short a run is."""

from dataclasses import replace

import pytest

from benchmark.experiment import Federation
from benchmark.methods.fedswitch import FedSwitch
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.expected import count_faults
from tests.conftest import record_of, tiny_experiment


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_bytes_of_a_short_run_are_compared_with_their_estimate(tmp_path, factor):
    """FedSwitch sends one model or two, so that bytes down are an estimate; clients take part once on average."""
    federation = Federation(K=4, C=2, T=2, rounds=2)
    experiment = tiny_experiment(method=FedSwitch(warm_start_rounds=0), federation=federation)
    run(experiment, tmp_path)
    honest = record_of(run_folder(tmp_path, experiment))
    assert count_faults([honest]) == []
    rounds = [{**line, "comm/bytes_down": factor * line["comm/bytes_down"]} for line in honest.rounds]
    faults = count_faults([replace(honest, rounds=rounds)])
    assert len(faults) == 1 and "comm/bytes_down" in faults[0]
