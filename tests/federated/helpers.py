"""Run whole runs without a Trainer or a disk, as rounds of a method over the reference engine, and run a function in
another process.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.processes import process_context
from benchmark.methods.protocol import Weights

FastHere = partial(ReferenceEngine, fast=True)  # what a worker does, in this process


def module_of(experiment: Experiment, environment: Environment | None = None) -> FederatedModule:
    environment = prepare(experiment) if environment is None else environment
    return FederatedModule(environment, ReferenceEngine(environment))


def weights_after(experiment: Experiment, rounds: int | None = None, environment: Environment | None = None) -> Weights:
    module = module_of(experiment, environment)
    for round_number in range(1, (rounds or experiment.federation.rounds) + 1):
        module.training_step(round_number, 0)
    return next(iter(module.models().values()))


def in_a_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a separate process, forked from one that has only loaded torch."""
    with process_context() as context, ProcessPoolExecutor(1, context) as executor:
        return executor.submit(function, *arguments).result()


def agree(left: Any, right: Any) -> bool:
    """Compare values bit by bit: trees of tensors, numbers and words at any depth, with tensors of one type."""
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(agree(value, right[name]) for name, value in left.items())
    if isinstance(left, list):
        return len(left) == len(right) and all(map(agree, left, right))
    if isinstance(left, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and bool(left == right)


def difference(left: Weights, right: Weights) -> float:
    """Return the largest absolute difference of all entries."""
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in left)
