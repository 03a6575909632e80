"""Accuracy and loss of a network on a set of images, in evaluation mode.

Legend: N images, C channels, H W pixels, D classes.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from benchmark.data.augment import make_views
from benchmark.federated.environment import Environment, Part
from benchmark.federated.local import load
from benchmark.losses.supervised import supervised_loss
from benchmark.methods.protocol import SERVER, Weights
from benchmark.streams import torch_stream

CHUNK = 500  # images a forward pass


@torch.no_grad()
def logits_of(network: nn.Module, environment: Environment, part: Part, view: str = "plain") -> Tensor:
    """logits_ND of the part's images, in the part's order; the network is left in the mode it was in."""
    was_training = network.training
    network.eval()
    data = environment.data
    draw = torch_stream(environment.experiment.seed, "evaluation", view)
    pieces = []
    for at_N in part.positions_N.split(CHUNK):
        images = part.images_NCHW[at_N]
        views = make_views(images, (view,), environment.augmentation, data.mean, data.std, draw)
        pieces.append(network(views[view]))
    network.train(was_training)
    return torch.cat(pieces)


class Evaluator:
    """Measures weights on the test set, or on the labels held out at the server. Holds a network of its own."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._network = environment.network()
        data = environment.data
        if environment.experiment.evaluation.validation:
            self._prefix, self._part = "validation", environment.part(SERVER, "validation")
        else:
            self._prefix = "test"
            self._part = Part(
                images_NCHW=data.test_images_NCHW,
                positions_N=torch.arange(len(data.test_labels_N)),
                labels_N=data.test_labels_N,
                truth_N=None,
            )

    def measure(self, weights: Weights) -> Mapping[str, float]:
        """`<set>/accuracy` (fraction) and `<set>/loss` (mean cross-entropy, nats)."""
        load(self._network, weights)
        logits_ND = logits_of(self._network, self._environment, self._part)
        assert self._part.labels_N is not None
        labels_N = self._part.labels_N[self._part.positions_N]
        accuracy = (logits_ND.argmax(dim=1) == labels_N).double().mean()
        return {
            f"{self._prefix}/accuracy": float(accuracy),
            f"{self._prefix}/loss": float(supervised_loss(logits_ND, labels_N)),
        }
