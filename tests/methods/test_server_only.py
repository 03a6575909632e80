"""The bounds: whose images and labels they learn from."""

import numpy as np
import pytest

from benchmark.federated.environment import prepare
from benchmark.methods.protocol import CENTRAL, SERVER
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.supervised_fl import SupervisedFL
from tests.methods.watch import tiny_with

EVERYONES = ServerOnly(batch_size=8, images="everyones")


def test_with_everyones_images_it_has_all_and_nobody_else_has():
    environment = prepare(tiny_with(EVERYONES, "everywhere"))
    split = environment.split
    part = environment.part(CENTRAL, "everyones")
    assert sorted(part.positions_N.tolist()) == sorted(np.concatenate([split.server_N, *split.clients]).tolist())
    assert all(len(environment.part(holder, "everyones")) == 0 for holder in (SERVER, *range(environment.K)))


@pytest.mark.parametrize("setting", ["every_client", "share", "some_clients", "server"])
def test_everyones_images_are_those_whose_labels_are_visible(setting):
    environment = prepare(tiny_with(ServerOnly() if setting == "server" else SupervisedFL(), setting))
    visible = np.concatenate([environment.split.server_N, *environment.held.labelled])
    actual = environment.part(CENTRAL, "everyones").positions_N
    assert sorted(actual.tolist()) == sorted(visible.tolist())
