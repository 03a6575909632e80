"""What launchers do with input that cannot be right, full disks, and runs that fail: outcome and exit code of each.

Grids and files in themselves: test_sweep_file.py. Sweeps of a server that are not the file's: test_agents.py.
"""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from benchmark.cli.main import main
from benchmark.cli.reproduce import diverged
from benchmark.errors import CannotWrite, FsslError
from benchmark.methods.protocol import State
from benchmark.methods.server_only import ServerOnly
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import MOST_DEATHS, LocalWorkers, launch
from sweeps.plan import Plan, plan_of_runs
from sweeps.sweep_file import written
from tests.conftest import record_of
from tests.records.test_disk import disk  # noqa: F401 (a fixture)

GOOD = written({"T": [1, 2], "profile": ["demo"]}, name="small", made_by="a test")
MANY = written({"T": list(range(1, 102)), "seed": list(range(100))}, name="many", made_by="a test")  # 10,100 runs


@pytest.mark.parametrize("launcher", ["work", "agent"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("  T:", "  Tt:"), "parameters: unknown factor 'Tt'; did you mean 'T'"),
        (MANY, "10,100 runs; --yes takes more than 10,000"),
    ],
    ids=["misspelt factor", "too many runs"],
)
def test_a_file_that_is_no_grid_is_one_line_and_65_before_anything_is_asked_or_written(
    launcher, text, said, tmp_path, capsys, monkeypatch
):
    """W&B has no key here: an agent that went on to ask it would say so."""
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    assert text != GOOD
    (path := tmp_path / "sweep.yaml").write_text(text)
    results = tmp_path / "results"
    more = ["team/fssl/s1"] if launcher == "agent" else []
    assert main([launcher, str(path), *more, "--results", str(results)]) == 65
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1, captured.err
    assert "API key" not in captured.err and not results.exists()


@dataclass(frozen=True, kw_only=True)
class EndsItsProcess(ServerOnly):
    """As a run that the system kills for its memory, round after round."""

    def round(self, state: State, world: Any) -> tuple[State, Mapping[str, float]]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.slow  # six processes import torch, one after another
def test_a_run_that_is_killed_three_times_and_one_that_diverges_cost_the_others_nothing(tiny, tmp_path):
    deadly = replace(tiny, method=EndsItsProcess())
    wild = replace(tiny, optimizer=replace(tiny.optimizer, lr=1e30))
    with pytest.raises(FsslError, match=f"{deadly.cell_key}, seed 0: .*{MOST_DEATHS} times.*SIGKILL") as found:
        launch(LocalWorkers(1, tmp_path), [deadly, wild, tiny], tmp_path)
    assert found.value.exit_code == 1
    assert record_of(run_folder(tmp_path, tiny)).status == "done"
    assert record_of(run_folder(tmp_path, wild)).status == "diverged"
    assert record_of(run_folder(tmp_path, deadly)).status == "unfinished"
    left = plan_of_runs([deadly, wild, tiny], tmp_path)
    assert left.missing == (deadly,)  # what diverged is a result, and is not trained again
    assert diverged(left) == [wild]


def test_a_full_disk_is_73_and_with_room_again_nothing_is_in_the_way(tiny, disk):  # noqa: F811
    runs, filler = [tiny, tiny.with_seed(1)], disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    with pytest.raises(CannotWrite, match="No space left on device") as found:
        launch(LocalWorkers(1, disk), runs, disk)
    assert found.value.exit_code == 73
    filler.unlink()
    assert [run(experiment, disk)["status"] for experiment in runs] == ["done", "done"]


def test_what_is_missing_did_not_diverge(tiny):
    """A launch that is stopped leaves runs without a record."""
    assert diverged(Plan(items=(), runs=(tiny,), missing=(tiny,), records={})) == []
