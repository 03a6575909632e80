"""Labels that the setting hides cannot reach the weights: permuting them changes no bit; the visible ones do.

Every method in every label setting that the golden traces have.
"""

from dataclasses import replace

import pytest
import torch

from benchmark.federated.environment import Environment, prepare
from tests.federated.helpers import agree, weights_after
from tests.methods.golden import TRACES

# The last trace of each method, objective and setting; "everywhere" hides nothing.
LAST = {
    (e.data.label_setting, type(e.method), type(getattr(e.method, "objective", None))): name
    for name, e in TRACES.items()
    if e.data.label_setting != "everywhere"
}
CONTROLS = {setting: name for (setting, *_), name in LAST.items()}.values()  # one a setting: there, the visible matter


def shifted(environment: Environment, chosen: torch.Tensor) -> Environment:
    """Return the same split with a different class as the label of these training images."""
    labels_N = environment.data.train_labels_N.clone()
    labels_N[chosen] = (labels_N[chosen] + 1) % environment.data.num_classes
    return replace(environment, data=replace(environment.data, train_labels_N=labels_N))


@pytest.mark.parametrize("name", LAST.values())
def test_only_the_labels_that_the_setting_shows_matter(name):
    """The server's, or those that clients hold labelled."""
    environment = prepare(TRACES[name])
    setting = TRACES[name].data.label_setting
    seen = torch.zeros(len(environment.data.train_labels_N), dtype=torch.bool)
    at_server = setting in ("server", "open")
    for positions_N in (environment.split.server_N,) if at_server else environment.assignment.labelled:
        seen[torch.as_tensor(positions_N)] = True
    as_ever, hidden = (weights_after(TRACES[name], 2, each) for each in (environment, shifted(environment, ~seen)))
    assert agree(as_ever, hidden)
    assert name not in CONTROLS or not agree(as_ever, weights_after(TRACES[name], 2, shifted(environment, seen)))
