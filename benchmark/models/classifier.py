"""Define what every network of the suite is: features of images, and a last linear layer of them."""

from typing import ClassVar

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
