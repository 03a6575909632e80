"""Define VGG11 with norms, for STL-10 (SSFL Table I.1).

Source: SSFL appendix I only names "VGG11". Of the two versions in the released code, this is models/vgg.py:7-74, which
is for 96 x 96 images: eight convolutions, pools that round up, 4,608 -> 512 -> 128 -> D. It has 11,653,770 parameters
with a norm for 3 channels of 96 x 96 pixels and 10 classes.

Deviations: the released file only has batch norm. This network accepts any norm, as Table I.1's "CRL with GN" requires,
and a norm also follows the first fully connected layer; its 512 outputs are treated as a map of one pixel. The
released file only accepts 96 x 96 images. This network's first fully connected layer fits the last map of any image
size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.models.classifier import Classifier
from benchmark.models.norms import Norm

_CHANNELS = (64, 128, 256, 256, 512, 512, 512, 512)
_POOLED = (0, 1, 3, 5, 7)  # convolutions that are followed by a pool


class Vgg11(Classifier):
    """Eight times conv3x3, norm, ReLU, with five max-pools; fc 512, norm, ReLU; fc 128 and fc D without a ReLU."""

    head = "fc3"
    norm_channels = (64, 128, 256, 512)
    smallest_side = 1

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Norm) -> None:
        super().__init__()
        channels, rows, columns = image_shape
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for index, wider in enumerate(_CHANNELS):
            self.convs.append(nn.Conv2d(channels, wider, kernel_size=3, padding=1))
            self.norms.append(norm(wider))
            channels = wider
            if index in _POOLED:
                rows, columns = -(-rows // 2), -(-columns // 2)
        self.fc1 = nn.Linear(channels * rows * columns, 512)
        self.norm = norm(512)
        self.fc2 = nn.Linear(512, 128)
        self.fc3 = nn.Linear(128, num_classes)

    def features(self, images_NCHW: Tensor) -> Tensor:
        hidden_NCHW = images_NCHW
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            hidden_NCHW = torch.relu(norm(conv(hidden_NCHW)))
            if index in _POOLED:
                hidden_NCHW = F.max_pool2d(hidden_NCHW, 2, ceil_mode=True)
        hidden_NF = self.fc1(torch.flatten(hidden_NCHW, start_dim=1))
        hidden_NF = torch.relu(self.norm(hidden_NF[:, :, None, None])).flatten(1)
        return self.fc2(hidden_NF)
