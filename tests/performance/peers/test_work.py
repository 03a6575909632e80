"""The common work by hand, and against the reference engine; the clock of a driver."""

import math
import os
import subprocess
import sys

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.module import FederatedModule
from tests.performance.peers.laps import DROPPED, Laps, arguments, descendants, differences, spread, tree_cpu_seconds
from tests.performance.peers.ours import environment_of
from tests.performance.peers.work import (
    NUM_CLASSES,
    SERVER,
    Setup,
    Work,
    batches_of,
    loss_of,
    network_of,
    relative_difference,
    serial_round,
    sgd,
    weights_of,
)

SMALL = Work(clients=2, steps=3, batch=4)


def test_the_serial_loop_is_a_round_of_the_reference_engine() -> None:
    """The engine draws batches and views, trains and averages by its own code.

    Both work in channels last on the same numbers; sums in another order round at 1e-7, measured 2e-7.
    """
    environment = environment_of(SMALL, rounds=1)
    module = FederatedModule(environment, ReferenceEngine(environment))
    start = weights_of(network_of(SMALL))
    for round_number in (1, 2):
        module.training_step(round_number, 0)
        theirs = dict(next(iter(module.models().values())))
        mine = serial_round(SMALL, start, round_number, channels_last=True)
        assert relative_difference(mine, theirs, start) < 1e-5
        start = theirs


def test_the_check_sees_a_missing_holder_and_another_round() -> None:
    """The tolerance of the comparison is 1e-4: whoever leaves out a client is a thousand times beyond it."""
    start = weights_of(network_of(SMALL))
    right = serial_round(SMALL, start, 1)
    for wrong in (serial_round(Work(clients=1, steps=3, batch=4), start, 1), serial_round(SMALL, start, 2)):
        assert relative_difference(wrong, right, start) > 0.1


@pytest.mark.parametrize("holder", [SERVER, 0])
def test_equal_logits_cost_the_logarithm_of_the_classes(holder: int) -> None:
    """Zero weights give every class 1/47, whose cross-entropy is log 47; a client keeps all its images at tau = 0."""
    network = network_of(SMALL)
    for parameter in network.parameters():
        torch.nn.init.zeros_(parameter)
    batches = list(batches_of(SMALL, holder, 1))
    assert [len(batch["weak"]) for batch in batches] == [4, 4, 4]
    assert loss_of(network, batches[0]).item() == pytest.approx(math.log(NUM_CLASSES), rel=1e-6)


class Watched(torch.nn.Linear):
    """Notes of each pass whether it takes a gradient."""

    passes: list[bool]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.passes.append(torch.is_grad_enabled())
        return super().forward(input)


def test_the_strong_view_learns_the_weak_views_label() -> None:
    """Logits (0, x): the weak view 3 is of class 1; the strong view 1 costs -log(e / (1 + e)) = log(1 + 1/e)."""
    network = Watched(1, 2, bias=False)
    network.passes = []
    network.load_state_dict({"weight": torch.tensor([[0.0], [1.0]])})
    loss = loss_of(network, {"weak": torch.tensor([[3.0]]), "strong": torch.tensor([[1.0]])})
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)
    assert network.passes == [False, True]


def test_one_step_of_the_optimizer_by_hand() -> None:
    """Nesterov's first step: g = 2 + 5e-4 x 1, the buffer is g, the step lr (g + 0.9 g) = .03 x 1.9 x 2.0005."""
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    (2 * weight).sum().backward()
    sgd([weight]).step()
    assert weight.item() == pytest.approx(1 - 0.03 * 1.9 * 2.0005, rel=1e-6)


def test_the_relative_difference_by_hand() -> None:
    """Weights moved by at most 4 and differ by at most 1: a quarter. Other names are no comparison."""
    start = {"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0])}
    expected = {"a": torch.tensor([4.0, 2.0]), "b": torch.tensor([1.0])}
    found = {"a": torch.tensor([4.0, 3.0]), "b": torch.tensor([1.5])}
    assert relative_difference(found, expected, start) == pytest.approx(0.25)
    assert relative_difference(expected, expected, start) == 0
    with pytest.raises(KeyError, match="b"):
        relative_difference({"a": found["a"]}, expected, start)


@pytest.mark.parametrize("settings", [{"clients": 0}, {"steps": 0}, {"batch": -1}])
def test_a_work_of_nothing_is_refused(settings: dict[str, int]) -> None:
    (name,) = settings
    with pytest.raises(ConfigError, match=f"{name}: {settings[name]}; 1 or more"):
        Work(**settings)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ConfigError, match="threads: 0"):
        Setup(threads=0)


def test_descendants_follow_the_parents() -> None:
    """1 -> 2 -> 4 and 1 -> 3; 5 and 6 belong to another tree."""
    parents = {2: 1, 3: 1, 4: 2, 6: 5, 5: 0}
    assert descendants(1, parents) == {1, 2, 3, 4}
    assert descendants(5, parents) == {5, 6}
    assert descendants(9, parents) == {9}


def test_the_tree_counts_a_child_that_ended() -> None:
    """A child that computes for half a CPU second and is waited for adds as much, to a tick or two and its start."""
    code = "import time\nwhile time.process_time() < 0.5: pass"
    before = tree_cpu_seconds(os.getpid())
    subprocess.run([sys.executable, "-c", code], check=True)
    assert 0.45 < tree_cpu_seconds(os.getpid()) - before < 3


@pytest.mark.parametrize("words, said", [(["--rounds", "2"], "rounds: 2; more"), (["--batch", "0"], "batch: 0; 1")])
def test_a_driver_refuses_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        arguments("a driver", words)
    assert ended.value.code == ConfigError.exit_code
    complaint = capsys.readouterr().err
    assert complaint.startswith(said) and complaint.count("\n") == 1


def test_laps_leave_out_the_first_rounds() -> None:
    laps = Laps()
    for _ in range(DROPPED + 4):  # the first call begins round 1
        laps.lap()
    figures = laps.figures()
    assert len(figures["wall_seconds"]) == len(figures["cpu_seconds"]) == 3
    assert all(seconds >= 0 for seconds in figures["wall_seconds"])


def test_differences_and_their_spread() -> None:
    """Ends at 1, 3, 6, 7: rounds of 2, 3 and 1; median 2."""
    assert differences([1, 3, 6, 7]) == [2, 3, 1]
    assert spread([2, 3, 1]) == {"median": 2, "min": 1, "max": 3}
