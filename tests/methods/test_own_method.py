"""A method of a user's own: the one in `benchmark/methods/README.md` runs, and a broken one ends in one clear line."""

import re
import sys
from dataclasses import dataclass, replace

import pytest

from benchmark.errors import ConfigError
from benchmark.methods.averaging import mean
from benchmark.methods.catalogue import method_class, read_method
from benchmark.methods.protocol import Method, State
from tests.conftest import ROOT, tiny_experiment
from tests.federated.helpers import module_of
from tests.methods.toys import ToConstant, Toy, work

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
class SendsTeacher(ToConstant):
    def finish(self, local):
        return {"teacher": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class SendsNothing(ToConstant):
    def finish(self, local):
        return {}


@dataclass(frozen=True, kw_only=True)
class Averages(Toy):
    update: str = "SendsTeacher"

    def round(self, state, world):
        update = {"SendsTeacher": SendsTeacher, "SendsNothing": SendsNothing}[self.update]()
        outcomes = world.fit([work(world, update, 2, student=state.server["student"])])
        return State(server={"student": mean([outcome.sends["student"] for outcome in outcomes])}), {}


@dataclass(frozen=True, kw_only=True)
class Forgets(Toy):
    def round(self, state, world):
        return State(server={"teacher": state.server["student"]}), {}


@dataclass(frozen=True, kw_only=True)
class ReadsTeacher(Toy):
    def round(self, state, world):
        return state.server["teacher"]


@dataclass(frozen=True, kw_only=True)
class NoState(Toy):
    def init(self, setup):
        return {"student": setup.initial_weights()}


HERE = __name__


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (StateAlone(), "round 1: returned State; return a State and the numbers to record, such as `state, {}`"),
        (NoMetrics(), "round 1: returned NoneType beside the State; return a dict of numbers, such as {}"),
        (Averages(), "round 1: 'student' is not in what client 2 sent (teacher)"),
        (Averages(update="SendsNothing"), "round 1: 'student' is not in what client 2 sent (nothing)"),
        (ReadsTeacher(), "round 1: 'teacher' is not in the state (student)"),
        (Forgets(), "models: 'student' is not in the state (teacher)"),
        (NoState(), "init returned dict; return State(server={...})"),
    ],
)
def test_a_broken_method_is_told_in_one_line(method, message):
    with pytest.raises(ConfigError) as caught:
        played(method)
    separator = ": " if "init" in message or "models" in message else ", "
    assert str(caught.value) == f"method '{HERE}:{type(method).__name__}'{separator}{message}"


def test_an_error_of_the_method_s_own_stays_a_traceback():
    @dataclass(frozen=True, kw_only=True)
    class Looks(Toy):
        def round(self, state, world):
            return dict[int, int]()[3]

    with pytest.raises(KeyError, match="3"):
        played(Looks())


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
