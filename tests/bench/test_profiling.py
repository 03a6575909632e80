"""The profile of an engine: its arithmetic by hand, and a real one beside the record."""

from dataclasses import replace

import pytest

from benchmark.bench.profiling import Operator, Profile, profiled, without_warm_start
from benchmark.federated.engines import PLAIN
from tests.cli.test_cli import TINY, fssl


def test_shares_and_steps_by_hand() -> None:
    """3 of 4 ms in convolutions: 75 %, over 2 steps 1.5 ms and 4 calls each."""
    convolution = Operator(name="aten::convolution", calls=8, self_seconds=0.003)
    text = Profile(operators=(convolution, Operator(name="aten::mm", calls=1, self_seconds=0.001)), jobs=1, steps=2)
    head, _, first, second = text.text().splitlines()
    assert head == "1 jobs, 2 local steps on one thread, 2.00 ms a local step"
    assert first.split() == ["75.0%", "1.500", "4.0", "aten::convolution"]
    assert second.split() == ["25.0%", "0.500", "0.5", "aten::mm"]


@pytest.mark.slow
def test_a_run_with_a_profile_beside_its_record(capsys, tmp_path) -> None:
    """3 jobs of one local step each; a network with convolutions spends time there and back."""
    code, out, _ = fssl(capsys, "run", *TINY, "--profile-engine", "--results", tmp_path)
    assert code == 0
    (path,) = (tmp_path / "runs").glob("*/seed=0/engine-profile.txt")
    text = path.read_text()
    assert text in out and (path.parent / "result.json").exists()
    assert text.startswith("3 jobs, 3 local steps")
    assert "convolution" in text and "convolution_backward" in text
    shares = [float(line.split("%")[0]) for line in text.splitlines()[2:]]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 100.5


def test_the_warm_start_is_left_out_and_jobs_are_counted(tiny) -> None:
    """4 clients and the server a round, two local steps each: the first job warms up, the next three count 6 steps.

    With the warm start there would be one job a round for 50 rounds, and two to count in three rounds.
    """
    late = replace(tiny, method=replace(tiny.method, warm_start_rounds=50))
    found = profiled(late, None, PLAIN)
    assert (found.jobs, found.steps) == (3, 6)
    assert without_warm_start(late) == tiny
    convolutions = [operator for operator in found.operators if operator.name == "aten::convolution"]
    # Each step passes two views through the two convolutions of the network.
    assert [operator.calls for operator in convolutions] == [6 * 2 * 2]


@pytest.mark.slow
def test_what_cannot_run_is_not_profiled(capsys, tmp_path) -> None:
    """The data set's error, from the other process, is one line and its exit code."""
    words = ["--data.name=folder:nowhere", "--profile-engine", "--results", tmp_path]
    code, out, err = fssl(capsys, "run", *words)
    assert code == 66 and "nowhere" in err and err.count("\n") == 1 and out == ""
