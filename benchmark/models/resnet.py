"""Define ResNets for small images, with a 3x3 stem of stride 1 and no max-pool.

ResNet-18, which SSFL trains on CIFAR-10 and SVHN: SSFL, section 4.1; released models/resnet_gn.py:72-103. It has
11,173,962 parameters with GN(32) or BN, 3 channels and 10 classes. A norm follows every convolution, including the
shortcut's. ResNet-8, the smallest of the CIFAR ResNets, which is used for timings on 32 x 32 images: He et al. 2016,
section 4.2, with n = 1 (6n + 2 = 8 layers). It has 78,042 parameters with GN or BN, 3 channels and 10 classes.
ResNet-8x4, with four times these widths, which SAGE trains: released resnet.py:214-308. It has 1,227,594 parameters
with BN, 3 channels and 10 classes. Initial convolutions are drawn from N(0, 2 / (channels out x kernel's entries)).
ResNet-18 with RSCFed's head: RSCFed, section 4.1, "a two-layer MLP and a fully-connected layer". It has 11,564,615
parameters for the seven classes of ISIC 2018.

Deviations:
1. The released file averages over a fixed 4x4 window. These networks average over the whole map, which is the same for
   32x32 images and also accepts other sizes.
2. If a block changes the shape, ResNet-8's shortcut is also a 1x1 convolution and a norm (option B of He et al.,
   section 3.3); the paper's CIFAR networks pad with zero channels (option A).
3. A width below 1 creates HeteroFL's sub-network, as in `small_cnn`.
4. RSCFed does not specify the ReLUs of the head. This network has one only after the first layer, like the head of
   RSCFed's CNN.
"""

from typing import cast

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier, ImageShape
from benchmark.models.norms import Norm
from benchmark.models.small_cnn import narrowed


class ResidualBlock(nn.Module):
    """conv3x3, norm, ReLU, conv3x3, norm, plus the shortcut, ReLU.

    If the shape changes, the shortcut is a 1x1 convolution and a norm.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, kernel_size=3, padding=1, bias=False)
        self.norm2 = norm(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            projection = nn.Conv2d(channels_in, channels_out, kernel_size=1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(channels_out))

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """Return a map with `channels_out` channels, and rows and columns divided by the stride."""
        residual_NCHW = torch.relu(self.norm1(self.conv1(hidden_NCHW)))
        residual_NCHW = self.norm2(self.conv2(residual_NCHW))
        return torch.relu(residual_NCHW + self.shortcut(hidden_NCHW))


class ResNet18(Classifier):
    """Stem, four stages of two blocks (64, 128, 256, 512 channels), mean over the map, fc D.

    The stem has the same number of channels as the first stage; every later stage begins with stride 2.
    """

    norm_channels: tuple[int, ...] = (64, 128, 256, 512)
    smallest_side = 1
    blocks_per_stage = 2

    def __init__(
        self, image_shape: ImageShape, num_classes: int, norm: Norm, width: float = 1.0, channel_multiple: int = 1
    ) -> None:
        super().__init__()
        stages = [narrowed(channels, width, channel_multiple) for channels in self.norm_channels]
        channels_in = stages[0]
        self.conv1 = nn.Conv2d(image_shape[0], channels_in, kernel_size=3, padding=1, bias=False)
        self.norm1 = norm(channels_in)
        blocks = []
        for stage, channels in enumerate(stages):
            for block in range(self.blocks_per_stage):
                blocks.append(ResidualBlock(channels_in, channels, 2 if stage and not block else 1, norm))
                channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.fc: nn.Module = nn.Linear(channels_in, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = self.blocks(torch.relu(self.norm1(self.conv1(images_NCHW))))
        return hidden_NCHW.mean(dim=(2, 3))


class ResNet8(ResNet18):
    """ResNet-18 with three stages of one block (16, 32, 64 channels)."""

    norm_channels = (16, 32, 64)
    blocks_per_stage = 1


class ResNet8x4(ResNet8):
    """ResNet-8 with 64, 128 and 256 channels."""

    norm_channels = (64, 128, 256)

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__(image_shape, num_classes, norm)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


class ResNet18Mlp(ResNet18):
    """ResNet-18 with a head of three layers: fc 512, ReLU, fc 256, fc D."""

    head = "fc.3"

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__(image_shape, num_classes, norm)
        features = self.norm_channels[-1]
        self.fc = nn.Sequential(
            nn.Linear(features, features), nn.ReLU(), nn.Linear(features, 256), nn.Linear(256, num_classes)
        )

    def features(self, images_NCHW: Tensor) -> Tensor:
        return cast(nn.Sequential, self.fc)[:-1](super().features(images_NCHW))
