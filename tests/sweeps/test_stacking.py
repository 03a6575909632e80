"""Which kinds of job train together on a GPU: said before a run, without a GPU or a data set."""

import json
import sys

import pytest

from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.methods.ssfl import ConsistencyUpdate
from sweeps.stacking import kinds_of, one_at_a_time
from tests.methods.golden import TRACES

USERS_FILE = """from dataclasses import dataclass

from benchmark.losses import consistency_loss, pseudo_labels
from benchmark.methods.protocol import LocalUpdate, Method, State, Stream
from benchmark.methods.shared import fit_each, mean_of


@dataclass(frozen=True, kw_only=True)
class Own(LocalUpdate):
    reads: bool

    def loss(self, step):
        logits_ND = step.student(step.batch["unlabelled"].views["weak"])
        labels_N, _, kept_N = pseudo_labels(logits_ND, 0.5)
        loss = consistency_loss(logits_ND, labels_N, kept_N)
        if self.reads and kept_N.sum() == 0:
            loss = logits_ND.sum()
        return loss, {}


@dataclass(frozen=True, kw_only=True)
class Pure(Method):
    needs = frozenset({"server"})
    reads: bool = False

    def round(self, state, world):
        student, data = state.server["student"], {"unlabelled": Stream.whole("unlabelled", 8)}
        outcomes = fit_each(world, world.cohort(), Own(reads=self.reads), {"student": student}, data)
        return State(server={"student": mean_of(outcomes, otherwise=student)}), {}


@dataclass(frozen=True, kw_only=True)
class Reading(Pure):
    reads: bool = True
"""
LINE = USERS_FILE.splitlines().index("        if self.reads and kept_N.sum() == 0:") + 1


@pytest.fixture
def users_file(tmp_path, monkeypatch):
    (tmp_path / "a_users_method.py").write_text(USERS_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "a_users_method"
    sys.modules.pop("a_users_method", None)


@pytest.mark.parametrize("name", ["crl-fedavg", "semifl-static-batch-norm", "rscfed", "fedmatch", "heterofl", "cbafed"])
def test_all_kinds_of_a_run_are_examined(name):
    """Each kind that the engine itself trains together in the first rounds is among them, and none is refused."""
    environment = prepare(TRACES[name])
    engine = StackedEngine(environment)
    module = FederatedModule(environment, engine)
    for number in (1, 2):
        module.training_step(number, 0)
    reasons = kinds_of(TRACES[name])
    assert engine.runner.counts.together.keys() <= reasons.keys() and not any(reasons.values())


def test_a_kind_that_cannot_train_together_is_named_with_its_reason(monkeypatch):
    loss = ConsistencyUpdate.loss

    def reading(self, step):
        total, aux = loss(self, step)
        return total * float(total.detach()), aux

    monkeypatch.setattr(ConsistencyUpdate, "loss", reading)
    assert one_at_a_time([TRACES["crl-fedavg"], TRACES["crl-grouping"]]).keys() == {"ConsistencyUpdate"}


def test_doctor_names_the_line_of_a_user_s_method(users_file, fssl, tmp_path):
    code, out, _ = fssl("doctor", "--results", tmp_path, "--method", f"{users_file}:Pure")
    assert code == 0 and out.splitlines()[-1].startswith("ok  stacking: ")
    code, out, _ = fssl("doctor", "--results", tmp_path, "--method", f"{users_file}:Reading")
    last = out.splitlines()[-1]
    assert code == 1 and last.startswith("!!  stacking: ") and f"{users_file}.py:{LINE}" in last


def test_plan_says_so_only_if_it_is_asked(fssl, tmp_path):
    command = ("plan", "ssfl/tab2", "--profile", "demo", "--json", "--results", tmp_path)
    code, out, _ = fssl(*command)
    assert code == 0 and "one_at_a_time" not in json.loads(out)
    code, out, _ = fssl(*command, "--stacked")
    assert code == 0 and json.loads(out)["one_at_a_time"] == {}
