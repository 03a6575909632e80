"""Define WideResNet 28-2, which SemiFL trains on CIFAR-10 and SVHN.

Source: SemiFL, section 4.1; released models/wresnet.py:54-112. It has 1,467,610 parameters with BN, 3 channels and 10
classes. With pre-activation, norm and ReLU precede each convolution. If a block changes the shape, its shortcut is
a 1x1 convolution of the activated input; if not, the shortcut is the input itself, before norm and ReLU.

Initial weights: 3x3 convolutions are drawn from N(0, 2 / (9 x channels out)), and 1x1 convolutions from
N(0, 2 / channels out). The last bias is 0.

Deviation: the released file derives the number of stages from the image's side: three for 32 pixels, two for 28, and
four for 96. This network always has three stages, so that its name identifies one network.
"""

import torch
from torch import Tensor, nn

from benchmark.models.classifier import Classifier
from benchmark.models.norms import Norm

BLOCKS_PER_STAGE = 4  # (28 - 4) / 6 in Zagoruyko and Komodakis 2016


class PreActivationBlock(nn.Module):
    """norm, ReLU, conv3x3, norm, ReLU, conv3x3, plus the shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = norm(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm2 = norm(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, kernel_size=3, padding=1, bias=False)
        self.projection: nn.Module | None = None
        if stride != 1 or channels_in != channels_out:
            self.projection = nn.Conv2d(channels_in, channels_out, kernel_size=1, stride=stride, bias=False)

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """Return a map with `channels_out` channels, and rows and columns divided by the stride."""
        active_NCHW = torch.relu(self.norm1(hidden_NCHW))
        shortcut_NCHW = hidden_NCHW if self.projection is None else self.projection(active_NCHW)
        return shortcut_NCHW + self.conv2(torch.relu(self.norm2(self.conv1(active_NCHW))))


class WResNet28x2(Classifier):
    """Stem of 16 channels, three stages of four blocks (32, 64, 128 channels), norm, ReLU, mean over the map, fc D."""

    norm_channels = (16, 32, 64, 128)
    smallest_side = 1

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(image_shape[0], 16, kernel_size=3, padding=1, bias=False)
        blocks = []
        channels_in = 16
        for channels, first_stride in ((32, 1), (64, 2), (128, 2)):
            for stride in (first_stride, *[1] * (BLOCKS_PER_STAGE - 1)):
                blocks.append(PreActivationBlock(channels_in, channels, stride, norm))
                channels_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.norm = norm(128)
        self.fc = nn.Linear(128, num_classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = self.blocks(self.conv1(images_NCHW))
        return torch.relu(self.norm(hidden_NCHW)).mean(dim=(2, 3))
