"""Custom methods: the method in the README runs, and messages name wrong return values."""

import math
import re
import sys
from dataclasses import dataclass, field, make_dataclass
from typing import Literal

import numpy as np
import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.methods.protocol import Local, Method, State, Step
from benchmark.methods.registry import method_class, read_method
from benchmark.methods.ssfl import SSFL, ConsistencyUpdate
from benchmark.records.run import run
from tests.conftest import ROOT, tiny_experiment
from tests.methods.watch import watched

OWN = "OwnLoss(threshold=self.threshold)"
README = (ROOT / "benchmark" / "methods" / "README.md").read_text()


@pytest.mark.parametrize("own_loss", [False, True])
def test_the_method_in_the_readme_runs(tmp_path, monkeypatch, own_loss):
    """Run the method of the suite's first page, and the same method with a custom loss."""
    method, loss, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert method in (ROOT / "README.md").read_text()
    with_loss = method.replace("CRL(threshold=self.threshold).update(keeps_momentum=False)", OWN)
    assert OWN in README and OWN in with_loss
    (tmp_path / "my_method.py").write_text(with_loss.replace("\n\n\n@", f"\n{loss}\n\n@") if own_loss else method)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    mine = read_method({"kind": "my_method:ServerLast", "threshold": 0.1, "batch_size": 8}, "method")
    module, _ = watched(tiny_experiment(method=mine))
    assert module.metrics["local_steps"] == 2 * (4 + 1) and module.metrics["pseudo/kept"] > 0.5
    assert list(module.models()) == ["student"]


OF_ROUND = "return a State and the numbers to record, such as `state, {}`"
OF_MODELS = "return the weights to evaluate by name, such as {'student': weights}"
OF_LOSS = "return the loss, a scalar tensor, and scalar tensors to report, such as `loss, {}`"
OF_START = "return None or Local(trainable={'student': weights})"
UPDATE = "benchmark.methods.ssfl:ConsistencyUpdate"
STATE = State(server={})
LOSS = torch.ones(())
KEPT = {"kept_N": torch.ones(2)}
SELECTED = {"labels_N": torch.zeros(2, dtype=torch.int64), "kept_N": torch.ones(2, dtype=torch.bool)}
NOT_BOOL = {**SELECTED, "candidates_ND": torch.ones(2, 3, dtype=torch.int64)}
TOO_MANY = {**SELECTED, "candidates_ND": torch.ones(3, 3, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("owner", "function", "returns", "message"),
    [
        (SSFL, "init", {"student": 1}, "init of ssfl returned {'student': int}; return State(server={...})"),
        (SSFL, "round", STATE, f"round 1 of ssfl returned State; {OF_ROUND}"),
        (
            SSFL,
            "round",
            (State(server={"w": LOSS}), {}),
            "models of ssfl needs 'average', but the server of the State has w;",
        ),
        (SSFL, "round", (STATE, None), f"round 1 of ssfl returned State and NoneType; {OF_ROUND}"),
        (SSFL, "round", (STATE, {"loss": "low"}), f"round 1 of ssfl returned str as 'loss'; {OF_ROUND}"),
        (SSFL, "round", (STATE, {3: 1.0}), f"round 1 of ssfl returned float as 3; {OF_ROUND}"),
        (SSFL, "models", {}, f"models of ssfl returned {{}}; {OF_MODELS}"),
        (SSFL, "models", {"best": LOSS}, f"models of ssfl returned {{'best': Tensor}}; {OF_MODELS}"),
        (SSFL, "models", {"best": {"w": LOSS}}, "(missing or unknown: conv1.bias, conv1.weight, conv2.bias)"),
        (SSFL, "_client_jobs", [1], "world.fit was called with list; call it with a list of Job(...)"),
        (ConsistencyUpdate, "start", {"student": {}}, f"start of {UPDATE} returned {{'student': dict}}; {OF_START}"),
        (ConsistencyUpdate, "start", Local(trainable={"w": 1}), f"start of {UPDATE} returned Local; {OF_START}"),  # type: ignore[dict-item]
        (ConsistencyUpdate, "loss", LOSS, f"loss of {UPDATE} returned Tensor[]; {OF_LOSS}"),
        (ConsistencyUpdate, "loss", (LOSS, {}), f"the loss of {UPDATE} depends on no weight that is trained"),
        (ConsistencyUpdate, "loss", (torch.ones(2), {}), f"loss of {UPDATE} returned Tensor[2] and {{}}; {OF_LOSS}"),
        (ConsistencyUpdate, "loss", (LOSS, {"l": 1.0}), f"loss of {UPDATE} returned float as 'l'; {OF_LOSS}"),
        (ConsistencyUpdate, "loss", (LOSS, {"v": torch.ones(2)}), f"{UPDATE} returned Tensor[2] as 'v'; {OF_LOSS}"),
        (ConsistencyUpdate, "loss", (LOSS, KEPT), " as NoneType of None and Tensor[2] of torch.float32; return"),
        (ConsistencyUpdate, "loss", (LOSS, NOT_BOOL), "'candidates_ND' as Tensor[2, 3] of torch.int64; return a bool"),
        (ConsistencyUpdate, "loss", (LOSS, TOO_MANY), "'candidates_ND' as Tensor[3, 3] of torch.bool; return a bool"),
        (ConsistencyUpdate, "finish", None, f"finish of {UPDATE} returned NoneType; return the tree to send, such as"),
    ],
)
def test_a_wrong_return_value_names_the_function_and_what_was_wanted(monkeypatch, owner, function, returns, message):
    monkeypatch.setattr(owner, function, lambda *arguments: returns)
    with pytest.raises(ConfigError) as caught:
        watched(tiny_experiment())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_loss_with_the_arguments_of_earlier_versions_is_refused_with_the_new_ones(monkeypatch):
    """Expect a message with the new signature and fields, before anything is trained."""
    trained = []
    monkeypatch.setattr(ConsistencyUpdate, "loss", lambda self, trainable, frozen, batch, draw: trained.append(1))
    with pytest.raises(ConfigError) as caught:
        watched(tiny_experiment())
    message = str(caught.value)
    assert "def loss(self, step)" in message and "step.batch" in message and "\n" not in message
    assert "(trainable, frozen, batch, draw)" in message and not trained


def test_a_step_names_what_it_has():
    """Expect that the message for `step.step`, a field of earlier versions, names `number`."""
    with pytest.raises(AttributeError, match="number"):
        _ = Step(trainable=torch.nn.ModuleDict(), frozen=torch.nn.ModuleDict()).step


class Plain(Method):
    needs = frozenset({"server"})


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A method that does not inherit from Method."""

    needs = frozenset({"server"})
    check, init, models = Method.check, Method.init, Method.models

    def round(self, state, world):
        return state, {"own": np.int64(3), "is": True}


def test_a_method_may_have_the_five_names_itself(tmp_path):
    assert method_class(f"{__name__}:Apart") is Apart
    assert run(tiny_experiment(method=Apart()), tmp_path)["status"] == "done"


Bare = make_dataclass("Bare", [], bases=(Method,), frozen=True, kw_only=True)


@pytest.mark.parametrize(
    ("hint", "default", "message"),
    [
        (float, math.inf, "method.own: inf has no exact JSON form"),
        (list[int], field(default_factory=lambda: [1]), r"method.own: .*cannot contain list.int.; write .*tuple.int, "),
        (tuple[int, ...] | Literal["all"], "all", "method.own.kind: unknown value 'all'"),
        (int, 0.5, "method.own: 0.5 is not a whole number"),
    ],
)
def test_a_field_that_no_record_can_hold_is_refused_when_the_class_is_read(monkeypatch, hint, default, message):
    made = make_dataclass("Made", [("own", hint, default)], bases=(Apart,), frozen=True, kw_only=True)
    monkeypatch.setattr(sys.modules[__name__], "Made", made, raising=False)
    with pytest.raises(ConfigError, match=message):
        read_method(f"{__name__}:Made", "method")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("semifll", "did you mean 'semifl'"),
        ("grouping", "type --method ssfl --method.averaging grouping"),
        (f"{__name__}:Plain", "is not a dataclass"),
        ("benchmark.optimizer:Optimizer", "write init, def round"),
        (f"{__name__}:Bare", r"write def round\(self, state, world\), needs = frozenset.* in the class"),
    ],
)
def test_names_that_are_no_method(name, message):
    with pytest.raises(ConfigError, match=message):
        method_class(name)
