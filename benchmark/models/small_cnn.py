"""Define two networks that train in seconds on two CPU cores.

The `laptop` and `demo` profiles use them. They are not from a paper; they are this suite's surrogates for the papers'
networks, and every page with their results has a note about it. SmallCnn is for 28x28 images (207k parameters with
GN(4), 1 channel, 10 classes), and TinyCnn is for scikit-learn's 8x8 digits. They are used with GN(4), because 16
channels cannot have the papers' 32 groups.

Pooling comes directly after its convolution, before norm and ReLU. Pooling before ReLU is exactly the same function as
after it, because max relu(x) = relu(max x), and ReLU then processes a quarter of the values. Pooling before the norm is
a different function; this order is part of the definition of the networks.

A width below 1 creates HeteroFL's sub-network (Diao et al. 2021, section 3). It has this share of the hidden channels
and of the hidden layer, rounded up to a multiple of the number of groups of a group norm. Features are flattened
channel by channel, so that every tensor of a narrower network has the shape of a leading slice of the full tensor.
"""

import math

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier, ImageShape
from benchmark.models.norms import Norm


def narrowed(full: int, width: float, multiple: int = 1) -> int:
    """Return the share `width` of `full` units, rounded up to a multiple of `multiple`, and at least one multiple.

    The result is `full` for width 1 if `multiple` divides it. Rounding to nine decimals first ensures that
    .55 x 20 = 11.000000000000002 becomes 11.
    """
    return multiple * math.ceil(round(full * width / multiple, 9) or 1)


class SmallCnn(Classifier):
    """Twice (conv3x3, max-pool 2, norm, ReLU) with 16 and 32 channels; fc 128, ReLU; fc D.

    The convolutions are padded by 1, so that 28 pixels become 14 and 7, with 1568 = 32 x 7 x 7 values before fc 128.
    """

    head = "fc2"
    norm_channels = (16, 32)
    smallest_side = 4
    hidden = 128
    pools_twice = True

    def __init__(
        self, image_shape: ImageShape, num_classes: int, norm: Norm, width: float = 1.0, channel_multiple: int = 1
    ) -> None:
        super().__init__()
        channels, rows, columns = image_shape
        first, second = (narrowed(full, width, channel_multiple) for full in self.norm_channels)
        hidden = narrowed(self.hidden, width)
        shrink = 4 if self.pools_twice else 2
        self.conv1 = nn.Conv2d(channels, first, kernel_size=3, padding=1)
        self.norm1 = norm(first)
        self.conv2 = nn.Conv2d(first, second, kernel_size=3, padding=1)
        self.norm2 = norm(second)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(second * (rows // shrink) * (columns // shrink), hidden)
        self.fc2 = nn.Linear(hidden, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = self.conv1(images_NCHW)
        hidden_NCHW = torch.relu(self.norm1(self.pool(hidden_NCHW) if self.pools_twice else hidden_NCHW))
        hidden_NCHW = torch.relu(self.norm2(self.pool(self.conv2(hidden_NCHW))))
        return torch.relu(self.fc1(torch.flatten(hidden_NCHW, start_dim=1)))


class TinyCnn(SmallCnn):
    """conv3x3 16, norm, ReLU; conv3x3 32, max-pool 2, norm, ReLU; fc 64, ReLU; fc D.

    The convolutions are padded by 1, so that 8 pixels stay 8 and become 4, with 512 = 32 x 4 x 4 values before fc 64.
    """

    smallest_side = 2
    hidden = 64
    pools_twice = False
