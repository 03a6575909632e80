"""HeteroFL: slices and means by hand, scaler and mask."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.methods.heterofl import averaged, leading_slices, masked, scaler
from tests.federated.helpers import agree

# Two hidden units, three inputs, two classes.
WEIGHTS = {
    "fc1.weight": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "fc1.bias": torch.tensor([7.0, 8.0]),
    "fc2.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "fc2.bias": torch.tensor([5.0, 6.0]),
}


def test_means_where_slices_overlap_by_hand():
    """Average a full network of 10 and a half network of 20, both from clients of class 0.

    The shared unit is 15, the other one 10, and class 1 does not change. If the second client has class 1, the shared
    entry of its row is 20.
    """
    ten = {name: torch.full_like(value, 10.0) for name, value in WEIGHTS.items()}
    twenty = {name: torch.full_like(value, 20.0) for name, value in leading_slices(WEIGHTS, 0.5).items()}
    zero, one = torch.tensor([0]), torch.tensor([1])
    mean = averaged(WEIGHTS, [(ten, zero), (twenty, zero)])
    assert mean["fc1.weight"].tolist() == [[15.0] * 3, [10.0] * 3] and mean["fc1.bias"].tolist() == [15.0, 10.0]
    assert mean["fc2.weight"].tolist() == [[15.0, 10.0], [3.0, 4.0]] and mean["fc2.bias"].tolist() == [15.0, 6.0]
    mean = averaged(WEIGHTS, [(ten, zero), (twenty, one)])
    assert mean["fc2.weight"].tolist() == [[10.0, 10.0], [20.0, 4.0]] and mean["fc2.bias"].tolist() == [10.0, 20.0]
    assert agree(averaged(WEIGHTS, []), WEIGHTS)


def test_classes_that_a_client_lacks_have_logits_of_zero():
    """Expect exp(2) / (exp(2) + exp(0) + exp(-1)), whatever the logit of class 1 is."""
    logits_ND = masked(torch.tensor([[2.0, 9.0, -1.0]]), torch.tensor([0, 2]))
    assert logits_ND.tolist() == [[2.0, 0.0, -1.0]]
    assert float(F.cross_entropy(logits_ND, torch.tensor([0]))) == pytest.approx(0.1698, abs=1e-4)


def test_the_scaler_divides_behind_every_layer_but_the_last():
    """Compare two linear layers without bias: at width 1/4 the output is four times as large.

    After the `with` block the output is the same as before.
    """
    network = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False))
    images = torch.ones(1, 3)
    with torch.no_grad():
        plain = network(images)
        with scaler(network, 0.25):
            scaled = network(images)
        torch.testing.assert_close(scaled, 4 * plain)
        assert torch.equal(network(images), plain)
