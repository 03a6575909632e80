"""Clients with one image, or none: a finite round, or an error that names them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.trees import first_not_finite
from tests.methods.golden import TRACES
from tests.methods.watch import watched

# One experiment a method and kind of labels at clients; batch norm where a mean over one image would show.
NAMES = (
    "crl-grouping",
    "crl-batch-norm",
    "self-training",
    "supervised",
    "semifl",
    "semifl-static-batch-norm",
    "flfl",
    "flfl-released",
    "cbafed",
    "rscfed",
    "rscfed-partly-labelled",
    "fed-consist",
    "fedprox-fixmatch",
    "fedprox-fixmatch-every-client",
    "ts-server-ema",
    "ts-client-ema-share",
    "fedswitch",
    "fedswitch-share",
    "supervised-fl-every-client",
    "sage-shared-momentum",
    "fedlabel",
    "flexmatch-lpl",
    "feddb",
    "proxyfl",
    "proxyfl-paper",
    "feddure",
)


def with_few_images(
    experiment: Experiment, unlabelled: int, labelled: int, clients: Sequence[int] = (0,)
) -> Environment:
    """The experiment's environment, in which these clients are left with the first so many images of each kind."""
    environment = prepare(experiment)

    def cut(parts: tuple[np.ndarray, ...], count: int) -> tuple[np.ndarray, ...]:
        return tuple(part[:count] if client in clients else part for client, part in enumerate(parts))

    held = replace(
        environment.held,
        labelled=cut(environment.held.labelled, labelled),
        unlabelled=cut(environment.held.unlabelled, unlabelled),
    )
    return replace(environment, held=held)


def two_rounds(environment: Environment) -> FederatedModule:
    environment.experiment.method.check(environment.setup())
    return watched(environment.experiment, 2, environment)[0]


@pytest.mark.parametrize("name", NAMES)
def test_clients_with_one_image(name):
    """Two clients with one image of each kind that they hold: weights, kept state and metrics are finite."""
    module = two_rounds(with_few_images(TRACES[name], 1, 1, clients=(0, 3)))
    for tree in (module.state.server, module.state.clients, module.metrics):
        assert first_not_finite(tree) is None
    assert module.metrics["local_steps"] > 0


@pytest.mark.parametrize(
    "name",
    [
        *("rscfed", "fed-consist", "fedprox-fixmatch-every-client", "fedswitch-share", "flexmatch-lpl", "feddb"),
        *("proxyfl", "feddure"),
    ],
)
def test_a_client_with_images_of_one_kind_alone(name):
    """Client 0 loses its unlabelled images, then its labelled ones: it goes on with what it has."""
    for unlabelled, labelled in ((0, 1), (1, 0)):
        module = two_rounds(with_few_images(TRACES[name], unlabelled, labelled, clients=(0,)))
        assert first_not_finite(module.state.server) is None


@pytest.mark.parametrize("name", ["crl-grouping", "self-training", "supervised"])
def test_a_client_without_images_is_named_where_it_is_asked(name):
    """SSFL asks the whole cohort: C = K, so client 0 is among it."""
    with pytest.raises(ConfigError, match="holder 0 has no images for the stream 'unlabelled' of its local training"):
        two_rounds(with_few_images(TRACES[name], 0, 0))


def test_in_semifl_a_client_without_images_is_sure_of_nothing_and_sits_out():
    environment = with_few_images(TRACES["semifl"], 0, 0)
    module, _ = watched(environment.experiment, 1, environment)
    assert module.metrics["comm/sat_out"] >= 1 and first_not_finite(module.state.server) is None
