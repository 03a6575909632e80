"""The rules for a method: it must not report reserved names, change its input in place, or draw unseeded numbers."""

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.federated.engines import EngineOptions, build_engine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.stopping import Preempted
from benchmark.losses import supervised_loss
from benchmark.methods import calls
from benchmark.methods.protocol import SERVER, Local, LocalUpdate, Method, State, Stream
from benchmark.methods.shared import mean_of
from benchmark.records.collect import SETTINGS, load
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.methods.watch import watched

LABELLED = {"labelled": Stream.whole("labelled", 8)}
UNLABELLED = {"unlabelled": Stream.whole("unlabelled", 8)}


@dataclass(frozen=True, kw_only=True)
class Labels(LocalUpdate):
    """Local work at the server that minimises the cross-entropy."""

    def loss(self, step):
        return supervised_loss(step.student(step.batch["labelled"].views["weak"]), step.batch["labelled"].known_N), {}


@dataclass(frozen=True, kw_only=True)
class AtServer(Method):
    """A method that trains on the server's labels; subclasses add a fault."""

    needs = frozenset({"server"})

    def trained(self, state, world, update=Labels()):
        return world.fit_one(SERVER, update, {"student": state.server["student"]}, LABELLED)["student"]

    def round(self, state, world):
        return State(server={"student": self.trained(state, world)}), {}


# Names of metrics


@dataclass(frozen=True, kw_only=True)
class Reports(AtServer):
    """A method that reports one number, from `round` or from the loss."""

    name: str = "own"
    value: float = 0.999
    of_loss: bool = False

    def round(self, state, world):
        update = ReportingLoss(name=self.name, value=self.value) if self.of_loss else Labels()
        return State(server={"student": self.trained(state, world, update)}), (
            {} if self.of_loss else {self.name: self.value}
        )


@dataclass(frozen=True, kw_only=True)
class ReportingLoss(Labels):
    name: str
    value: float

    def loss(self, *arguments):
        return super().loss(*arguments)[0], {self.name: torch.tensor(self.value, dtype=torch.float64)}


SUITE_S = (
    "test/accuracy",
    "test/own",
    "validation/loss",
    "pseudo/kept",
    "diversity/members",
    "comm/bytes_up",
    "local_steps",
    "time/round_seconds",
    "round",
    "seed",
    "cell_key",
    "status",
    "profile",
    *SETTINGS,
    "rounds_to/0.5",
    "exchange/privacy",
    "",
    "a\rb",
)


@pytest.mark.parametrize("of_loss", [False, True])
@pytest.mark.parametrize("name", SUITE_S)
def test_a_metric_under_a_name_of_the_suite_is_refused_in_the_first_round(name, of_loss):
    experiment = tiny_experiment(method=Reports(name=name, of_loss=of_loss))
    with pytest.raises(ConfigError) as refused:
        watched(experiment)
    assert repr(name) in str(refused.value) and "\n" not in str(refused.value)


def test_every_column_of_the_table_of_runs_is_reserved(tmp_path):
    experiment = tiny_experiment(method=Reports())
    run(experiment, tmp_path)
    columns = {name for name in load(tmp_path).columns if not name.startswith(calls.RESERVED_STARTS)}
    assert columns - {"own"} == set(calls.COLUMNS)


@pytest.mark.parametrize("name", ["own", "client/loss", "testing", "K/mean", "my/round"])
def test_other_names_are_recorded(name):
    for of_loss in (False, True):
        module, _ = watched(tiny_experiment(method=Reports(name=name, of_loss=of_loss)))
        assert module.metrics[name] == pytest.approx(0.999)


@pytest.mark.parametrize("of_loss", [False, True])
@pytest.mark.parametrize("value", [1e305, -1e301])
def test_a_number_that_no_record_can_hold_is_refused(value, of_loss):
    with pytest.raises(ConfigError, match="'own'"):
        watched(tiny_experiment(method=Reports(value=value, of_loss=of_loss)))


def test_a_whole_number_of_hundreds_of_digits_is_refused(monkeypatch):
    monkeypatch.setattr(AtServer, "round", lambda self, state, world: (state, {"my/i": 10**400}))
    with pytest.raises(ConfigError, match="'my/i'"):
        watched(tiny_experiment(method=AtServer()))


def test_a_number_that_is_not_finite_counts_as_not_measured(tmp_path):
    assert run(tiny_experiment(method=ReportsNothing()), tmp_path)["status"] == "done"
    assert "own" not in load(tmp_path).columns


@dataclass(frozen=True, kw_only=True)
class ReportsNothing(AtServer):
    def round(self, state, world):
        return super().round(state, world)[0], {"own": float("nan")}


@pytest.mark.parametrize("client", [99, -3, 1.5, True])
def test_a_job_of_a_client_that_is_not_there_is_refused(monkeypatch, client):
    def round(self, state, world):
        world.fit_one(client, Labels(), {"student": state.server["student"]}, LABELLED)

    monkeypatch.setattr(AtServer, "round", round)
    with pytest.raises(ConfigError, match="0 to 3"):
        watched(tiny_experiment(method=AtServer()))


# Changes in place


def shrink(weights):
    for tensor in weights.values():
        tensor.mul_(0.5)


def shrink_data(weights):
    for tensor in weights.values():
        tensor.data.mul_(0.5)


def shrink_array(weights):
    for tensor in weights.values():
        tensor.numpy()[...] *= 0.5


def add_entry(weights):
    weights["more"] = torch.ones(1)


@dataclass(frozen=True, kw_only=True)
class InPlace(AtServer):
    """A method that changes its state at the beginning of a round, in one of several ways."""

    way: str = "shrink"

    def round(self, state, world):
        student = state.server["student"]
        globals()[self.way](student)
        student.pop("more", None)
        state.server["count"] = state.server.get("count", 0) + 1
        state.server.setdefault("list", []).append(state.server["count"])
        trained = self.trained(state, world)
        return State(server={**state.server, "student": trained}), {"own": float(len(state.server["list"]))}


@pytest.mark.parametrize("way", ["shrink", "shrink_data", "shrink_array", "add_entry"])
def test_a_round_that_is_abandoned_leaves_the_state_as_it_was(way, monkeypatch):
    """Expect the same numbers as without the interruption."""
    experiment = tiny_experiment(method=InPlace(way=way))
    whole, _ = watched(experiment, rounds=2)
    stopped, _ = watched(experiment)
    trained = AtServer.trained
    monkeypatch.setattr(AtServer, "trained", lambda *_: (_ for _ in ()).throw(Preempted("SIGTERM")))
    with pytest.raises(Preempted):
        stopped.training_step(2, 0)
    monkeypatch.setattr(AtServer, "trained", trained)
    stopped.training_step(2, 0)
    assert stopped.metrics == whole.metrics


def test_models_and_voters_that_change_the_state_are_refused(monkeypatch):
    def models(self, state):
        shrink(state.server["student"])
        return {"student": state.server["student"]}

    for function in ("models", "voters"):
        with monkeypatch.context() as patched, pytest.raises(ConfigError, match=f"^{function} of .* changes student"):
            patched.setattr(AtServer, function, models)
            watched(tiny_experiment(method=AtServer()))


@dataclass(frozen=True, kw_only=True)
class Keeps(LocalUpdate):
    """Local work that sends the received weights, and keeps a tensor that it also sends.

    With `received_too` it changes the received weights in place.
    """

    received_too: bool = False

    def start(self, received, private, reader):
        local = Local(trainable={"student": received["student"]})
        local.private = {"kept": torch.ones(3)}
        if self.received_too:
            shrink(received["student"])
        return local

    def loss(self, step):
        return step.student(step.batch["unlabelled"].views["weak"]).square().mean(), {}

    def finish(self, local):
        return {"student": local.trainable["student"], "kept": local.private["kept"]}


@dataclass(frozen=True, kw_only=True)
class Combines(AtServer):
    """A method that changes one of the trees of its jobs in place."""

    what: str = "nothing"

    def round(self, state, world):
        student = state.server["student"]
        update = Keeps(received_too=self.what == "local work")
        jobs = [world.job(client, update, {"student": student}, UNLABELLED) for client in world.cohort()]
        for outcome in world.fit(jobs):
            if self.what == "received":
                shrink(student)
            if self.what == "sent and kept":
                outcome.sends["kept"].add_(1)
            if self.what == "kept":
                outcome.private["more"] = 1
        if self.what == "client state":
            for tree in state.clients.values():
                tree["kept"].add_(1)
        average = mean_of(world.fit(jobs), student)
        shrink(average)  # the method made this tensor itself
        return State(server={"student": average}), {}


def test_a_method_may_change_what_it_made():
    watched(tiny_experiment(method=Combines()), rounds=2)


@pytest.mark.parametrize("what", ["local work", "received", "sent and kept", "kept", "client state"])
def test_a_change_in_place_of_what_others_see_is_refused(what):
    with pytest.raises(ConfigError, match="in place"):
        watched(tiny_experiment(method=Combines(what=what)), rounds=2)


# Global generators


@dataclass(frozen=True, kw_only=True)
class Drawn(LocalUpdate):
    """Local work with a loss and a result that contain numbers of all global generators."""

    def start(self, received, private, reader):
        local = Local(trainable={"student": received["student"]})
        local.notes = {"drawn": torch.tensor(drawn())}
        return local

    def loss(self, step):
        return step.student(step.batch["unlabelled"].views["weak"]).square().mean() * (1 + drawn()), {}

    def finish(self, local):
        return {"student": local.trainable["student"], **local.notes}


def drawn() -> float:
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


@dataclass(frozen=True, kw_only=True)
class Draws(AtServer):
    def init(self, setup):
        return State(server={"student": setup.initial_weights(), "drawn": drawn()})

    def round(self, state, world):
        student = state.server["student"]
        values = [state.server["drawn"], drawn()]
        jobs = [world.job(client, Drawn(), {"student": student}, UNLABELLED) for client in world.cohort()]
        outcomes = []
        for outcome in world.fit(jobs):
            values += [drawn(), float(outcome.sends["drawn"])]
            outcomes.append(outcome)
        average = mean_of(outcomes, student)
        return State(server={"student": average, "drawn": drawn()}), {"own": sum(values)}

    def models(self, state):
        drawn()
        return {"student": {name: value * (1 + drawn()) for name, value in state.server["student"].items()}}


def played(experiment, engine: Any = None) -> list[dict[str, float]]:
    """Return the metrics of two rounds."""
    environment = prepare(experiment)
    chosen = build_engine(engine or EngineOptions(), environment)
    module = FederatedModule(environment, chosen)
    lines = []
    try:
        for round_number in (1, 2):
            module.training_step(round_number, 0)
            lines.append(dict(module.metrics))
            drawn(), module.models()  # draws and evaluations between rounds must not matter
    finally:
        chosen.close()
    return lines


def test_draws_from_global_generators_are_the_same_for_the_same_seed():
    experiment = tiny_experiment(method=Draws())
    first, again = played(experiment), played(experiment)
    assert first == again
    assert first[0]["own"] != first[1]["own"]
    other = played(replace(experiment, seed=1))
    assert other[0]["own"] != first[0]["own"]


def test_draws_are_the_same_in_a_run_that_resumes():
    experiment = tiny_experiment(method=Draws())
    module, _ = watched(experiment)
    resumed = FederatedModule(module.environment, module.engine, module.state, 1)
    module.training_step(2, 0)
    resumed.training_step(2, 0)
    assert resumed.metrics == module.metrics


def test_draws_do_not_depend_on_the_number_of_workers():
    experiment = tiny_experiment(method=Draws())
    alone, shared = (played(experiment, EngineOptions(engine="pool", workers=workers)) for workers in (1, 2))
    assert alone == shared
