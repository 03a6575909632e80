"""Define the base class of the suite's networks, which compute features of images and apply a last linear layer."""

from typing import ClassVar

from torch import Tensor, nn

ImageShape = tuple[int, int, int]  # channels, rows, columns

# Shapes in all networks: N images, C channels, H rows, W columns, F features, D classes


class Classifier(nn.Module):
    """A network that computes its logits by applying its head to its features."""

    head: ClassVar[str] = "fc"  # name of the last linear layer

    def features(self, images_NCHW: Tensor) -> Tensor:
        """Return features_NF, the input of the head."""
        raise NotImplementedError(f"{type(self).__name__} has no features")

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """Return logits_ND."""
        return self.get_submodule(self.head)(self.features(images_NCHW))
