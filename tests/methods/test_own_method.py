"""A method of a user's own: the one in `benchmark/methods/README.md` runs; what returns the wrong thing is told so."""

import re
import sys
from dataclasses import dataclass, replace

import pytest

from benchmark.errors import ConfigError
from benchmark.methods.catalogue import method_class, read_method
from benchmark.methods.protocol import Method
from tests.conftest import ROOT, tiny_experiment
from tests.federated.helpers import module_of
from tests.methods.toys import ToConstant, Toy

README = (ROOT / "benchmark" / "methods" / "README.md").read_text()


def played(method):
    module = module_of(tiny_experiment(method=method))
    module.training_step(1, 0)
    return module


def test_the_method_in_the_readme_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "my_method.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_method", raising=False)
    module = played(read_method({"kind": "my_method:SelfTaught", "threshold": 0.1, "batch_size": 8}, "method"))
    assert module.metrics["local_steps"] == 2 * (4 + 1) and module.metrics["pseudo/kept"] > 0.5
    assert list(module.models()) == ["student"]


@dataclass(frozen=True, kw_only=True)
class StateAlone(Toy):
    def round(self, state, world):
        return state


@dataclass(frozen=True, kw_only=True)
class NoMetrics(Toy):
    def round(self, state, world):
        return state, None


@dataclass(frozen=True, kw_only=True)
class NoState(Toy):
    def init(self, setup):
        return {"student": setup.initial_weights()}


HERE, RETURN = __name__, "return a State and the numbers to record, such as `state, {}`"


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (StateAlone(), f"round 1: returned State; {RETURN}"),
        (
            NoMetrics(),
            "round 1: returned State and NoneType; return a State and the numbers to record, such as `state, {}`",
        ),
        (NoState(), "init returned dict; return State(server={...})"),
    ],
)
def test_a_broken_method_is_told_in_one_line(method, message):
    with pytest.raises(ConfigError) as caught:
        played(method)
    separator = ": " if "init" in message else ", "
    assert str(caught.value) == f"method '{HERE}:{type(method).__name__}'{separator}{message}"


class Plain(Method):
    needs = frozenset({"server"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("semifll", "did you mean 'semifl'"),
        ("nowhere:Method", "cannot be imported"),
        (f"{HERE}:HERE", "is no dataclass"),
        (f"{HERE}:Plain", "is no dataclass"),
        ("benchmark.optim.sgd:SGD", "it lacks init, round, models, check, needs"),
    ],
)
def test_names_that_are_no_method(name, message):
    with pytest.raises(ConfigError, match=message):
        method_class(name)


def test_a_new_method_needs_no_flag():
    """`Method` and `LocalUpdate` answer everything that engines and plans ask."""
    assert not Toy.takes_missing_updates and not Method.takes_missing_updates
    update = ToConstant()
    assert (update.phases, update.sends_changes) == (("loss",), False)
    with pytest.raises(ConfigError, match="on_divergence: 'drop'"):
        e = tiny_experiment(method=Toy())
        module_of(replace(e, federation=replace(e.federation, on_divergence="drop")))
