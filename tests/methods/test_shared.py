"""Means of weights: exact integers, and running statistics with any name."""

import pytest
import torch

from benchmark.methods.shared import RunningMean, mean, momentum_step

LARGE = 2**53 + 1  # the first integer that float64 cannot represent


@pytest.mark.parametrize("values", [[LARGE, LARGE], [LARGE, LARGE + 2, LARGE + 4], [-LARGE] * 3, [2**62, 2**62 + 3]])
def test_the_mean_of_whole_numbers_is_exact(values: list[int]) -> None:
    """Expect means that are rounded down, as in Python's integer division."""
    sets = [{"n": torch.tensor([value, 5], dtype=torch.int64)} for value in values]
    assert mean(sets)["n"].tolist() == [sum(values) // len(values), 5]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_other_whole_numbers_keep_their_type(dtype: torch.dtype) -> None:
    sets = [{"n": torch.tensor([1, 0, 1]).to(dtype)}, {"n": torch.tensor([1, 0, 0]).to(dtype)}]
    assert mean(sets)["n"].dtype == dtype and mean(sets)["n"].tolist() == [1, 0, 0]


def test_weights_of_the_mean_count() -> None:
    running = RunningMean()
    for value, weight in ((LARGE, 1.0), (LARGE + 8, 3.0)):
        running.add({"n": torch.tensor(value)}, weight)
    assert running.value()["n"].item() == LARGE + 6


def test_momentum_leaves_every_buffer_to_the_clients() -> None:
    """Include buffers of a custom norm with custom names."""
    before = {"w": torch.tensor(1.0), "ema_mean": torch.tensor(1.0), "seen": torch.tensor(3)}
    target = {"w": torch.tensor(0.0), "ema_mean": torch.tensor(0.5), "seen": torch.tensor(5)}
    moved, velocity = momentum_step(before, target, None, 0.9, buffers=("ema_mean", "seen"))
    moved, velocity = momentum_step(
        moved, {**target, "ema_mean": torch.tensor(0.4)}, velocity, 0.9, buffers=("ema_mean", "seen")
    )
    assert moved["ema_mean"].item() == pytest.approx(0.4) and moved["seen"].item() == 5
    assert velocity is not None and velocity.keys() == {"w"}
