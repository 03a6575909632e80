"""The gpu engine's steps, run without a GPU, against the reference: every method, every client, and the average.

Tolerance. One local step rounds each weight a handful of times in float32 (relative error 2**-24 = 6e-8 each), and the
gradient's sums over at most 512 terms add their own roundings, of about sqrt(512) x 6e-8 = 1.4e-6 of the gradient, of
which a rate of 0.05 with momentum 0.9 (sum of a geometric series: 10) passes on 0.5: 7e-7 a step of gradients of size
1. Up to 15 steps (3 rounds of T = 2 and of at most 5 steps an epoch) stay within 1e-5, the issue's own bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from benchmark.data.partition import Dirichlet
from benchmark.experiment import Experiment
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.gpu import GpuEngine
from benchmark.federated.module import FederatedModule
from benchmark.methods.fedprox_fixmatch import FedProxFixMatch
from benchmark.methods.objectives import CRL
from benchmark.methods.protocol import Job, Outcome
from tests.methods.golden import BASE, TRACES
from tests.methods.toys import equal_trees

TOLERANCE = 1e-5
TOGETHER = ("graphs", "batched")
# One trace for each update, holder of labels and normalisation; the others are variations of their server's side.
SHORT = (
    "crl-released", "self-training", "supervised", "semifl-static-batch-norm", "rscfed-released",
    "rscfed-partly-labelled", "fed-consist", "fedprox-fixmatch", "ts-server-ema", "ts-client-ema", "fedswitch-share",
    "supervised-fl-proximal", "server-only", "fixmatch",
)  # fmt: skip
# Which updates draw within a step, and so run one by one (the table in `examine`).
ALONE = {"FixMixUpdate"}


@dataclass
class Seen:
    """Every outcome of a run, in order."""

    outcomes: list[Outcome] = field(default_factory=list)

    def on_job(self, job: Job, round_number: int) -> None:
        """Nothing is noted of a job."""

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def trained(
    environment: Environment, engine: Engine, rounds: int
) -> tuple[FederatedModule, list[Outcome], list[float]]:
    """The module after that many rounds, what every client sent, and the share of labels kept in each round."""
    module, seen, kept = FederatedModule(environment, engine), Seen(), []
    module.observers.append(seen)
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
        kept.append(module.metrics.get("pseudo/kept", float("nan")))
    return module, seen.outcomes, kept


def distance(left: Any, right: Any) -> float:
    """The largest absolute difference in a tree of tensors and numbers, which have to have the same names."""
    if isinstance(left, Mapping):
        assert left.keys() == right.keys()
        return max((distance(value, right[name]) for name, value in left.items()), default=0.0)
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and right.device.type == "cpu"
        return float((left.double() - right.double()).abs().max()) if left.numel() else 0.0
    if isinstance(left, int | float):
        return abs(left - right)
    assert left == right
    return 0.0


def agree(experiment: Experiment, candidates: tuple[str, ...], rounds: int) -> tuple[list[GpuEngine], list[float]]:
    """Compare runs with each candidate to the reference's: per client, state at clients, average, metrics."""
    environment = prepare(experiment)
    expected, sent, kept = trained(environment, ReferenceEngine(environment), rounds)
    engines = []
    for candidate in candidates:
        engine = GpuEngine(environment, "cpu", candidate)
        found, there, _ = trained(environment, engine, rounds)
        for left, right in zip(sent, there, strict=True):
            assert left.key == right.key and left.steps == right.steps
            assert distance(left.sends, right.sends) < TOLERANCE
            assert distance(left.private or {}, right.private or {}) < TOLERANCE
        assert distance(expected.state.server, found.state.server) < TOLERANCE
        assert distance(expected.state.clients, found.state.clients) < TOLERANCE
        assert distance(expected.metrics, found.metrics) < 1e-4  # losses and means of them are up to 10 times a weight
        engines.append(engine)
    return engines, kept


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SHORT else pytest.mark.slow) for name in TRACES]
)
def test_every_method_agrees_with_the_reference(name):
    engines, _ = agree(TRACES[name], TOGETHER, rounds=2)
    for engine, candidate in zip(engines, TOGETHER, strict=True):
        for update, choice in engine.choices.items():
            assert choice["candidate"] == ("plain" if update in ALONE else candidate), choice


@pytest.mark.parametrize("name", ["crl-released", "semifl", "rscfed-released"])
def test_plain_on_a_cpu_is_the_reference_bit_by_bit(name):
    """The loop and the optimizer are the reference's, and the joint augmentation makes equal batches."""
    environment = prepare(TRACES[name])
    left, sent, _ = trained(environment, ReferenceEngine(environment), 2)
    right, there, _ = trained(environment, GpuEngine(environment, "cpu", "plain"), 2)
    assert all(equal_trees(a.sends, b.sends) for a, b in zip(sent, there, strict=True))
    assert equal_trees(left.state.server, right.state.server) and left.metrics == right.metrics


SLOWLY = replace(BASE.optimizer, lr=0.002)  # so that as many labels stay at one tau for three rounds


@pytest.mark.parametrize(
    ("norm", "tau", "changes"),
    [
        ("gn", 0.1345, {"optimizer": replace(SLOWLY, lr=0.0005)}),
        ("gn", 0.134, {"optimizer": replace(SLOWLY, weight_decay=0.0, clip=0.5)}),
        ("bn", 0.128, {}),
        ("none", 0.114, {"partition": Dirichlet(alpha=0.3), "optimizer": replace(SLOWLY, lr=0.001)}),
    ],
)
def test_crl_where_some_labels_are_kept(norm, tau, changes):
    """Three rounds at a tau that keeps 30 to 70 % in each."""
    experiment = replace(
        BASE,
        optimizer=SLOWLY,
        model=replace(BASE.model, norm=norm),
        method=replace(BASE.method, objective=CRL(threshold=tau)),
    )
    _, kept = agree(replace(experiment, **changes), TOGETHER, rounds=3)
    assert all(0.3 < share < 0.7 for share in kept), kept


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_crl_with_all_and_with_no_label_kept(tau):
    experiment = replace(BASE, method=replace(BASE.method, objective=CRL(threshold=tau)))
    _, kept = agree(experiment, TOGETHER, rounds=1)
    assert kept == [1.0 - tau]


def test_clients_of_unequal_sizes_and_epochs():
    """An epoch of batches of 64, the last one incomplete: other lengths and other shapes at every client."""
    experiment = replace(
        BASE,
        optimizer=SLOWLY,
        partition=Dirichlet(alpha=0.5),
        method=FedProxFixMatch(threshold=0.14, batch_size=64, server_batch_size=8, mu=0.1),
        federation=replace(BASE.federation, epochs=1),
    )
    sizes = prepare(experiment).sizes
    steps = {-(-sizes[client] // 64) for client in range(4)}
    assert len(steps) > 1 and any(sizes[client] % 64 for client in range(4))
    engines, kept = agree(experiment, TOGETHER, rounds=1)
    assert 0.3 < kept[0] < 0.7
