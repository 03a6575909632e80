"""Divergence: found within the round, named, never averaged; and rounds in which clients send nothing."""

import functools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from benchmark.errors import Diverged
from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.jobs import JobRunner
from benchmark.federated.module import FederatedModule
from benchmark.federated.trees import copied, first_not_finite
from benchmark.methods.protocol import SERVER, Job, Outcome, State, Tree, World
from benchmark.methods.ssfl import SSFL
from benchmark.records import state
from benchmark.records.run import run
from tests.conftest import tiny_experiment
from tests.federated.helpers import agree
from tests.methods.golden import TRACES

prepared = functools.cache(prepare)  # nothing changes an environment
SPOILED = ("student", "psi")  # what clients send of what they trained; the latter by FedMatch


def spoiled(sends: Tree) -> Tree:
    """Return the weights with a NaN as the last entry."""
    trained = next((name for name in SPOILED if name in sends), None)
    if trained is None:
        return sends
    name, last = list(sends[trained].items())[-1]
    last = last.clone()
    last.view(-1)[-1] = torch.nan
    return {**sends, trained: {**sends[trained], name: last}}


class SpoilingRunner(JobRunner):
    """These holders' jobs of one round send a NaN, or have an infinite loss from a local step on."""

    holders: Sequence[int] = ()
    round_number = 0
    loss_from_step: int | None = None  # 1: from the first

    def _run(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, list[Tensor]]:
        outcome, losses = super()._run(job, round_number, private)
        if round_number != self.round_number or job.key.client not in self.holders:
            return outcome, losses
        if self.loss_from_step is None:
            return replace(outcome, sends=spoiled(outcome.sends)), losses
        good = (self.loss_from_step - 1) * len(job.update.phases)
        return outcome, [*losses[:good], *(loss * torch.inf for loss in losses[good:])]


class Spoiling(ReferenceEngine):
    """The reference engine with that runner."""

    def __init__(self, environment: Environment, holders: Sequence[int], round_number: int) -> None:
        super().__init__(environment)
        self._work = self.runner = SpoilingRunner(environment)
        self.runner.holders, self.runner.round_number = holders, round_number


class LeavingOut(Spoiling):
    """The reference engine, in which these holders sit that round out."""

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        for job in jobs:
            if round_number == self.runner.round_number and job.key.client in self.runner.holders:
                yield Outcome(key=job.key, sends={})
            else:
                yield from ReferenceEngine.fit(self, [job], round_number, kept)


def module_with(engine_class: type[Spoiling], experiment: Experiment, holders=(1,), round_number=2) -> FederatedModule:
    environment = prepared(experiment)
    return FederatedModule(environment, engine_class(environment, holders, round_number))


def rounds(module: FederatedModule, *numbers: int) -> FederatedModule:
    for number in numbers:
        module.training_step(number, 0)
    return module


@pytest.mark.parametrize("name", ["crl-grouping", "fedmatch", "rscfed", "fedswitch"])
def test_a_spoiled_update_stops_the_round_and_leaves_the_state_of_the_last(name):
    """Client 1 sends a NaN in round 2: the state is, bit by bit, that of round 1."""
    module = rounds(module_with(Spoiling, TRACES[name]), 1)
    before = State(server=copied(module.state.server), clients=copied(module.state.clients))
    with pytest.raises(
        Diverged, match=r"round 2, client 1: (student|psi)\.\S+, which it sends, is not finite; choose a smaller"
    ):
        module.training_step(2, 0)
    assert module.rounds_done == 1 and agree(vars(module.state), vars(before))


@pytest.mark.parametrize(
    "name",
    [
        "crl-grouping",
        "crl-released",
        "semifl",
        "flfl",
        "cbafed",
        "fedprox-fixmatch",
        "supervised-fl-every-client",
        "fedmatch",
        "data-sharing",
        "easgd",
        "overlap-sgd",
        "sage-shared-momentum",
        "flexmatch-lpl",
        "feddb",
        "proxyfl",
        "feddure",
        "twin-sight",
    ],
)
def test_clients_that_send_nothing_are_left_out(name):
    """All four are in each round. One of them, and all: they are counted, and nothing that is averaged is theirs."""
    for holders in ((1,), (0, 1, 2, 3)):
        module = rounds(module_with(LeavingOut, TRACES[name], holders), 1, 2)
        assert module.metrics["comm/sat_out"] >= 1 and first_not_finite(module.state.server) is None


def test_the_server_s_own_divergence_stops():
    with pytest.raises(Diverged, match="round 1, the server: student"):
        module_with(Spoiling, tiny_experiment(), holders=(SERVER,), round_number=1).training_step(1, 0)


@pytest.mark.parametrize("step", [1, 2])
def test_an_infinite_loss_names_the_local_step(step):
    module = module_with(Spoiling, tiny_experiment(), holders=(3,), round_number=1)
    module.engine.runner.loss_from_step = step  # type: ignore[union-attr]
    with pytest.raises(Diverged, match=rf"round 1, client 3: the loss of local step {step} is inf, which is not fin"):
        module.training_step(1, 0)


@dataclass(frozen=True, kw_only=True)
class Overflows(SSFL):
    """Its aggregate of group 0 is infinite, although nothing that it was made of is."""

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        state, metrics = super().round(state, world)
        group = {name: value * 1e30 * 1e30 for name, value in state.server["groups"]["0"].items()}
        return State(server={**state.server, "groups": {"0": group}}), metrics


def test_an_infinite_aggregate_that_is_not_evaluated_stops_the_round():
    tiny = tiny_experiment()
    module = module_with(Spoiling, replace(tiny, method=Overflows(batch_size=8, server_batch_size=8)), holders=())
    before = module.state
    with pytest.raises(Diverged, match=r"round 1, after averaging: groups\.0\.\S+ is not finite"):
        module.training_step(1, 0)
    assert module.state is before and module.rounds_done == 0


def test_on_disk_the_last_finite_round_is_kept_and_nothing_is_retried(tmp_path, monkeypatch):
    """Round 2 diverges: status, one line, a save of round 1, all of it finite; asked again, nothing runs."""
    tiny = tiny_experiment()
    monkeypatch.setattr(
        "benchmark.records.run.build_engine", lambda options, environment, *_: Spoiling(environment, (1,), 2)
    )
    save = Mock(wraps=state.save)
    monkeypatch.setattr(state, "save", save)
    with pytest.raises(Diverged, match="round 2, client 1"):
        run(tiny, tmp_path)
    (folder,) = tmp_path.glob("runs/*/seed=0")
    assert (folder / "rounds.jsonl").read_text().count("\n") == 1
    (saved,) = [call.args[1] for call in save.call_args_list]
    assert saved.round == 1 and first_not_finite(saved.state.server) is None
    monkeypatch.setattr("benchmark.records.run.prepare", None)  # nothing may be prepared, let alone trained
    found = run(tiny, tmp_path)
    assert found["status"] == "diverged" and "round 2, client 1: student." in found["error"]


BIG = torch.finfo(torch.float32).max


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    where=st.integers(0, 3),
    poison=st.sampled_from([float("nan"), float("inf"), -float("inf"), None]),
)
def test_the_first_entry_that_is_not_finite_is_named_and_no_other(sizes, where, poison):
    """Entries at the end of the float32 range, whose sum overflows, are finite; so are counters and None."""
    tree = {f"set{i}": {"weight": torch.full((size,), BIG), "count": torch.tensor(3)} for i, size in enumerate(sizes)}
    tree["last"] = {"velocity": None, "kl": 0.5, "rounds": 7}  # type: ignore[dict-item]
    if poison is None:
        assert first_not_finite(tree) is None
        return
    at = where % len(sizes)
    tree[f"set{at}"]["weight"][-1] = poison
    assert first_not_finite(tree) == f"set{at}.weight"
    assert first_not_finite({"kl_teacher": poison, "student": {"w": torch.ones(2)}}) == "kl_teacher"
