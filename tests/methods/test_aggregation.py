"""The server's average, computed again from what the clients sent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmark.federated.environment import Environment
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.rscfed import RSCFed
from tests.methods.golden import TRACES
from tests.methods.watch import watched

Weigh = Callable[[Environment, int], float]  # a client's weight, not normalised


def equally(environment: Environment, client: int) -> float:
    return 1.0


def by_labels(environment: Environment, client: int) -> float:
    return float(environment.labelled[client])


def by_size(environment: Environment, client: int) -> float:
    return float(environment.sizes[client])


def half_for_the_labelled_client(environment: Environment, client: int) -> float:
    """Half for the one client with labels; the three others share the rest equally."""
    return 0.5 if environment.labelled[client] else 0.5 / 3


def changed(name: str, **changes: Any) -> Any:
    return replace(TRACES[name], method=replace(TRACES[name].method, **changes))


# The experiment, the weight of each client, and the weight sets that the server averages.
AVERAGES: dict[str, tuple[Any, Weigh, tuple[str, ...]]] = {
    "supervised by labels": (TRACES["supervised-fl-every-client"], by_labels, ("student",)),
    "supervised equally": (TRACES["supervised-fl-proximal"], equally, ("student",)),
    "FedProx-FixMatch": (TRACES["fedprox-fixmatch-every-client"], equally, ("student",)),
    "TS-Client EMA": (changed("ts-client-ema-share", server_teacher="mean"), equally, ("student", "teacher")),
    "FedSwitch": (TRACES["fedswitch-share"], equally, ("student",)),
    "LG-FedAvg": (TRACES["lg-fedavg"], by_labels, ("student",)),
    "DataSharing by the union's size": (
        changed("data-sharing", warm_start_rounds=0), lambda e, k: e.sizes[k] + 10.0, ("student",)
    ),
    "SSFL's groups of equal size": (TRACES["crl-labels-at-client"], equally, ("average",)),
    "Fed-Consist, original": (
        changed("fed-consist-every-client", labelled_share=None, weighting="equal"), equally, ("student",)
    ),
    "Fed-Consist by shares": (changed("fed-consist", weighting="equal"), half_for_the_labelled_client, ("student",)),
    "Fed-Consist's warm start": (changed("fed-consist-every-client", warm_start_rounds=1), by_labels, ("student",)),
    "RSCFed by size": (
        replace(
            TRACES["rscfed"], method=RSCFed(M=1, subset=4, batch_size=8, beta=0.0, labelled_weight="by_size")
        ), by_size, ("student",)
    ),
    "Fed-Consist by size": (
        replace(TRACES["rscfed"], method=FedConsist(batch_size=8, labelled_share=None)), by_size, ("student",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AVERAGES)
def test_the_average_of_a_round(name):
    experiment, weigh, sets = AVERAGES[name]
    module, watch = watched(experiment)
    environment = module.environment
    weights = torch.tensor([weigh(environment, job.key.client) for job, _ in watch.clients()], dtype=torch.float64)
    for weight_set in sets:
        sent = [outcome.sends["student" if weight_set == "average" else weight_set] for _, outcome in watch.clients()]
        for tensor in (name for name in sent[0] if sent[0][name].is_floating_point()):
            each = torch.stack([w[tensor].double() for w in sent])
            expected = torch.tensordot(weights / weights.sum(), each, dims=1)
            actual = module.state.server[weight_set][tensor].double()
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
