"""Forward passes of networks written out in functions, from their descriptions alone.

N images, C channels, H rows, W columns
"""

import torch.nn.functional as F
from torch import Tensor


def released_emnist_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (EMNIST_model.py:9-24), evaluation mode, written out in functions."""
    hidden = F.relu(F.conv2d(images_NCHW, weights["conv1.weight"], weights["conv1.bias"]))
    hidden = F.conv2d(hidden, weights["conv2.weight"], weights["conv2.bias"])
    hidden = F.relu(F.max_pool2d(hidden, 2))
    hidden = hidden.reshape(len(hidden), -1)
    hidden = F.relu(hidden @ weights["fc1.weight"].T + weights["fc1.bias"])
    return hidden @ weights["fc2.weight"].T + weights["fc2.bias"]


def resnet8_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """He et al.'s figure 3 with option B: y = ReLU(F(x) + shortcut(x)), where F is conv, norm, ReLU, conv, norm."""

    def normed_conv(hidden: Tensor, conv: str, norm: str, stride: int = 1) -> Tensor:
        kernel = weights[f"{conv}.weight"]
        hidden = F.conv2d(hidden, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        return F.group_norm(hidden, 8, weights[f"{norm}.weight"], weights[f"{norm}.bias"])

    hidden = F.relu(normed_conv(images_NCHW, "conv1", "norm1"))
    for index, stride in enumerate((1, 2, 2)):
        block = f"blocks.{index}"
        inside = F.relu(normed_conv(hidden, f"{block}.conv1", f"{block}.norm1", stride))
        inside = normed_conv(inside, f"{block}.conv2", f"{block}.norm2")
        if index:
            hidden = normed_conv(hidden, f"{block}.shortcut.0", f"{block}.shortcut.1", stride)
        hidden = F.relu(inside + hidden)
    return F.linear(hidden.mean(dim=(2, 3)), weights["fc.weight"], weights["fc.bias"])


def small_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """laptop_setting's net "flat": conv, max-pool, GN(4), ReLU, twice; fc, ReLU, fc."""
    hidden = images_NCHW
    for layer in "12":
        hidden = F.conv2d(hidden, weights[f"conv{layer}.weight"], weights[f"conv{layer}.bias"], padding=1)
        hidden = F.max_pool2d(hidden, 2)
        hidden = F.relu(F.group_norm(hidden, 4, weights[f"norm{layer}.weight"], weights[f"norm{layer}.bias"]))
    hidden = F.relu(F.linear(hidden.flatten(1), weights["fc1.weight"], weights["fc1.bias"]))
    return F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])


def tiny_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The digits' net: conv, GN(4), ReLU; conv, max-pool, GN(4), ReLU; fc, ReLU, fc."""
    hidden = F.conv2d(images_NCHW, weights["conv1.weight"], weights["conv1.bias"], padding=1)
    hidden = F.relu(F.group_norm(hidden, 4, weights["norm1.weight"], weights["norm1.bias"]))
    hidden = F.max_pool2d(F.conv2d(hidden, weights["conv2.weight"], weights["conv2.bias"], padding=1), 2)
    hidden = F.relu(F.group_norm(hidden, 4, weights["norm2.weight"], weights["norm2.bias"]))
    hidden = F.relu(F.linear(hidden.flatten(1), weights["fc1.weight"], weights["fc1.bias"]))
    return F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])
