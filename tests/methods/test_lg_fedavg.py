"""LG-FedAvg: private layers stay, and the ensemble of clients' models is tested."""

import pytest
import torch

from benchmark.federated.environment import prepare
from benchmark.methods.lg_fedavg import LGFedAvg, layers_of
from tests.methods.watch import tiny_with, watched

METHOD = LGFedAvg(batch_size=8, private_layers=1)


def experiment(method=METHOD, **factors):
    return tiny_with(method, "everywhere", **factors)


@pytest.mark.parametrize("private", ["first", "last"])
def test_private_layers_never_leave_their_client(private):
    """The server's stay at the first weights; clients send the other layers, and receive all of them but once."""
    method = LGFedAvg(batch_size=8, private=private, private_layers=2)
    module, watch = watched(experiment(method, C=4), rounds=2)
    begin = prepare(experiment(method)).network().state_dict()
    layers = layers_of(begin)
    own = layers[:2] if private == "first" else layers[-2:]
    for name, value in module.state.server["student"].items():
        assert torch.equal(value, begin[name]) == (name.rpartition(".")[0] in own)
    for number in (1, 2):
        for job, outcome in watch.seen[number]:
            assert not set(own) & set(layers_of(outcome.sends["student"]))
            assert layers_of(job.receives["student"]) == layers_of(outcome.sends["student"])
            assert layers_of(job.receives.get("own", {})) == (own if number == 1 else [])


def test_the_ensemble_is_tested():
    """Mean softmax of the clients' models over the test images, by hand; one voter is tested as any model."""
    module, _ = watched(experiment(C=4, rounds=2), rounds=2)
    voters = module.experiment.method.voters(module.state)
    environment, network = module.environment, module.environment.network().eval()
    data, total = environment.data, torch.zeros(())
    images = (data.test_images_NCHW.float() / 255 - data.mean[0]) / data.std[0]
    with torch.no_grad():
        for weights in voters:
            network.load_state_dict(weights)
            total = total + network(images).softmax(dim=1)
    accuracy = (total.argmax(dim=1) == data.test_labels_N).double().mean()
    assert len(voters) == 4 and module.metrics["test/accuracy"] == pytest.approx(float(accuracy), abs=1e-9)
    one = module.evaluator.measure(voters[:1])
    assert module.evaluator.measure([voters[0], voters[0]]) == pytest.approx(one, rel=1e-5)
