"""What every network here is: features of images, and a last linear layer of them. A network's tensors as lists."""

from typing import ClassVar, NamedTuple

from torch import Tensor, nn

ImageShape = tuple[int, int, int]  # channels, rows, columns

# In all networks: N images, C channels, H rows, W columns, F features, D classes


class Classifier(nn.Module):
    """A network whose logits are its head's, of its features."""

    head: ClassVar[str] = "fc"  # the name of the last linear layer

    def features(self, images_NCHW: Tensor) -> Tensor:
        """features_NF, what the head sees."""
        raise NotImplementedError(f"{type(self).__name__} has no features")

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """logits_ND."""
        return self.get_submodule(self.head)(self.features(images_NCHW))


class Tensors(NamedTuple):
    """A network's own tensors, not copies."""

    parameters: list[Tensor]
    floats: list[Tensor]  # parameters and running statistics
    counters: list[Tensor]  # of batches


def tensors_of(network: nn.Module) -> Tensors:
    """The tensors of a network that is moved to no other device any more.

    They are found once: a walk over its modules takes as long as launching many operations.
    """
    held = vars(network)
    if "tensors" not in held:
        everything = [*network.parameters(), *network.buffers()]
        held["tensors"] = Tensors(
            parameters=[*network.parameters()],
            floats=[tensor for tensor in everything if tensor.is_floating_point()],
            counters=[tensor for tensor in everything if not tensor.is_floating_point()],
        )
    return held["tensors"]
