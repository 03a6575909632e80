"""Measure how much the reference engine differs from itself if tensors have a different order in memory.

    python -m tests.performance.memory_order       writes results/benchmarks/memory_order.toml

Networks lie channels last on a CPU. The same runs are played with contiguous networks: sums are taken in another order,
and some values come to be on the other side of a ReLU or a maximum. This is the measure for engines that promise no
equal bits. Differences are the largest of any entry of the evaluated weights, divided by the largest entry of the same
tensor.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmark.experiment import Experiment
from benchmark.federated import environment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.federated.trees import leaves
from benchmark.files import write_atomically
from tests.methods.golden import TRACES

NAMES = (
    "crl-fedavg",
    "crl-batch-norm",
    "semifl",
    "rscfed",
    "fedswitch",
    "sage",
    "fedmatch",
    "supervised-fl-every-client",
)
SEEDS, ROUNDS = range(6), (1, 5)
PATH = Path(__file__).parents[2] / "results" / "benchmarks" / "memory_order.toml"


def difference(one: Mapping[str, object], other: Mapping[str, object]) -> float:
    """Return the largest difference of an entry, relative to the largest entry of its tensor."""
    pairs, worst = dict(leaves(dict(other))), 0.0
    for name, value in leaves(dict(one)):
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
            size = float(value.abs().max())
            off = float((value - pairs[name]).abs().max())
            worst = max(worst, off / size if size else off)
    return worst


def played(experiment: Experiment, order: torch.memory_format, engine: str = "reference") -> list[dict[str, Any]]:
    """Return the server's state after each of `ROUNDS`."""
    with mock.patch.object(environment, "memory_format", lambda *_: order):
        known = prepare(experiment)
        chosen = ReferenceEngine(known) if engine == "reference" else StackedEngine(known)
        module, states = FederatedModule(known, chosen), []
        for number in range(1, max(ROUNDS) + 1):
            module.training_step(number, 0)
            if number in ROUNDS:
                states.append({name: value for name, value in module.models().items()})
    return states


def experiment_of(name: str, seed: int) -> Experiment:
    known = TRACES[name]
    return replace(
        known,
        seed=seed,
        federation=replace(known.federation, rounds=max(ROUNDS)),
        evaluation=replace(known.evaluation, every=1000, gradient_diversity_every=0),
    )


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [
        "# kind: measured differences; see results/benchmarks/README.md",
        "# Differences between channels-last and contiguous images in the reference engine, and between the stacked",
        "# and the reference engine, both on a CPU in float32. Written by `python -m tests.performance.memory_order`.",
        f"date = {date.today()}",
        f'torch = "{torch.__version__}"',
        f"seeds = {len(SEEDS)}",
        f"rounds = {list(ROUNDS)}",
    ]
    for name in NAMES:
        found: dict[str, list[list[float]]] = {"memory_order": [], "stacked": []}
        for seed in SEEDS:
            experiment = experiment_of(name, seed)
            reference = played(experiment, torch.channels_last)
            others = {
                "memory_order": played(experiment, torch.contiguous_format),
                "stacked": played(experiment, torch.channels_last, "stacked"),
            }
            for kind, states in others.items():
                found[kind].append([difference(*pair) for pair in zip(reference, states, strict=True)])
        lines += ["", "[[traces]]", f'name = "{name}"']
        for kind, of_seeds in found.items():
            for index, rounds in enumerate(ROUNDS):
                values = [differences[index] for differences in of_seeds]
                lines.append(f"{kind}_median_after_{rounds} = {median(values):.1e}")
                lines.append(f"{kind}_largest_after_{rounds} = {max(values):.1e}")
        print("\n".join(lines[-10:]), flush=True)
    write_atomically(PATH, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
