"""Labels that the setting hides cannot reach the weights: permuting them changes no bit; the visible ones do.

Every method in every label setting that the golden traces have.
"""

from dataclasses import replace

import pytest
import torch

from benchmark.federated.environment import Environment, prepare
from tests.federated.helpers import equal, weights_after
from tests.methods.golden import TRACES

# The last trace of each method, objective and setting.
LAST = {
    (e.data.label_setting, type(e.method), type(getattr(e.method, "objective", None))): name
    for name, e in TRACES.items()
}
AT_CLIENTS = [name for (setting, *_), name in LAST.items() if setting not in ("server", "everywhere")]


def of_setting(wanted: str) -> list[str]:
    return [name for (setting, *_), name in LAST.items() if setting == wanted]


def shifted(environment: Environment, chosen: torch.Tensor) -> Environment:
    """The same split, in which these training images' labels are another class."""
    labels_N = environment.data.train_labels_N.clone()
    labels_N[chosen] = (labels_N[chosen] + 1) % environment.data.num_classes
    return replace(environment, data=replace(environment.data, train_labels_N=labels_N))


def permuted(environment: Environment, holders: str) -> Environment:
    """With other labels of the server's or of all other training images."""
    at_server = torch.zeros(len(environment.data.train_labels_N), dtype=torch.bool)
    at_server[torch.as_tensor(environment.split.server_N)] = True
    return shifted(environment, at_server if holders == "server" else ~at_server)


def moves(environment: Environment, other: Environment) -> bool:
    return not equal(*(weights_after(environment.experiment, rounds=2, environment=e) for e in (environment, other)))


@pytest.mark.parametrize("name", of_setting("server"))
def test_only_the_server_s_labels_matter(name):
    environment = prepare(TRACES[name])
    assert not moves(environment, permuted(environment, "everyone else"))
    assert moves(environment, permuted(environment, "server"))


@pytest.mark.parametrize("name", AT_CLIENTS)
def test_only_the_labels_that_clients_see_matter(name):
    environment = prepare(TRACES[name])
    seen = torch.zeros(len(environment.data.train_labels_N), dtype=torch.bool)
    for positions_N in environment.held.labelled:
        seen[torch.as_tensor(positions_N)] = True
    assert not moves(environment, shifted(environment, ~seen))
    assert moves(environment, shifted(environment, seen))


@pytest.mark.parametrize("name", of_setting("everywhere"))
def test_all_labels_matter_where_clients_hold_them(name):
    environment = prepare(TRACES[name])
    assert moves(environment, permuted(environment, "everyone else"))
