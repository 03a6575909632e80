"""Accuracy and loss of a network on a set of images, in evaluation mode.

Legend: N images, C channels, H W pixels, D classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmark.data.augment import make_views
from benchmark.federated.environment import Environment, Part
from benchmark.federated.local import load
from benchmark.federated.scores import scores
from benchmark.losses.supervised import supervised_loss
from benchmark.methods.protocol import SERVER, Weights
from benchmark.models.static_batch_norm import collecting, statistics
from benchmark.streams import torch_stream

CHUNK = 128  # images a forward pass: what a small network makes of them then still fits a core's cache


@torch.no_grad()
def logits_of(
    network: nn.Module, environment: Environment, part: Part, view: str = "plain", draw: torch.Generator | None = None
) -> Tensor:
    """logits_ND of the part's images, in the part's order; the network is left in the mode it was in."""
    was_training = network.training
    network.eval()
    pieces = [network(images_NCHW) for images_NCHW in _chunks(environment, part, view, CHUNK, draw)]
    network.train(was_training)
    return torch.cat(pieces) if pieces else torch.empty(0, environment.data.num_classes)


@torch.no_grad()
def batch_statistics(
    network: nn.Module, environment: Environment, part: Part, batch_size: int
) -> tuple[dict[str, Tensor], int]:
    """What the network's batch norms see on the part's images, in order and without augmentation: the means over
    batches by name (float64), and the number of batches. The network is left in the mode it was in."""
    was_training = network.training
    network.train()
    batches = 0
    with collecting(network):
        for images_NCHW in _chunks(environment, part, "plain", batch_size, None):
            network(images_NCHW)
            batches += 1
    network.train(was_training)
    return (statistics(network), batches) if batches else ({}, 0)


def _chunks(
    environment: Environment, part: Part, view: str, size: int, draw: torch.Generator | None
) -> Iterator[Tensor]:
    data = environment.data
    draw = torch_stream(environment.experiment.seed, "evaluation", view) if draw is None else draw
    for at_N in part.positions_N.split(size):
        if not len(at_N):
            return
        yield make_views(part.images_NCHW[at_N], (view,), environment.augmentation, data.mean, data.std, draw)[view]


class Evaluator:
    """Measures weights on the test set, or on the labels held out at the server. Holds a network of its own.

    Images and network are on `device`, logits come back to the host.
    """

    def __init__(self, environment: Environment, device: torch.device | None = None) -> None:
        device = torch.device("cpu") if device is None else device
        self._environment = environment
        self._network = environment.network().to(device)
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
        self._part = replace(self._part, images_NCHW=self._part.images_NCHW.to(device))

    def measure(self, weights: Weights) -> Mapping[str, float]:
        """`<set>/accuracy`, `/precision`, `/recall` and `/auroc` (macro, fractions; see `scores.py`) and `<set>/loss`
        (mean cross-entropy, nats)."""
        load(self._network, weights)
        logits_ND = logits_of(self._network, self._environment, self._part).cpu()
        assert self._part.labels_N is not None
        labels_N = self._part.labels_N[self._part.positions_N]
        measured = {**scores(logits_ND, labels_N), "loss": float(supervised_loss(logits_ND, labels_N))}
        return {f"{self._prefix}/{name}": value for name, value in measured.items()}
