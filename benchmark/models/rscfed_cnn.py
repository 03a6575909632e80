"""Define the CNN that RSCFed trains on SVHN and CIFAR-100.

It has two convolutions, two hidden layers and a head of three layers. Source: RSCFed, section 4.1; released
networks/models.py:14-85. With 3x32x32 images, it has 92,626 parameters for 10 classes and 115,756 for 100. It has no
norm, so that only `norm="none"` is accepted.

Deviations: reports/rscfed/departures.md, entry 20. In addition, images may have any size.
"""

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier
from benchmark.models.norms import Norm


class RscfedCnn(Classifier):
    """Twice (conv5x5, ReLU, max-pool 2) with 6 and 16 channels; fc 120, 84, 84, a ReLU after each; fc 256; fc D.

    The convolutions are not padded, so that 32 pixels become 28, 14, 10 and 5, with 400 = 16 x 5 x 5 values before
    fc 120. ReLU follows pooling, which is the same function with the same gradient, on a quarter of the values. As
    in the released code, there is no ReLU between fc4 and fc5, which together are a linear map of rank at most 84.
    """

    head = "fc5"
    norm_channels: tuple[int, ...] = ()
    smallest_side = 16

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__()
        channels, rows, columns = image_shape
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(16 * _side_left(rows) * _side_left(columns), 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 84)
        self.fc4 = nn.Linear(84, 256)
        self.fc5 = nn.Linear(256, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = torch.relu(self.pool(self.conv1(images_NCHW)))
        hidden_NCHW = torch.relu(self.pool(self.conv2(hidden_NCHW)))
        hidden_NF = torch.relu(self.fc1(torch.flatten(hidden_NCHW, start_dim=1)))
        hidden_NF = torch.relu(self.fc3(torch.relu(self.fc2(hidden_NF))))
        return self.fc4(hidden_NF)


def _side_left(side: int) -> int:
    """Return the number of pixels that remain of a side after both convolutions and both poolings."""
    return ((side - 4) // 2 - 4) // 2
