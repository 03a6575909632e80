"""The profile of an engine: which jobs are in it, and a real one beside the record."""

from dataclasses import replace

import pytest

from benchmark.bench.profiling import profiled, without_warm_start
from benchmark.federated.jobs import PLAIN
from tests.cli.test_cli import TINY, fssl


@pytest.mark.slow
def test_a_run_with_a_profile_beside_its_record(capsys, tmp_path) -> None:
    """3 jobs of one local step each; a network with convolutions spends time there and back."""
    code, out, _ = fssl(capsys, "run", *TINY, "--profile-engine", "--results", tmp_path)
    assert code == 0
    (path,) = (tmp_path / "runs").glob("*/seed=0/engine-profile.txt")
    text = path.read_text()
    assert text in out and (path.parent / "result.json").exists()
    assert text.startswith("3 jobs, 3 local steps") and "convolution_backward" in text


def test_the_warm_start_is_left_out_and_jobs_are_counted(tiny) -> None:
    """The server and 4 clients a round, two local steps each. With the warm start there would be one job a round for 50
    rounds. Each client's step passes two views through the two convolutions of the network, the server's one."""
    late = replace(tiny, method=replace(tiny.method, warm_start_rounds=50))
    text = profiled(late, None, PLAIN)
    assert text.startswith("3 jobs, 6 local steps") and without_warm_start(late) == tiny
    (line,) = [line for line in text.splitlines() if line.split()[:1] == ["aten::convolution"]]
    assert int(line.split()[-1]) == 2 * (2 * 1 + 4 * 2)


@pytest.mark.slow
def test_what_cannot_run_is_not_profiled(capsys, tmp_path) -> None:
    """The data set's error, from the other process, is one line and its exit code."""
    words = ["--data.name=folder:nowhere", "--profile-engine", "--results", tmp_path]
    code, out, err = fssl(capsys, "run", *words)
    assert code == 66 and "nowhere" in err and err.count("\n") == 1 and out == ""
