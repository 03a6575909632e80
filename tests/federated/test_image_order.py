"""Stacked jobs give the same numbers in whatever order their images lie in memory."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked import layers
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.federated.trees import leaves
from tests.methods.golden import TRACES


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["crl-fedavg", "semifl-static-batch-norm"])
def test_numbers_are_those_of_one_job_after_another(name, order, in_float64, monkeypatch) -> None:
    """Channels last with the group norm that CUDA devices have there."""
    seen: list[bool] = []
    weights_seen: list[bool] = []

    def conv2d(images: Any, weights: Any, *rest: Any, plain: Any = torch.conv2d, **options: Any) -> Any:
        if options.get("groups", 1) > 1:
            seen.append(images.is_contiguous(memory_format=order))
            weights_seen.append(weights.is_contiguous(memory_format=order))
        return plain(images, weights, *rest, **options)

    monkeypatch.setattr(layers.F, "conv2d", conv2d)
    monkeypatch.setattr(layers, "norm_copies", lambda images: layers.order_of(images) is torch.channels_last)
    trace = TRACES[name]
    evaluation = replace(trace.evaluation, every=1000, gradient_diversity_every=0)
    environment = prepare(replace(trace, evaluation=evaluation))
    reference = FederatedModule(environment, ReferenceEngine(environment))
    engine = StackedEngine(environment, most=64)
    monkeypatch.setattr(engine, "_order", order)
    stacked = FederatedModule(environment, engine)
    for number in (1, 2):
        reference.training_step(number, 0)
        stacked.training_step(number, 0)
    assert engine.runner.counts.together and not engine.runner.counts.reasons
    assert seen and all(seen) and all(weights_seen)
    wanted, found = (dict(leaves(module.state.server)) for module in (reference, stacked))
    for key, value in wanted.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(found[key], value, rtol=0, atol=1e-11)
