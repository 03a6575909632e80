"""Clients with one image or none: the round is finite, or an error names the client."""

from dataclasses import replace
from typing import Any

import pytest

from benchmark.errors import ConfigError
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.trees import first_not_finite
from tests.methods.golden import TRACES
from tests.methods.watch import watched


def two_rounds(name: str, clients: tuple[int, ...], unlabelled: int, labelled: int) -> FederatedModule:
    """Run two rounds of the trace with only the first few images of each kind at these clients."""
    environment = prepare(TRACES[name])
    left: dict[str, Any] = {}
    for kind, count in (("unlabelled", unlabelled), ("labelled", labelled)):
        parts = enumerate(getattr(environment.assignment, kind))
        left[kind] = tuple(part[:count] if client in clients else part for client, part in parts)
    environment = replace(environment, assignment=replace(environment.assignment, **left))
    environment.experiment.method.check(environment.setup())
    return watched(environment.experiment, 2, environment)[0]


# One experiment per kind of local work, with batch norms if a mean over a single image would show.
SERVER_S_LABELS = ("crl-grouping", "crl-batch-norm", "self-training", "semifl-static-batch-norm", "flfl-released")
ONE_KIND = ("cbafed", "supervised-fl-every-client", "ts-client-ema-share", "sage-shared-momentum")
BOTH_KINDS = (
    "rscfed-partly-labelled",
    "fed-consist",
    "fedswitch-share",
    "flexmatch-lpl",
    "feddb",
    "proxyfl",
    "feddure",
    "twin-sight",
)


@pytest.mark.parametrize("name", [*SERVER_S_LABELS, *ONE_KIND, *BOTH_KINDS])
def test_clients_with_one_image(name):
    """Check that weights, client states and metrics are finite.

    Two clients have one image of each of their kinds. In further runs one client has lost its images of one kind and
    continues with the other kind.
    """
    ways = [((0, 3), 1, 1), *([((0,), 0, 1), ((0,), 1, 0)] if name in BOTH_KINDS else [])]
    for way in ways:
        module = two_rounds(name, *way)
        for tree in (module.state.server, module.state.clients, module.metrics):
            assert first_not_finite(tree) is None
        assert module.metrics["local_steps"] > 0


def test_a_client_without_images_is_named_where_it_is_asked():
    """Use SSFL, which trains the whole cohort: C = K, so that client 0 is part of it."""
    with pytest.raises(ConfigError, match="client 0 has no images for the stream 'unlabelled' of its local training"):
        two_rounds("crl-grouping", (0,), 0, 0)


def test_in_semifl_a_client_without_images_is_sure_of_nothing_and_sits_out():
    module = two_rounds("semifl", (0,), 0, 0)
    assert module.metrics["comm/sat_out"] >= 1 and first_not_finite(module.state.server) is None
