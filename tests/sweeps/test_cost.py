"""Costs: counted by hand, and held to the records of real runs. Many rounds: test_rounds.py; time: test_speed.py."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmark.data.partition import Dirichlet
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, Federation
from benchmark.methods.averaging import Grouping
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.objectives import ConsistencyUpdate, SelfTraining, ServerUpdate, Supervised
from benchmark.methods.protocol import Job, Key, Limit, Local, State, Stream, Tree
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from benchmark.models.build import forward_flops
from benchmark.papers.catalogue import items
from benchmark.records.run import run
from sweeps.cost import AT_MOST, CHANGES, REPORTED, Cost, cost_of, counted, local_steps
from sweeps.dry_run import images_in
from sweeps.holders import environment_of
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of
from tests.methods.golden import TRACES

BASE = tiny_experiment()
EVERYWHERE = replace(BASE.data, label_setting="everywhere")
BYTES = 4 * 38_378  # the tiny network's weights


def forward_of(experiment: Experiment) -> int:
    environment, _ = environment_of(experiment)
    return forward_flops(environment.network(), environment.data.image_shape)


def test_the_cost_of_crl_by_hand(tiny):
    """K = C = 4, T = 2, 3 rounds, batches of 8: the server 3 x 2 steps, clients 3 x 2 x 4 = 24 steps.

    Trained: 6 x 8 + 24 x 8 = 240 images, 3 forward costs each; pseudo-labelled: 192 images, 1 each: 912 forward passes.
    Views: one for each labelled image, two for each other: 48 + 384. Bytes each way: 3 rounds x 4 clients.
    """
    cost, work = cost_of(tiny), counted(tiny).work
    assert (cost.local_steps, cost.flops) == (30, 912 * forward_of(tiny))
    assert cost.bytes_up == cost.bytes_down == 12 * BYTES
    assert (work.total("images_trained"), work.total("images_forward")) == (240, 192)
    assert work.total("images_augmented") == 48 + 384 and cost.notes == ()


@pytest.mark.parametrize(
    ("changes", "forward_costs"),
    [
        # Each of 192 unlabelled images once without and once with gradient; 48 labelled ones with.
        ({"objective": SelfTraining(threshold=0.14)}, 192 * (1 + 3) + 48 * 3),
        # The warm start takes one round of four clients away.
        ({"warm_start_rounds": 1}, 128 * (1 + 3) + 48 * 3),
        # Two servers, one for each group.
        ({"averaging": Grouping(S=2), "server_models": "released_code"}, 192 * (1 + 3) + 96 * 3),
    ],
)
def test_the_flops_of_ssfl_by_hand(changes, forward_costs):
    experiment = replace(BASE, method=replace(BASE.method, **changes))
    assert cost_of(experiment).flops == forward_costs * forward_of(experiment)


def test_the_flops_of_fixmatch_by_hand():
    """6 steps of 8 labelled images, and of 16 others: those pass twice, once without gradient."""
    experiment = replace(BASE, method=FixMatch(batch_size=8, unlabelled_ratio=2))
    assert cost_of(experiment).flops == 6 * (8 * 3 + 16 * (1 + 3)) * forward_of(experiment)


REAL = {
    "crl": BASE,
    "groups": replace(BASE, method=replace(BASE.method, warm_start_rounds=1, averaging=Grouping(S=2))),
    "replicas": replace(
        BASE,
        method=replace(BASE.method, averaging=Grouping(S=2), server_models="released_code", momentum="released_code"),
    ),
    "oracle": replace(BASE, data=EVERYWHERE, method=replace(BASE.method, objective=Supervised())),
    "batch norm": replace(BASE, model=replace(BASE.model, norm="bn")),
    "server only": replace(BASE, method=ServerOnly(batch_size=8)),
    "fixmatch": replace(BASE, method=FixMatch(batch_size=8, unlabelled_ratio=2)),
    # tau = 0: every pseudo-label counts as confident, as the dry run takes them.
    "semifl": replace(BASE, method=SemiFL(threshold=0.0, warm_start_rounds=1)),
    "semifl, epochs, some of unequal clients": replace(
        BASE,
        method=SemiFL(threshold=0.0, mix_source="released_code", momentum="released_code"),
        partition=Dirichlet(alpha=0.5),
        federation=Federation(K=5, C=2, rounds=3, epochs=2),
    ),
    "semifl, static norm": replace(
        BASE, method=SemiFL(threshold=0.0, order="released_code"), model=replace(BASE.model, norm="sbn")
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_counted_costs_are_those_of_the_record(name, tmp_path):
    """Local steps and bytes both ways, as a dry run counts them and as the run's ledger did."""
    real, cost = run(REAL[name], tmp_path)["cost"], cost_of(REAL[name])
    assert real == {"local_steps": cost.local_steps, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    assert cost.local_steps > 0


@pytest.mark.parametrize("name", TRACES)
def test_every_method_costs_no_more_than_counted(name):
    """The methods' golden settings: exactly as counted, or at most so much where the plan says that it is the most.

    FedSwitch sends its teacher down or not by what clients report: steps are exact, and two divergences of 8 bytes go
    up from each client, less where a client has nothing to measure.
    """
    experiment = TRACES[name]
    module, cost = module_of(experiment), cost_of(experiment)
    real = dict.fromkeys(("local_steps", "comm/bytes_up", "comm/bytes_down"), 0.0)
    for round_number in module.remaining_rounds():
        module.training_step(round_number, 0)
        real = {key: value + module.metrics[key] for key, value in real.items()}
    most = {"local_steps": cost.local_steps, "comm/bytes_up": cost.bytes_up, "comm/bytes_down": cost.bytes_down}
    if REPORTED in cost.notes:
        assert real["local_steps"] == cost.local_steps
        assert cost.bytes_up * 0.999 < real["comm/bytes_up"] <= cost.bytes_up
    elif AT_MOST in cost.notes or CHANGES in cost.notes:
        assert all(value <= most[key] for key, value in real.items())
    else:
        assert real == most


def test_pseudo_labels_that_decide_are_said_to_be_the_most(tmp_path):
    """At tau = 1 no pseudo-label is sure and no client trains; the plan counts all clients, and says so."""
    experiment = replace(BASE, method=SemiFL(threshold=1.0))
    cost = cost_of(experiment)
    assert AT_MOST in cost.notes and run(experiment, tmp_path)["cost"]["local_steps"] < cost.local_steps


@dataclass(frozen=True, kw_only=True)
class Narrow:
    """A user's method: a network half as wide, and a number beside the weights, which no list of methods knows.

    `looks`: whether the method reads shapes of its weights, which stand-ins of one number do not have.
    """

    looks: bool = False
    needs = frozenset({"server"})

    def check(self, setup: Any) -> None:
        """Anything will do."""

    def init(self, setup: Any) -> State:
        return State(server={"student": setup.initial_weights()})

    def models(self, state: State) -> dict[str, Any]:
        return {"student": state.server["student"]}

    def round(self, state: State, world: Any) -> tuple[State, Mapping[str, float]]:
        weights = state.server["student"]
        if self.looks and weights["fc2.weight"].shape[0] != 10:
            raise IndexError("ten classes")
        stream = Stream(part="unlabelled", batch_size=8, views=("strong",))
        half = replace(world.model, width=0.5)
        narrow = {name: value[tuple(slice(0, n) for n in NARROW[name])] for name, value in weights.items()}
        for client in world.cohort():
            job = Job(
                key=Key(client=client),
                update=NarrowUpdate(),
                receives={"student": narrow, "number": 1.0},
                data={"unlabelled": stream},
                limit=world.limit,
                network=half,
            )
            list(world.fit([job]))
        return state, {}


@dataclass(frozen=True, kw_only=True)
class NarrowUpdate(ConsistencyUpdate):
    passes = {}

    def finish(self, local: Local) -> Tree:
        return {**super().finish(local), "loss": local.totals["client/loss"]}


def _narrow_shapes() -> dict[str, torch.Size]:
    environment, _ = environment_of(BASE)
    return {name: v.shape for name, v in environment.network(replace(BASE.model, width=0.5)).state_dict().items()}


NARROW = _narrow_shapes()


@pytest.mark.parametrize("looks", [False, True])
def test_a_method_of_a_user_s_own_is_counted(looks):
    """12 jobs of two steps; bytes of the narrow network and 8 for the number; its own FLOPs, 3 a strong view."""
    experiment = replace(BASE, method=Narrow(looks=looks))
    cost, (environment, _) = cost_of(experiment), environment_of(experiment)
    network = environment.network(replace(BASE.model, width=0.5))
    size = sum(value.numel() * 4 for value in network.state_dict().values())
    assert cost.local_steps == 24
    assert cost.bytes_down == cost.bytes_up == 12 * (size + 8)
    assert cost.flops == 24 * 8 * 3 * forward_flops(network, environment.data.image_shape)


def test_a_stream_without_images_fails_as_in_the_run():
    """A client that holds no labels cannot be asked to train on them."""

    class Wrong(Narrow):
        def round(self, state: State, world: Any) -> tuple[State, Mapping[str, float]]:
            stream = Stream(part="labelled", batch_size=8, views=("weak",))
            job = Job(
                key=Key(client=0), update=ServerUpdate(), receives=state.server, data={"labelled": stream},
                limit=Limit(steps=1),
            )  # fmt: skip
            list(world.fit([job]))
            return state, {}

    with pytest.raises(ConfigError, match="holder 0 has no images"):
        cost_of(replace(BASE, method=Wrong()))


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10, 99])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7])
def test_images_in_batches_are_those_drawn(batch_size, drop_last, steps):
    """Against the positions that training would draw from ten images."""
    from benchmark.federated.batches import passes

    stream = Stream(part="labelled", batch_size=batch_size, views=("weak",), drop_last=drop_last)
    drawn = passes(10, batch_size, steps, drop_last, np.random.default_rng(0))
    assert images_in(steps, stream, 10) == sum(map(len, drawn))


def test_costs_add_up():
    total = Cost(local_steps=1, flops=2.0, core_seconds=3600.0, notes=("a",)) + Cost(bytes_up=5, notes=("b", "a"))
    plain = total.to_json()
    assert (plain["local_steps"], plain["flops"], plain["bytes_up"], plain["notes"]) == (1, 2.0, 5, ["a", "b"])
    assert plain["hours"] == pytest.approx(1 / plain["cores"])


def test_the_paper_s_table_2_is_counted():
    """6 runs of 100 x 1024 steps for C clients and one server: 102400 x (2 x (10 + 30 + 47) + 6) = 18,432,000."""
    (item,) = items(["ssfl/tab2"], "paper")
    six = [cell.experiment for cell in item.cells if cell.role == "published"]
    assert sum(local_steps(run) for run in six) == 102_400 * (2 * 87 + 6) == 18_432_000
    json.dumps(cost_of(six[0]).to_json())
