"""Plans of custom methods, whose `round` may read the numbers of weights or fail on tensors without numbers."""

import json
from itertools import count

import pytest

# READ is replaced by a line that uses the weights of the server.
MODULE = """
from dataclasses import dataclass

import numpy as np

from benchmark.losses import supervised_loss
from benchmark.methods.protocol import LocalUpdate, Method, State, Stream
from benchmark.methods.shared import fit_each, mean_of


@dataclass(frozen=True, kw_only=True)
class OwnLoss(LocalUpdate):
    def loss(self, step):
        batch = step.batch["labelled"]
        return supervised_loss(step.student(batch.views["weak"]), batch.known_N), {}


@dataclass(frozen=True, kw_only=True)
class Reads(Method):
    needs = frozenset({"every_client"})

    def round(self, state, world):
        student = state.server["student"]
        streams = {"labelled": Stream(part="labelled", batch_size=8, views=("weak",))}
        outcomes = fit_each(world, world.cohort(), OwnLoss(), {"student": student}, streams)
        student = mean_of(outcomes, otherwise=student)
        weights = list(student.values())
        READ
        return State(server={"student": student}), {}
"""
TABLE = """
[rows.Mine]
method = "MODULE:Reads"
[fields]
"data.label_setting" = "every_client"
"data.N_s" = 50
"federation.K" = 3
"federation.C" = 2
"federation.T" = 2
"federation.rounds" = 2
"method.warm_start_rounds" = 0
"""
NUMBERS = count()  # each test has a module of its own, since imported classes are cached
STEPS = 2 * 2 * 2  # rounds, clients per round and local steps
READS = {
    "numpy": "sum(float(value.numpy().sum()) for value in weights)",
    "numpy by force": "weights[0].numpy(force=True).mean()",
    "an array": "np.stack([np.asarray(weights[0]), np.asarray(weights[0])])",
    "a list": "weights[0].tolist()",
    "one number": "max(value.double().sum().item() for value in weights)",
    "on the host": "weights[0].detach().cpu().numpy().copy()",
}


@pytest.fixture
def planned(tmp_path, monkeypatch, fssl):
    """Plan one run of a method with this line in its `round`; return exit code, JSON values, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = f"reads_{next(NUMBERS)}"
    (tmp_path / "mine.toml").write_text(TABLE.replace("MODULE", module))
    (tmp_path / "r").mkdir()

    def plan(line, *words, runs=1):
        (tmp_path / f"{module}.py").write_text(MODULE.replace("READ", line))
        command = ("plan", "./mine.toml", "--profile", "demo", "--pilots", runs, "--json")
        code, out, err = fssl(*command, *words, "--results", "r")
        return code, json.loads(out) if out else None, err

    return plan


@pytest.mark.parametrize("read", READS)
def test_a_method_that_reads_numbers_of_weights_is_counted(planned, read):
    code, counted, err = planned(READS[read])
    assert (code, err) == (0, "")
    assert counted["runs"] == 1 and counted["local_steps"] == STEPS and counted["bytes_up"] > 0


@pytest.mark.parametrize("words", [(), ("--devices", "h200")])
def test_a_method_that_cannot_be_counted_is_planned_without_its_cost(planned, words):
    """Its line is named once, whatever the number of runs."""
    line = 'raise ValueError("the weights are equal")'
    code, counted, err = planned(line, *words, runs=3)
    assert code == 0 and "Traceback" not in err
    assert counted["runs"] == 3 and counted["local_steps"] == 0
    number = 1 + MODULE.splitlines().index("        READ")
    (note,) = [note for note in counted["notes"] if f".py:{number})" in note]
    assert "3 runs" in note and "the weights are equal" in note
