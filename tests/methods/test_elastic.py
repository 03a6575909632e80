"""EASGD and Overlap-Local-SGD: the pull and the rates by hand, and a full pull."""

import pytest
import torch

from benchmark.federated.environment import prepare, weights_of
from benchmark.methods.easgd import EASGD, Asymmetric, ElasticUpdate
from benchmark.methods.overlap_sgd import OverlapSGD
from benchmark.methods.protocol import Local
from benchmark.methods.shared import mean
from tests.federated.helpers import difference, equal, module_of
from tests.methods.watch import tiny_with, trained


def experiment(method, **factors):
    return tiny_with(method, "everywhere", **factors)


def rounds_of(method, rounds, **factors):
    """The environment, the module, and the evaluated model after each round, the untrained one first."""
    environment = prepare(experiment(method, **factors))
    module = module_of(environment.experiment, environment)
    seen = [next(iter(module.models().values()))]
    for round_number in range(1, rounds + 1):
        module.training_step(round_number, 0)
        seen.append(next(iter(module.models().values())))
    return environment, module, seen


def cohort(module, round_number):
    return module._world(round_number).cohort()


@pytest.mark.parametrize(("sends", "sent"), [("trained", 4.0), ("pulled", 3.5)])
def test_the_pull_by_hand(sends, sent):
    """z = 2, x = 4 after training, alpha = 1/4: x - (x - z) / 4 = 3.5 stays; a whole number is the client's own."""
    local = Local(
        trainable={"student": {"w": torch.tensor([4.0]), "count": torch.tensor(7)}},
        for_finish={"common": {"w": torch.tensor([2.0]), "count": torch.tensor(3)}},
    )
    sends_tree = ElasticUpdate(alpha=0.25, sends=sends).finish(local)
    assert sends_tree["student"]["w"].item() == sent
    assert local.private is not None
    assert local.private["student"]["w"].item() == 3.5 and local.private["student"]["count"].item() == 7


def test_a_full_pull_is_fedavg_one_round_late():
    """alpha = beta = 1: clients start at the center before the last, so that z_t is a round of FedAvg from z_{t-2}."""
    method = EASGD(batch_size=8, elastic=Asymmetric(alpha=1.0, beta=1.0), momentum="reset")
    environment, module, seen = rounds_of(method, 4)
    for round_number in range(1, 5):
        members = cohort(module, round_number)
        students = trained(environment, dict.fromkeys(members, seen[max(0, round_number - 2)]), round_number)
        assert equal(seen[round_number], mean([students[client] for client in members]))
    assert difference(seen[3], seen[4]) > 0


def test_the_anchor_s_momentum_by_its_definition():
    """v_1 = m_1 - z_0; v_2 = beta v_1 + (m_2 - z_1), with m_t the mean of what clients sent, which they keep."""
    environment = prepare(experiment(OverlapSGD(batch_size=8, alpha=0.5, beta=0.3)))
    module = module_of(environment.experiment, environment)
    anchors, means = [weights_of(environment.network())], []
    for round_number in (1, 2):
        module.training_step(round_number, 0)
        means.append(mean([module.state.clients[str(client)]["student"] for client in range(4)]))
        anchors.append(module.state.server["anchor"])
    for name, z_2 in anchors[2].items():
        z_0, z_1, m_1, m_2 = (w[name].double() for w in (*anchors[:2], *means))
        torch.testing.assert_close(z_1, m_1, atol=1e-6, rtol=0)
        expected = z_1 + 0.3 * (m_1 - z_0) + (m_2 - z_1)
        torch.testing.assert_close(z_2.double(), expected, atol=1e-6, rtol=0)
