"""Counting without numbers: as torch counts with them, and for a device that is timed."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmark.models.build import Model, build, forward_flops
from sweeps.counting import pass_of
from sweeps.meta import META, WithoutNumbers

SHAPE, CLASSES = (3, 32, 32), 10
MODELS = [
    Model(network="small_cnn", norm="gn", norm_groups=4),
    Model(network="small_cnn", norm="bn"),
    Model(network="wresnet28x2", norm="gn", norm_groups=4),
]


def step(network: nn.Module, device: torch.device) -> list[torch.Tensor]:
    images_NCHW = torch.zeros(3, *SHAPE, device=device)
    labels_N = torch.zeros(3, dtype=torch.int64, device=device)
    nn.functional.cross_entropy(network(images_NCHW), labels_N).backward()
    return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.network}-{model.norm}")
def test_a_step_has_the_flops_and_the_shapes_that_it_has_with_numbers(model):
    """torch's own counter runs the real step; the second count answers from the results of the first."""
    network = build(model, SHAPE, CLASSES, seed=0)
    empty = copy.deepcopy(network).to(META)
    with FlopCounterMode(display=False) as real:
        gradients = step(network, torch.device("cpu"))
    for _ in range(2):
        empty.zero_grad(set_to_none=True)
        with WithoutNumbers() as counter:
            shapes = [(gradient.shape, gradient.dtype) for gradient in step(empty, META)]
        assert counter.flops == real.get_total_flops() and counter.operations > 0
        assert shapes == [(gradient.shape, gradient.dtype) for gradient in gradients]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.network}-{model.norm}")
def test_a_pass_has_the_flops_of_its_layers(model):
    assert pass_of(model, SHAPE, CLASSES)[0] == forward_flops(build(model, SHAPE, CLASSES, seed=0), SHAPE)


def test_numbers_that_are_read_are_one_and_conditions_are_true():
    empty = torch.empty(4, 3, device=META)
    with WithoutNumbers():
        small = empty < 0.5
        assert float(empty.mean()) == 1.0 and empty.argmax().item() == 1
        assert bool(small.all()) and bool((~small).any()) and int(small.sum()) == 12
        assert empty[small].shape == (12,) and torch.equal(empty, 2 * empty)
        assert empty[:, 0].cpu().tolist() == [1.0] * 4
        assert torch.ones(2).sum() == 2.0 and (torch.ones(4, 3) + empty).is_meta
