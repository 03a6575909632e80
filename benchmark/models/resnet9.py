"""Define ResNet-9, which SSFL trains in the setting of FedMatch (Table 3).

Source: SSFL, Table 3; released models/resnet9.py:28-63. It has 6,575,370 parameters with GN(32) or BN, 3 channels and
10 classes. Unlike in ResNet-18, the convolutions have a bias before a norm, and a ReLU precedes the addition instead of
following it. With `norm="none"`, it has 6,570,890 parameters; FedMatch's network has no norm and no bias, and
6,568,640.

Deviation: the released file pools over a fixed 4x4 window at the end. This network pools over the whole map, which is
the same for 32x32 images and also accepts other sizes.
"""

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier
from benchmark.models.norms import Norm


class ConvBlock(nn.Module):
    """conv3x3 with bias, norm, ReLU, and, if `pool`, max-pool 2."""

    def __init__(self, channels_in: int, channels_out: int, norm: Norm, *, pool: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1)
        self.norm = norm(channels_out)
        self.pool: nn.Module = nn.MaxPool2d(2) if pool else nn.Identity()

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """Return a map with `channels_out` channels, and half of the rows and columns if the block pools."""
        return self.pool(torch.relu(self.norm(self.conv(hidden_NCHW))))


class ResNet9(Classifier):
    """ResNet-9, with blocks of 64 channels; 128, pooled; two residual of 128; 256, pooled; 512, pooled; two residual of
    512; then the maximum over the map and fc D.
    """

    norm_channels = (64, 128, 256, 512)
    smallest_side = 8

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__()
        self.prepare = ConvBlock(image_shape[0], 64, norm)
        self.stage1 = ConvBlock(64, 128, norm, pool=True)
        self.residual1 = nn.Sequential(ConvBlock(128, 128, norm), ConvBlock(128, 128, norm))
        self.stage2 = ConvBlock(128, 256, norm, pool=True)
        self.stage3 = ConvBlock(256, 512, norm, pool=True)
        self.residual3 = nn.Sequential(ConvBlock(512, 512, norm), ConvBlock(512, 512, norm))
        # amax would distribute the gradient among equal values, such as zeros after ReLU; max-pooling does not.
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.fc = nn.Linear(512, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = self.stage1(self.prepare(images_NCHW))
        hidden_NCHW = self.stage2(hidden_NCHW + self.residual1(hidden_NCHW))
        hidden_NCHW = self.stage3(hidden_NCHW)
        hidden_NCHW = hidden_NCHW + self.residual3(hidden_NCHW)
        return torch.flatten(self.pool(hidden_NCHW), start_dim=1)
