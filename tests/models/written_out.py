"""Forward passes of networks written out in functions, from their descriptions alone.

N images, C channels, H rows, W columns
"""

import torch
import torch.nn.functional as F
from torch import Tensor

HEAD = "flatten fc1 relu fc2"
TINY = f"conv1 norm1 relu conv2 pool norm2 relu {HEAD}"
SMALL = f"conv1 pool norm1 relu conv2 pool norm2 relu {HEAD}"
EMNIST = TINY  # EMNIST_model.py:9-24, with norms where it declares them
FEDAVG = f"conv1 norm1 relu pool conv2 norm2 relu pool {HEAD}"
RSCFED = f"conv1 relu pool conv2 relu pool {HEAD} relu fc3 relu fc4 fc5"  # models.py:14-85
RESNET9 = " ".join(  # resnet9.py:28-63, with its fixed 4x4 window
    f"[ {name}0.conv {name}0.norm relu {name}1.conv {name}1.norm relu ]"
    if name.startswith("residual")
    else f"{name}.conv {name}.norm relu {'' if name == 'prepare' else 'pool'}"
    for name in ("prepare", "stage1", "residual1.", "stage2", "stage3", "residual3.")
)
RESNET9 += " pool pool flatten fc"
VGG11 = " ".join(  # vgg.py:28-74 with norms
    f"convs.{layer} norms.{layer} relu {'even pool' if layer in (0, 1, 3, 5, 7) else ''}" for layer in range(8)
)
VGG11 += " flatten fc1 norm relu fc2 fc3"


def forward(description: str, weights: dict[str, Tensor], images_NCHW: Tensor, padding: int = 1, norm: int = 4):
    """Layer by layer; "[" begins a shortcut that "]" adds. A norm has so many groups, or 0: the batch's own statistics;
    one that has no weights is left out. "even": what a pool lacks in its last window is the least."""
    hidden, shortcuts = images_NCHW, list[Tensor]()
    for word in description.split():
        match word:
            case "relu":
                hidden = F.relu(hidden)
            case "even":
                hidden = F.pad(hidden, (0, hidden.shape[3] % 2, 0, hidden.shape[2] % 2), value=-torch.inf)
            case "pool":
                hidden = F.max_pool2d(hidden, 2)
            case "flatten":
                hidden = hidden.reshape(len(hidden), -1)
            case "[":
                shortcuts.append(hidden)
            case "]":
                hidden = hidden + shortcuts.pop()
            case _ if f"{word}.weight" in weights:
                layer = weights[f"{word}.weight"], weights[f"{word}.bias"]
                if layer[0].dim() == 4:
                    hidden = F.conv2d(hidden, *layer, padding=padding)
                elif layer[0].dim() == 2:
                    hidden = hidden @ layer[0].T + layer[1]
                elif norm:
                    hidden = F.group_norm(hidden, norm, *layer)
                else:
                    hidden = F.batch_norm(hidden, None, None, *layer, training=True)
            case _:
                assert "norm" in word
    return hidden


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
