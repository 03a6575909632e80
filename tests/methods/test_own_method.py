"""A user's own method: the README's one runs; wrong return values are named."""

import re
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.methods.catalogue import method_class, read_method
from benchmark.methods.protocol import Local, Method, State
from benchmark.methods.shared import fit_each, mean_of
from tests.conftest import ROOT, tiny_experiment
from tests.federated.helpers import module_of
from tests.methods.toys import UNLABELLED, ToConstant

OWN = "OwnLoss(threshold=self.threshold)"
README = (ROOT / "benchmark" / "methods" / "README.md").read_text()


def played(method):
    module = module_of(tiny_experiment(method=method))
    module.training_step(1, 0)
    return module


@pytest.mark.parametrize("own_loss", [False, True])
def test_the_method_in_the_readme_runs(tmp_path, monkeypatch, own_loss):
    """It is the one of the suite's first page; with its own loss, too."""
    method, loss = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert method in (ROOT / "README.md").read_text()
    with_loss = method.replace("CRL(threshold=self.threshold).update(keeps_momentum=False)", OWN)
    assert OWN in README and OWN in with_loss
    (tmp_path / "my_method.py").write_text(with_loss.replace("\n\n\n@", f"\n{loss}\n\n@") if own_loss else method)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    module = played(read_method({"kind": "my_method:ServerLast", "threshold": 0.1, "batch_size": 8}, "method"))
    assert module.metrics["local_steps"] == 2 * (4 + 1) and module.metrics["pseudo/kept"] > 0.5
    assert list(module.models()) == ["student"]


@dataclass(frozen=True, kw_only=True)
class Wrong(Method):
    """A method of which one function, or one of its local work, returns something else than it should."""

    function: str
    returns: Any

    needs = frozenset({"server"})

    def init(self, setup):
        return self.returns if self.function == "init" else super().init(setup)

    def round(self, state, world):
        if self.function == "round":
            return self.returns(state)
        if self.function == "fit":
            return state, {"jobs": float(len(list(world.fit(self.returns))))}
        update, data = WrongWork(method=self), {"unlabelled": UNLABELLED}
        outcomes = fit_each(world, world.cohort(), update, {"student": state.server["student"]}, data)
        return State(server={"student": mean_of(outcomes, otherwise=None)}), {}

    def models(self, state):
        return self.returns(state) if self.function == "models" else super().models(state)


@dataclass(frozen=True, kw_only=True)
class WrongWork(ToConstant):
    method: Wrong

    def start(self, received, private, reader):
        return self.method.returns if self.method.function == "start" else super().start(received, private, reader)

    def loss(self, trainable, frozen, batch, draw):
        loss, aux = super().loss(trainable, frozen, batch, draw)
        return self.method.returns(loss) if self.method.function == "loss" else (loss, aux)

    def finish(self, local):
        return self.method.returns if self.method.function == "finish" else super().finish(local)


HERE = __name__
OF_ROUND = "return a State and the numbers to record, such as `state, {}`"
OF_MODELS = "return the weights to evaluate by name, such as {'student': weights}"
OF_LOSS = "return the loss, a scalar tensor, and tensors to report, such as `loss, {}`"
OF_START = "return None or Local(trainable={'student': weights})"


@pytest.mark.parametrize(
    ("function", "returns", "message"),
    [
        ("init", {"student": 1}, ":Wrong, init: returned {'student': int}; return State(server={...})"),
        ("round", lambda state: (state, None), f":Wrong, round 1: returned State and NoneType; {OF_ROUND}"),
        ("round", lambda state: (state, {"loss": "low"}), f":Wrong, round 1: returned str as 'loss'; {OF_ROUND}"),
        ("models", lambda state: {}, f":Wrong, models: returned {{}}; {OF_MODELS}"),
        ("models", lambda state: {"best": torch.ones(2)}, f":Wrong, models: returned {{'best': Tensor}}; {OF_MODELS}"),
        (
            "models",
            lambda state: {"best": {"w": torch.ones(2)}},
            "(missing or unknown: conv1.bias, conv1.weight, conv2.bias); what `models` names",
        ),
        ("fit", [1], "world.fit was given list; give it a list of Job(...)"),
        ("start", {"student": {}}, f":WrongWork, start: returned {{'student': dict}}; {OF_START}"),
        ("start", Local(trainable={"fc.bias": 1}), f":WrongWork, start: returned Local; {OF_START}"),  # type: ignore[dict-item]
        ("loss", lambda loss: (loss.repeat(2), {}), f":WrongWork, loss: returned Tensor[2] and {{}}; {OF_LOSS}"),
        ("loss", lambda loss: (loss, {"l": 1.0}), f":WrongWork, loss: returned float as 'l'; {OF_LOSS}"),
        ("finish", None, ":WrongWork, finish: returned NoneType; return what is sent by name, such as {'student': "),
    ],
)
def test_a_wrong_return_value_names_the_function_and_what_was_wanted(function, returns, message):
    with pytest.raises(ConfigError) as caught:
        played(Wrong(function=function, returns=returns))
    assert message in str(caught.value) and "\n" not in str(caught.value)


class Plain(Method):
    needs = frozenset({"server"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("semifll", "did you mean 'semifl'"),
        ("grouping", "type --method ssfl --method.averaging grouping"),
        ("nowhere:Method", "cannot be imported"),
        (f"{HERE}:HERE", "is not a dataclass"),
        (f"{HERE}:Plain", "is not a dataclass"),
        ("benchmark.optim.sgd:SGD", "add init, round, models, check, needs"),
    ],
)
def test_names_that_are_no_method(name, message):
    with pytest.raises(ConfigError, match=message):
        method_class(name)
