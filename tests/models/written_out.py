"""Forward passes of networks written out in functions, from their descriptions alone.

N images, C channels, H rows, W columns
"""

import torch
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


def tiny_forward(weights: dict[str, Tensor], images_NCHW: Tensor, norm: str = "gn") -> Tensor:
    """The digits' net: conv, GN(4), ReLU; conv, max-pool, GN(4), ReLU; fc, ReLU, fc. Or with batch norm in training."""

    def normal(hidden: Tensor, layer: int) -> Tensor:
        scale_and_shift = weights[f"norm{layer}.weight"], weights[f"norm{layer}.bias"]
        if norm == "gn":
            return F.group_norm(hidden, 4, *scale_and_shift)
        return F.batch_norm(hidden, None, None, *scale_and_shift, training=True)

    hidden = F.conv2d(images_NCHW, weights["conv1.weight"], weights["conv1.bias"], padding=1)
    hidden = F.relu(normal(hidden, 1))
    hidden = F.max_pool2d(F.conv2d(hidden, weights["conv2.weight"], weights["conv2.bias"], padding=1), 2)
    hidden = F.relu(normal(hidden, 2))
    hidden = F.relu(F.linear(hidden.flatten(1), weights["fc1.weight"], weights["fc1.bias"]))
    return F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])


def wresnet_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (wresnet.py:9-60) at batch statistics, with its `equal_inout` branches."""

    def active(hidden: Tensor, norm: str) -> Tensor:
        scale, shift = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
        mean, var = hidden.mean(dim=(0, 2, 3)), hidden.var(dim=(0, 2, 3), unbiased=False)
        normalised = (hidden - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return F.relu(normalised * scale[:, None, None] + shift[:, None, None])

    hidden = F.conv2d(images_NCHW, weights["conv1.weight"], padding=1)
    for index in range(12):
        stride = 2 if index in (4, 8) else 1
        name, equal_inout = f"blocks.{index}", index not in (0, 4, 8)
        out = active(hidden, f"{name}.norm1")
        if not equal_inout:
            hidden = out
        inner = F.conv2d(out, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = F.conv2d(active(inner, f"{name}.norm2"), weights[f"{name}.conv2.weight"], padding=1)
        if not equal_inout:
            hidden = F.conv2d(hidden, weights[f"{name}.projection.weight"], stride=stride)
        hidden = hidden + inner
    pooled = F.adaptive_avg_pool2d(active(hidden, "norm"), 1).flatten(1)
    return pooled @ weights["fc.weight"].T + weights["fc.bias"]


def resnet9_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (resnet9.py:28-63) with its fixed 4x4 window."""

    def block(hidden: Tensor, name: str) -> Tensor:
        hidden = F.conv2d(hidden, weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"], padding=1)
        return F.relu(F.group_norm(hidden, 32, weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]))

    hidden = block(images_NCHW, "prepare")
    hidden = F.max_pool2d(block(hidden, "stage1"), 2)
    hidden = block(block(hidden, "residual1.0"), "residual1.1") + hidden
    hidden = F.max_pool2d(block(hidden, "stage2"), 2)
    hidden = F.max_pool2d(block(hidden, "stage3"), 2)
    hidden = block(block(hidden, "residual3.0"), "residual3.1") + hidden
    return F.linear(F.max_pool2d(hidden, 4).flatten(1), weights["fc.weight"], weights["fc.bias"])


def vgg11_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (vgg.py:28-74) with group norms; a pool's last window is padded with the least."""

    def norm(hidden: Tensor, name: str) -> Tensor:
        return F.relu(F.group_norm(hidden, 32, weights[f"{name}.weight"], weights[f"{name}.bias"]))

    hidden, layer = images_NCHW, 0
    for step in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if step == "M":
            even = F.pad(hidden, (0, hidden.shape[3] % 2, 0, hidden.shape[2] % 2), value=-torch.inf)
            hidden = F.max_pool2d(even, 2)
            continue
        hidden = F.conv2d(hidden, weights[f"convs.{layer}.weight"], weights[f"convs.{layer}.bias"], padding=1)
        assert hidden.shape[1] == step
        hidden, layer = norm(hidden, f"norms.{layer}"), layer + 1
    hidden = norm(F.linear(hidden.flatten(1), weights["fc1.weight"], weights["fc1.bias"]), "norm")
    hidden = F.linear(hidden, weights["fc2.weight"], weights["fc2.bias"])
    return F.linear(hidden, weights["fc3.weight"], weights["fc3.bias"])


def rscfed_forward(weights: dict[str, Tensor], images_NCHW: Tensor) -> Tensor:
    """The released forward pass (models.py:14-85): ReLU before pooling, none between the last two layers."""
    hidden = images_NCHW
    for layer in "12":
        hidden = F.relu(F.conv2d(hidden, weights[f"conv{layer}.weight"], weights[f"conv{layer}.bias"]))
        hidden = F.max_pool2d(hidden, 2, 2)
    hidden = hidden.flatten(1)
    for layer in "123":
        hidden = F.relu(F.linear(hidden, weights[f"fc{layer}.weight"], weights[f"fc{layer}.bias"]))
    hidden = F.linear(hidden, weights["fc4.weight"], weights["fc4.bias"])
    return F.linear(hidden, weights["fc5.weight"], weights["fc5.bias"])
