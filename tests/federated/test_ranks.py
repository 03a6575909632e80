"""A round's jobs on several ranks: the same bits for any number, and an end that names who is lost and can go on."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark.errors import Stopped
from benchmark.experiment import Experiment
from benchmark.records.files import read_json
from benchmark.records.folders import run_folder
from benchmark.records.run import run
from tests.conftest import ROOT, tiny_experiment
from tests.federated.ranks_here import Faults, RanksHere
from tests.federated.test_workers import alive, wait_until
from tests.records.equality import differences, last_checkpoint, untimed

PLAIN = tiny_experiment()
# Momentum stays with the clients, and a client's job sees what its last one left.
KEEPS = replace(
    PLAIN,
    method=replace(PLAIN.method, momentum="released_code", server_models="released_code"),
    federation=replace(PLAIN.federation, rounds=4),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Both runs by worker processes, whose local step the ranks have."""
    results = tmp_path_factory.mktemp("whole")
    for experiment in (PLAIN, KEEPS):
        assert run(experiment, results, engine="cpu", workers=1)["status"] == "done"
    assert last_checkpoint(run_folder(results, KEEPS), KEEPS).state.clients
    return results


@pytest.fixture
def start(tmp_path) -> Iterator:
    """Starts ranks, and ends whatever is left of them."""
    started = []

    def start_ranks(*experiments: Experiment, folder: Path = tmp_path, faults: Faults | None = None) -> RanksHere:
        started.append(RanksHere(experiments, folder, faults))
        return started[-1]

    yield start_ranks
    for ranks in started:
        ranks.kill()


@pytest.mark.fault(41)
@pytest.mark.parametrize("experiment", [PLAIN, KEEPS], ids=["nothing kept", "state at clients"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_any_number_of_ranks_gives_the_bits_of_worker_processes(start, whole, tmp_path, experiment, count):
    """Weights, what clients keep, every round's line and the result; the manifest names engine and ranks."""
    ranks = start(*[experiment] * count)
    assert ranks.wait() == [0] * count, ranks.said
    assert differences(tmp_path, whole, experiment) == []
    engine = read_json(run_folder(tmp_path, experiment) / "manifest.json")["engine"]
    speed = {"plain": False, "confident_only": True}
    assert engine == {"name": "distributed", "ranks": count, "threads": 1, "bit_equal": True, **speed}
    assert "done after" in ranks.said[0] and not any(ranks.said[1:]), "only rank 0 speaks"


def goes_on(start, ranks: RanksHere, whole: Path, count: int) -> bool:
    """Whether as many ranks, or one process, go on from where these ended, with the bits of an unbroken run."""
    folder = run_folder(ranks.folder, KEEPS)
    assert last_checkpoint(folder, KEEPS).round == len(untimed(folder)) == 2
    again = start(*[KEEPS] * count, folder=ranks.folder)
    assert again.wait() == [0] * count, again.said
    assert read_json(folder / "manifest.json")["attempts"][1]["from_round"] == 2
    return differences(ranks.folder, whole, KEEPS) == []


@pytest.mark.fault(41, counts="kills in the tests")
def test_a_killed_rank_is_named_within_seconds_and_fewer_ranks_go_on(start, whole):
    """In round 3 all sleep in jobs of a minute, rank 0 too; rank 2 is killed; the others are gone 5 s later."""
    ranks = start(KEEPS, KEEPS, KEEPS, faults={-1: {"sleep_in_round": 3}})
    ranks.wait_for_lines(2)
    time.sleep(0.5)
    began = time.monotonic()
    os.kill(ranks.pids[2], signal.SIGKILL)
    assert ranks.wait(10) == [Stopped.exit_code, 0, -signal.SIGKILL], ranks.said
    assert time.monotonic() - began < 5
    lost = (
        rf"stopped by rank 2 \(host \S+, process {ranks.pids[2]}\), which has ended .* after round 2; the same command"
    )
    assert re.search(lost, ranks.said[0]), ranks.said
    (attempt,) = read_json(run_folder(ranks.folder, KEEPS) / "manifest.json")["attempts"]
    assert attempt["stopped"]["by"] == "the loss of a rank" and attempt["stopped"]["after_round"] == 2
    assert goes_on(start, ranks, whole, 2)


@pytest.mark.fault(41)
def test_a_stopped_rank_is_named_and_more_ranks_go_on(start, whole):
    """A process that is stopped keeps its connections: it is its silence that is noticed, here after 2 s."""
    ranks = start(KEEPS, KEEPS, faults={-1: {"sleep_in_round": 3}, 0: {"patience": 2.0}})
    ranks.wait_for_lines(2)
    os.kill(ranks.pids[1], signal.SIGSTOP)
    assert ranks.wait(12)[0] == Stopped.exit_code, ranks.said
    assert f"process {ranks.pids[1]}), which has given no sign of life for 2 s" in ranks.said[0]
    os.kill(ranks.pids[1], signal.SIGCONT)
    assert ranks.wait(5) == [Stopped.exit_code] * 2 or ranks.wait(5)[1] == 0, "it leaves, once it goes on"
    assert goes_on(start, ranks, whole, 3)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.fault(8)
def test_a_signal_to_one_rank_stops_all(start, whole, rank):
    """As a scheduler sends it to one machine; rank 1 asks rank 0 to stop, which names it. One process goes on."""
    ranks = start(KEEPS, KEEPS, faults={-1: {"sleep_in_round": 3}})
    ranks.wait_for_lines(2)
    time.sleep(0.5)
    os.kill(ranks.pids[rank], signal.SIGTERM)
    assert ranks.wait(10) == [Stopped.exit_code, 0], ranks.said
    who = (
        "SIGTERM" if rank == 0 else rf"rank 1 \(host \S+, process {ranks.pids[1]}\), which was asked to stop by SIGTERM"
    )
    assert re.search(f"stopped by {who} after round 2", ranks.said[0]) and not ranks.said[1], ranks.said
    assert goes_on(start, ranks, whole, 1)


@pytest.mark.fault(41, counts="kills in the tests")
def test_without_rank_0_the_others_end(start):
    ranks = start(KEEPS, KEEPS, faults={-1: {"sleep_in_round": 3}})
    ranks.wait_for_lines(2)
    os.kill(ranks.pids[0], signal.SIGKILL)
    assert ranks.wait(5) == [-signal.SIGKILL, Stopped.exit_code], ranks.said
    assert f"rank 1: rank 0 (host {os.uname().nodename}, process {ranks.pids[0]}) has ended" in ranks.said[1]


@pytest.mark.fault(41)
@pytest.mark.parametrize(
    ("other", "fault", "code", "named"),
    [
        (KEEPS, {}, 65, r"experiment: cell {theirs}, .* on rank 1 \(.*\), cell {ours}, .* on rank 0 \(.*\); the same"),
        (PLAIN, {"other_data": True}, 66, r"data: digits with hash 0123abcd on rank 1 \(.*\), digits .* on rank 0"),
        (PLAIN, {"no_data": True}, 66, r"digits: not found; somewhere else"),
    ],
    ids=["experiment", "data", "no data"],
)
def test_a_rank_with_something_else_is_refused_at_the_start(start, other, fault, code, named):
    """One line at rank 0 that names both, the code of its kind, and no round."""
    ranks = start(PLAIN, other, faults={1: fault})
    codes = ranks.wait(15)
    assert codes[0] == code and codes[1] in (0, code), ranks.said
    pattern = named.format(ours=PLAIN.cell_key, theirs=other.cell_key)
    assert re.search(pattern, ranks.said[0]) and ranks.said[0].count("\n") == 1, ranks.said
    assert not list(ranks.folder.rglob("rounds.jsonl"))


def test_a_finished_run_is_not_trained_again(start, whole):
    """Rank 0 finds the result before it has asked anything of rank 1, which ends as well."""
    ranks = start(PLAIN, PLAIN, folder=whole)
    assert ranks.wait(15) == [0, 0], ranks.said


@pytest.mark.fault(15, 41)
@pytest.mark.parametrize("how", [pytest.param("a killed rank", marks=pytest.mark.slow), "Ctrl-C"])
def test_nothing_is_left_of_torchrun(whole, tmp_path, how):
    """The real launcher: it ends within seconds, nothing of its session is there, round 2 is on disk."""
    words = ["run", "--results", str(tmp_path), "--config", str(run_folder(whole, KEEPS) / "experiment.json")]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    torchrun = subprocess.Popen(
        [*launch, "-m", "tests.federated.ranks_here", '{"sleep_in_round": 3}', *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    folder, ranks = run_folder(tmp_path, KEEPS), []
    try:
        wait_until(lambda: (folder / "rounds.jsonl").exists() and len(untimed(folder)) == 2, seconds=60)
        time.sleep(0.5)
        ranks = children(torchrun.pid)
        assert len(ranks) == 2
        if how == "Ctrl-C":
            torchrun.send_signal(signal.SIGINT)
        else:
            os.kill(ranks[1], signal.SIGKILL)
        _, said = torchrun.communicate(timeout=15)
    finally:
        for pid in [*children(torchrun.pid), torchrun.pid] if torchrun.poll() is None else []:
            os.kill(pid, signal.SIGKILL)
    by = "SIGINT" if how == "Ctrl-C" else rf"rank 1 \(host \S+, process {ranks[1]}\), which has ended"
    assert re.search(rf"fssl: \S+ stopped by {by}.* after round 2", said), said
    assert torchrun.returncode != 0 and not any(map(alive, ranks))
    assert last_checkpoint(folder, KEEPS).round == 2


def children(pid: int) -> list[int]:
    """In the order in which they were started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
