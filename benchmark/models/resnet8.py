"""ResNet-8, the smallest of the CIFAR ResNets: what federated work on 32 x 32 images is timed with (`fssl bench`).

Source: He et al. 2016, section 4.2, with n = 1 (6n + 2 = 8 layers): a stem of 16 channels and three stages of one
basic block, 16, 32, 64 channels. 78,042 parameters with GN or BN, 3 channels and 10 classes.

Departure. Where a block changes the shape, its shortcut is a 1x1 convolution and a norm, as in ResNet-18 here (option B
of the paper's section 3.3); the paper's CIFAR networks pad with zero channels (option A).
"""

import torch
from torch import Tensor, nn

from benchmark.models.norm import Norm
from benchmark.models.resnet18 import ResidualBlock

# N images, C channels, H rows, W columns, D classes


class ResNet8(nn.Module):
    """Stem of 16 channels, three blocks (16, 32, 64 channels; strides 1, 2, 2), mean over the map, fc D."""

    norm_channels = (16, 32, 64)
    smallest_side = 1

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(image_shape[0], 16, kernel_size=3, padding=1, bias=False)
        self.norm1 = norm(16)
        self.blocks = nn.Sequential(
            ResidualBlock(16, 16, 1, norm), ResidualBlock(16, 32, 2, norm), ResidualBlock(32, 64, 2, norm)
        )
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images_NCHW: Tensor) -> Tensor:
        """logits_ND."""
        hidden_NCHW = self.blocks(torch.relu(self.norm1(self.conv1(images_NCHW))))
        return self.fc(hidden_NCHW.mean(dim=(2, 3)))
