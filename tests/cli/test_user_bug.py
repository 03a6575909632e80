"""A bug in a user's own method: the user's line comes first, without the frames of libraries, and `status` names it."""

import json
import sys

import pytest

from benchmark.failures import failure_of

# The faulty line has a number of its own, so that it can be found below.
MODULE = """
from dataclasses import dataclass
from pathlib import Path

from benchmark.losses import supervised_loss
from benchmark.methods.protocol import LocalUpdate, Method, State, Stream
from benchmark.methods.shared import fit_each, mean_of


@dataclass(frozen=True, kw_only=True)
class OwnLoss(LocalUpdate):
    def loss(self, step):
        batch = step.batch["labelled"]
        loss = supervised_loss(step.student(batch.views["weak"]), batch.known_N)
        if Path(__file__).with_name("with_bug").exists():
            raise ValueError("tau is missing")  # the bug
        return loss, {}


@dataclass(frozen=True, kw_only=True)
class Buggy(Method):
    needs = frozenset({"every_client"})

    def round(self, state, world):
        student = state.server["student"]
        streams = {"labelled": Stream(part="labelled", batch_size=8, views=("weak",))}
        outcomes = fit_each(world, world.cohort(), OwnLoss(), {"student": student}, streams)
        return State(server={"student": mean_of(outcomes, otherwise=student)}), {}
"""
LINE = 1 + MODULE.splitlines().index('            raise ValueError("tau is missing")  # the bug')
FIELDS = [
    "--data.label_setting=every_client",
    "--data.N_s=50",
    "--federation.K=3",
    "--federation.C=2",
    "--federation.T=1",
    "--federation.rounds=2",
]


@pytest.fixture
def buggy(tmp_path, monkeypatch):
    """Write a module with a bug into the working folder, as `buggy:Buggy`."""
    (tmp_path / "buggy.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "with_bug").touch()
    monkeypatch.setenv("FSSL_TRACEBACK", "")  # which --traceback sets; restored after the test
    yield tmp_path
    sys.modules.pop("buggy", None)


@pytest.mark.parametrize("engine", ["reference", "pool"])
def test_her_line_comes_first_and_status_names_it_until_it_is_mended(buggy, fssl, engine):
    words = ["run", "--method", "buggy:Buggy", *FIELDS, "--engine", engine, "--results", buggy / "r"]
    code, out, err = fssl(*words)
    first, *others = err.splitlines()
    assert code == 1 and out == "" and f"buggy.py:{LINE}" in first and "ValueError: tau is missing" in first
    assert "site-packages" not in err and len(others) < 10
    seen = json.loads(fssl("status", "--json", "--results", buggy / "r")[1])
    (run,) = seen["runs"]
    assert run["state"] == "failed" and seen["counts"]["failed"] == 1 and "curve" not in run
    assert run["trouble"] == f"ValueError: tau is missing (buggy.py:{LINE})"
    shown = fssl("status", "--results", buggy / "r")[1]
    assert f"failed: {run['trouble']}" in shown
    code, _, err = fssl(*words, "--traceback")
    assert code == 1 and "pytorch_lightning" in err and f'buggy.py", line {LINE}' in err
    (buggy / "with_bug").unlink()
    assert fssl(*words)[0] == 0
    (run,) = json.loads(fssl("status", "--json", "--results", buggy / "r")[1])["runs"]
    assert run["state"] == "done" and run["trouble"] is None
    assert not list(buggy.glob("r/runs/*/*/failed.json"))


def test_a_launch_says_a_bug_once_however_many_runs_have_it(buggy, fssl):
    fields = "\n".join(f'"{name.removeprefix("--")}" = {json.dumps(_value(name, text))}' for name, text in _pairs())
    (buggy / "mine.toml").write_text(f'seeds = 3\n[fields]\n{fields}\n[rows.Mine]\nmethod = "buggy:Buggy"\n')
    code, _, err = fssl("work", "./mine.toml", "--profile", "demo", "--jobs", "2", "--results", buggy / "r")
    assert code == 1 and err.count("in loss") == 1 and "site-packages" not in err
    states = {run["state"] for run in json.loads(fssl("status", "--json", "--results", buggy / "r")[1])["runs"]}
    assert states == {"failed"}


def _pairs():
    yield from (word.split("=") for word in FIELDS)
    yield "--method.warm_start_rounds", "0"


def _value(name, text):
    return text if name.endswith("label_setting") else int(text)


def test_an_error_of_a_library_counts_at_the_users_line(tmp_path):
    """The user's frame is the innermost of the user's files, wherever the error was raised."""
    code = compile("\n\nimport json\njson.loads('x')", str(tmp_path / "mine.py"), "exec")
    with pytest.raises(json.JSONDecodeError) as caught:
        exec(code, {})
    failure = failure_of(caught.value)
    assert failure is not None and failure.at == "mine.py:4"
    assert "JSONDecodeError" in failure.line() and "mine.py:4" in failure.line()
