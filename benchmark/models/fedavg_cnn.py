"""Define the CNN of FedAvg's experiments, for SemiFL's Table 3 ("CNN").

McMahan et al. Communication-Efficient Learning of Deep Networks from Decentralized Data. AISTATS 2017, section 3: two
5x5 convolutions of 32 and 64 channels, each followed by a 2x2 max-pool, a layer of 512 units with ReLU, and the output.
For images of 3 x 32 x 32 and ten classes, it has 2,156,490 parameters, which are 8.23 MB of 2^20 bytes; SemiFL reports
2.2 M and 8.2 MB.

Deviation: FedAvg's CIFAR-10 runs used the network of TensorFlow's tutorial; SemiFL does not specify its network.
"""

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier
from benchmark.models.norms import Norm


class FedAvgCnn(Classifier):
    """Twice (conv5x5, norm, ReLU, max-pool 2) with 32 and 64 channels; fc 512, ReLU; fc D. Padding keeps the size."""

    head = "fc2"
    norm_channels = (32, 64)
    smallest_side = 4

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__()
        channels, rows, columns = image_shape
        self.conv1 = nn.Conv2d(channels, 32, kernel_size=5, padding=2)
        self.norm1 = norm(32)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=5, padding=2)
        self.norm2 = norm(64)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(64 * (rows // 4) * (columns // 4), 512)
        self.fc2 = nn.Linear(512, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = self.pool(torch.relu(self.norm1(self.conv1(images_NCHW))))
        hidden_NCHW = self.pool(torch.relu(self.norm2(self.conv2(hidden_NCHW))))
        return torch.relu(self.fc1(torch.flatten(hidden_NCHW, start_dim=1)))
