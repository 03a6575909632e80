"""The tools for speed time what they say. They are run by hand, and so is this: `pytest tests/performance`."""

import json
import sys
import time

import numpy as np
import pytest

from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.module import FederatedModule
from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment
from tests.performance import local_steps, turns
from tests.performance.engines import main
from tests.performance.peers import __main__ as peers
from tests.performance.peers.work import Setup, by_hand, environment_for
from tests.performance.whole_runs import seconds_of
from tests.performance.works import WORKS

pytestmark = pytest.mark.slow


def test_figures_of_a_contender() -> None:
    """Turns (4, 1), (9, 3), (10, 2): ratios 4, 3, 5; their median is 4, not 9/2 from the medians."""
    row = turns.figures([(4.0, 4.0), (9.0, 4.0), (10.0, 4.0)], [(1.0, 1.0), (3.0, 1.0), (2.0, 1.0)])
    assert row["ratio"] == {"median": 4.0, "least": 3.0, "most": 5.0} and row["cpu_ratio"]["median"] == 4.0


def test_engines_print_and_write_their_rows(capsys, tmp_path) -> None:
    path = tmp_path / "engines.json"
    main(["--small", "--work", "B", "--rounds", "1", "--workers", "2", "--threads", "1", "--json", str(path)])
    out, err = capsys.readouterr()
    assert "B  plain loop" in out and "B, round 1: reference" in err
    rows = json.loads(path.read_text())["works"]["B"]["rows"]
    assert rows["ours"]["ratio"] == {"median": 1.0, "least": 1.0, "most": 1.0}
    assert all(row["cpu_seconds"]["median"] > 0 for row in rows.values()) and str(tmp_path) not in path.read_text()


def test_a_device_s_table_is_markdown(capsys, monkeypatch) -> None:
    """Every row has the columns of the head, and numbers above 0. A missing device is one line."""
    monkeypatch.setattr(local_steps, "STEPS", {"EMNIST CNN, CRL": WORKS["A"]})
    main(["--device", "cpu", "--small", "--rounds", "1"])
    head, _, *rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if "|" in line]
    assert len(rows) == 1 and len(head) == len(rows[0]) == 5
    assert all(float(text.removesuffix(" MiB ").replace(",", "")) > 0 for text in rows[0][1:])
    with pytest.raises(SystemExit, match="no device 'cuda:99' in 'cuda:99'"):
        main(["--device", "cuda:99"])


@pytest.mark.parametrize("work", sorted(WORKS))
def test_the_peers_round_is_the_reference_engine_s(work: str) -> None:
    setup = Setup(work=work, rounds=1, processes=1, small=True)
    known = environment_for(setup)
    module = FederatedModule(known, ReferenceEngine(known))
    module.training_step(1, 0)
    (wanted,) = module.models().values()
    assert turns.difference({name: value.numpy() for name, value in by_hand(setup).items()}, wanted) < 1e-5


def test_a_peer_that_computes_something_else_is_not_timed(monkeypatch) -> None:
    """Ours, where twice what is allowed is added to every weight that is wanted."""
    start = by_hand(Setup(work="laptop", rounds=1, processes=1, small=True))
    monkeypatch.setattr(turns, "by_hand", lambda setup: {name: w + 2 * turns.OURS for name, w in start.items()})
    monkeypatch.setattr(sys, "argv", ["peers", "--small", "--rounds", "1", "--work", "laptop"])
    with pytest.raises(SystemExit, match="it is not the same work"):
        peers.main()


def test_the_parts_of_a_whole_run_are_its_cpu_seconds_and_move_no_number(tmp_path) -> None:
    """Equal to four digits: the fast local step is another than the reference engine's in its last bits."""
    before = time.process_time()
    seconds = seconds_of(tiny_experiment(), tmp_path / "timed")
    whole = time.process_time() - before
    assert 0.2 * whole < sum(seconds.values()) < whole  # less by the rest of the process
    assert min(seconds.values()) > -0.02 * whole and seconds["bare steps"] > 0.0 < seconds["evaluation"]
    run(tiny_experiment(), tmp_path / "plain")
    timed, plain = (next((tmp_path / name).glob("runs/*/*")) for name in ("timed", "plain"))
    measured, wanted = record_of(timed).result["last"], record_of(plain).result["last"]
    assert measured.keys() == wanted.keys()
    np.testing.assert_allclose([measured[n] for n in wanted], list(wanted.values()), rtol=1e-4, atol=1e-4)
