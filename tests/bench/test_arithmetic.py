"""What the benchmark computes from what it times: each value derived by hand."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from benchmark.bench.measuring import StepFit, Times, cpu_seconds, figures, fit_steps, interleave, ratio, spread
from benchmark.bench.memory import SIZES, descendants, parents, tree_bytes
from benchmark.bench.peaks import convolution_flops, matrix_flops
from benchmark.bench.tables import Table
from benchmark.bench.works import (
    WORKS,
    environment_of,
    fifth,
    local_steps,
    passes_of,
    quick,
    round_flops,
    training_flops,
    with_clients,
)


def test_spread_and_paired_ratios() -> None:
    """Turns (4, 1), (9, 3), (10, 2): ratios 4, 3, 5; their median is 4, not 9/2 from the medians."""
    assert spread([4.0, 9.0, 10.0]) == {"median": 9.0, "least": 4.0, "most": 10.0}
    assert ratio([4.0, 9.0, 10.0], [1.0, 3.0, 2.0]) == {"median": 4.0, "least": 3.0, "most": 5.0}


def test_figures_of_a_contender() -> None:
    """12 GFLOP and 600 samples in 2 s: 6 GFLOP/s, 300 a second; the yardstick took 3 s and 4 CPU seconds to our 1."""
    ours, yardstick = Times(wall=[2.0, 2.0], cpu=[1.0, 1.0]), Times(wall=[3.0, 3.0], cpu=[4.0, 4.0])
    row = figures(ours, yardstick, flops=12e9, samples=600)
    assert (row["gflops"], row["samples_per_second"], row["rounds"]) == (6.0, 300.0, 2)
    assert (row["ratio"]["median"], row["cpu_ratio"]["median"]) == (1.5, 4.0)


def test_rounds_are_taken_in_turn_and_the_warm_up_is_dropped() -> None:
    calls = []

    class Noted:
        pids = ()

        def __init__(self, name: str) -> None:
            self.name = name

        def round(self, number: int) -> None:
            calls.append((number, self.name))

    times = interleave({"a": Noted("a"), "b": Noted("b")}, rounds=2, warm_up=1)
    assert calls == [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (3, "b")]
    assert [len(found.wall) for found in times.values()] == [2, 2]


def test_cpu_seconds_of_another_process_are_counted() -> None:
    """A process that computes for 0.3 CPU seconds and then waits: at least 0.25 more than this one's own."""
    script = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cpu_seconds([process.pid]) - cpu_seconds([]) >= 0.25
        assert os.getpid() == parents()[process.pid]
        assert process.pid in descendants(os.getpid(), parents())
        assert tree_bytes(os.getpid()) > tree_bytes(process.pid) > 2**20
        process.communicate(b"\n")


def test_descendants_are_children_and_theirs() -> None:
    """1 has 2 and 3, 2 has 4; 5 belongs to nobody asked for."""
    assert sorted(descendants(1, {2: 1, 3: 1, 4: 2, 5: 9})) == [2, 3, 4]


@given(a=st.floats(0.01, 5), b=st.floats(0.01, 5), workers=st.integers(1, 8))
def test_the_fit_finds_the_line_it_was_drawn_from(a: float, b: float, workers: int) -> None:
    line = StepFit(a=a, b=b, workers=workers)
    found = fit_steps({C: line.at(C) for C in (5, 10, 20, 47)}, workers)
    assert (found.a, found.b) == (pytest.approx(a, rel=1e-6), pytest.approx(b, rel=1e-6))


def test_turns_by_hand() -> None:
    """Two workers: 5 clients and the server are 3 turns, 10 are 6 (11 jobs), 47 are 24. One turn alone is no line."""
    line = StepFit(a=1.0, b=2.0, workers=2)
    assert [line.steps(C) for C in (5, 10, 47)] == [3, 6, 24]
    assert line.at(10) == 13.0
    with pytest.raises(ValueError, match="two different"):
        fit_steps({4: 1.0, 5: 1.0}, workers=2)


def test_flops_by_hand() -> None:
    """(2, 3) x (3, 4): 2*3*4 multiply-adds. A convolution of one 5x5 output pixel plane: as torch counts it, too."""
    assert matrix_flops(2, 3, 4) == 48
    assert (
        convolution_flops(images=2, channels_in=3, channels_out=4, rows=5, columns=5, kernel=3) == 2 * 2 * 3 * 4 * 225
    )
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(100, 10))
    forward = convolution_flops(1, 3, 4, 5, 5, 3) + matrix_flops(1, 100, 10)
    # Backward: the convolution's weights (its images need no gradient); the linear layer's weights and its inputs.
    backward = convolution_flops(1, 3, 4, 5, 5, 3) + 2 * matrix_flops(1, 100, 10)
    assert training_flops(network, (3, 5, 5)) == forward + backward
    assert not any(weight.is_meta for weight in network.parameters())


def test_the_flops_of_a_round_of_work_a_by_hand() -> None:
    """11 jobs of 16 steps of 64: 11,264 images there and back, 10,240 weak views there; multiply-adds of the layers.

    conv1 26*26*32*9, conv2 24*24*64*9*32, fc1 9216*128, fc2 128*47; back: all twice but conv1, which needs no
    gradient of the images.
    """
    work = with_clients(WORKS["A"], K=10, C=10, images=64)
    environment = environment_of(work)
    conv1, rest = 26 * 26 * 32 * 9, 24 * 24 * 64 * 9 * 32 + 9216 * 128 + 128 * 47
    forward, both = 2 * (conv1 + rest), 2 * (2 * conv1 + 3 * rest)
    assert round_flops(work, environment) == 10_240 * forward + 11_264 * both
    assert passes_of(work, environment).trained == 11_264
    assert local_steps(work, environment) == 176


def test_the_passes_of_work_c_by_hand() -> None:
    """10 clients of 500: read for labels, and everyone (with 250 at the server) for static batch norm; trained on
    strong views and mixes. 25 steps at the server, 50 at each client."""
    work = with_clients(WORKS["C"], K=10, C=10, images=500)
    environment = environment_of(work)
    passes = passes_of(work, environment)
    assert (passes.read, passes.trained) == (5_000 + 5_250, 250 + 2 * 5_000)
    assert local_steps(work, environment) == 25 + 10 * 50
    assert {len(held_N) for held_N in environment.split.clients} == {500}


def test_a_fifth_of_work_c_by_hand() -> None:
    """100 images at each of 10 clients and 50 at the server: 5 steps there, 10 at each client."""
    work = replace(fifth(WORKS["C"]), real=False)
    environment = environment_of(work)
    assert {len(held_N) for held_N in environment.split.clients} == {100}
    assert local_steps(work, environment) == 5 + 10 * 10
    assert passes_of(work, environment).trained == 50 + 2 * 1_000


@pytest.mark.parametrize("name", sorted(WORKS))
def test_quick_works_are_of_the_same_kind(name: str) -> None:
    small = quick(WORKS[name])
    assert small.experiment.model == WORKS[name].experiment.model
    assert type(small.experiment.method) is type(WORKS[name].experiment.method)
    assert passes_of(small, environment_of(small)).trained <= 60


def test_measured_sizes_hold_as_many_images_as_emnist_balanced() -> None:
    """112,800 images up to what does not divide among K clients."""
    for size in SIZES:
        work = size.work()
        assert work.N_train is not None and 0 <= 112_800 - work.N_train < size.K


def test_a_table_in_markdown() -> None:
    table = Table(title="T", head=("a", "b"), rows=[("1", "x|y")], notes=("note",))
    assert table.markdown() == "## T\n\n| a | b |\n| --- | --- |\n| 1 | x\\|y |\n\nnote\n"
    with pytest.raises(ValueError, match="3 cells under 2"):
        Table(title="T", head=("a", "b"), rows=[("1", "2", "3")])
