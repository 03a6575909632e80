"""The yardstick does the same work as the engines: equal weights where no random draw decides.

Batches hold all images of a holder and views are the images themselves (no flip, no crop, no policy), so that neither
the order nor the augmentation's draws matter but for rounding; then both must leave the same average.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from benchmark.data.augment import Augmentation, Gentle, Weak
from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.methods.semifl import SemiFL
from benchmark.methods.shared import is_statistic
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import Model
from benchmark.optim.sgd import Constant
from tests.conftest import tiny_experiment
from tests.performance.plain_loop import PlainLoop, loop_of

pytestmark = pytest.mark.slow  # of tools for speed, which no command needs

STILL = Augmentation(
    weak=Weak(flip=0.0, crop_padding=0.0),
    strong=Gentle(geometry_probability=0.0, brightness_probability=0.0, contrast_probability=0.0, cutout=0.0),
)
ALL = 10**6  # a batch of all images


def still(**changes) -> Experiment:
    tiny = tiny_experiment()
    optimizer = replace(tiny.optimizer, schedule=Constant())
    return replace(tiny, data=replace(tiny.data, augmentation=STILL), optimizer=optimizer, **changes)


def compared(experiment: Experiment, rounds: int) -> tuple[float, float, float]:
    """Largest difference of the averages, largest change of a weight, and the share kept in the last round."""
    environment = prepare(experiment)
    module, loop = FederatedModule(environment, ReferenceEngine(environment)), loop_of(environment)
    start = environment.setup().initial_weights()
    kept = math.nan
    for number in range(1, rounds + 1):
        module.training_step(number, 0)
        loop.round(range(experiment.federation.C))
        kept = module.metrics["pseudo/kept"]
    (ours,) = module.models().values()
    if isinstance(experiment.method, SemiFL):  # evaluates what it gave to its clients, not what they made of it
        ours = module.state.server["student"]
    names = [name for name in ours if not is_statistic(name)]
    difference = max(float((ours[name] - loop.weights[name]).abs().max()) for name in names)
    return difference, max(float((ours[name] - start[name]).abs().max()) for name in names), kept


@pytest.mark.parametrize(("threshold", "rounds"), [(0.0, 2), (0.14, 1)])
def test_ssfl_gives_the_reference_engines_average(threshold: float, rounds: int) -> None:
    """tau 0.14 keeps a part, so that the mask counts; the sums of fp32 differ in order, 1e-5 of weights below 1."""
    method = SSFL(objective=CRL(threshold=threshold), batch_size=ALL, server_batch_size=ALL)
    difference, change, kept = compared(still(method=method), rounds)
    assert difference < 1e-5 < 1e-3 < change
    assert kept == 1.0 if threshold == 0.0 else 0.1 < kept < 0.9


@pytest.mark.parametrize(("norm", "rounds"), [("gn", 2), ("sbn", 1)])
def test_semifl_gives_the_reference_engines_average(norm, rounds: int) -> None:
    """Without the mix (its partners and lambda are drawn). Global momentum counts from round 2 on; with static batch
    norm the pass over everyone's images, by means over batches as torch has it, decides which are confident."""
    experiment = still(
        method=SemiFL(threshold=0.12, mix_weight=0.0, batch_size=ALL, server_batch_size=ALL, moments="released_code"),
        model=Model(network="tiny_cnn", norm=norm, norm_groups=4),
    )
    experiment = replace(experiment, federation=replace(experiment.federation, epochs=1, rounds=10))
    difference, change, kept = compared(experiment, rounds)
    assert difference < 1e-5 < 1e-3 < change
    assert 0.1 < kept < 0.95


def test_a_round_with_random_views_learns() -> None:
    """With real augmentation, small batches and the mix: the loss on the server's images falls."""
    tiny = tiny_experiment()
    federation = replace(tiny.federation, epochs=1, rounds=50)
    sure = SSFL(objective=CRL(threshold=0.95), batch_size=32, server_batch_size=10)
    for method in (sure, SemiFL(threshold=0.5, batch_size=32, server_batch_size=10)):
        environment = prepare(replace(tiny, method=method, federation=federation))
        loop = loop_of(environment)
        before = server_loss(loop)
        for _ in range(8):
            loop.round(range(federation.C))
        assert server_loss(loop) < before - 0.1


@torch.no_grad()
def server_loss(loop: PlainLoop) -> float:
    at_N = loop.images.server_N
    loop.network.load_state_dict(loop.weights)
    logits_ND = loop.network(loop.images.views(at_N, ("plain",), loop.draw)["plain"])
    return float(functional.cross_entropy(logits_ND, loop.images.labels_N[at_N]))
