"""Define the CNN that SSFL trains on EMNIST.

Source: SSFL, appendix A (after Reddi et al. 2021); released models/EMNIST_model.py:9-24, with the same order: pooling,
then dropout, then ReLU. It has 1,204,655 parameters with 28x28x1 images, 47 classes and no norm.

Deviations: reports/ssfl/departures.md, entry 9; a norm precedes each ReLU of a convolution. Reddi et al. have a second
dropout (.5) before the last layer; the released file and this network do not.
"""

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier
from benchmark.models.norms import Norm


class EmnistCnn(Classifier):
    """conv3x3 C->32, norm, ReLU; conv3x3 32->64, max-pool 2, Dropout2d, norm, ReLU; fc 128, ReLU; fc D.

    The convolutions are not padded, so that 28 pixels become 26, 24, and 12 after pooling, with 9216 = 64 x 12 x 12
    values before fc 128.
    """

    head = "fc2"
    norm_channels = (32, 64)
    smallest_side = 6

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm, dropout: float = 0.0) -> None:
        super().__init__()
        channels, rows, columns = image_shape
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=3)
        self.norm1 = norm(32)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3)
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout2d(dropout)
        self.norm2 = norm(64)
        self.fc1 = nn.Linear(64 * ((rows - 4) // 2) * ((columns - 4) // 2), 128)
        self.fc2 = nn.Linear(128, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = torch.relu(self.norm1(self.conv1(images_NCHW)))
        hidden_NCHW = self.dropout(self.pool(self.conv2(hidden_NCHW)))
        hidden_NCHW = torch.relu(self.norm2(hidden_NCHW))
        return torch.relu(self.fc1(torch.flatten(hidden_NCHW, start_dim=1)))
