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


def resnet_block(index: int) -> str:
    """Of four pre-activated ones a stage (wresnet.py:9-60); the first begins its shortcut after norm and ReLU."""
    name, first, stride = f"blocks.{index}", not index % 4, ":2" if index in (4, 8) else ""
    begin = f"{name}.norm1 relu [" if first else f"[ {name}.norm1 relu"
    work = f"{name}.conv1{stride} {name}.norm2 relu {name}.conv2"
    return f"{begin} {work} {f']{name}.projection{stride}' if first else ']'}"


WRESNET = f"conv1 {' '.join(map(resnet_block, range(12)))} norm relu mean fc"


def forward(
    description: str, weights: dict[str, Tensor], images_NCHW: Tensor, padding: int = 1, norm: int = 4
) -> Tensor:
    """Layer by layer; "[" begins a shortcut that "]" adds, or "]NAME" after that layer; ":2" is a stride. A norm has so
    many groups, or 0: the batch's own statistics; one that has no weights is left out. "even": what a pool lacks in its
    last window is the least."""

    def layer(name: str, hidden: Tensor) -> Tensor:
        name, _, stride = name.partition(":")
        weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")
        if weight.dim() == 4:
            side = padding if weight.shape[-1] > 1 else 0
            return F.conv2d(hidden, weight, bias, stride=int(stride or 1), padding=side)
        if weight.dim() == 2:
            return F.linear(hidden, weight, bias)
        if norm:
            return F.group_norm(hidden, norm, weight, bias)
        return F.batch_norm(hidden, None, None, weight, bias, training=True)

    hidden, shortcuts = images_NCHW, list[Tensor]()
    for word in description.split():
        match word:
            case "mean":
                hidden = hidden.mean(dim=(2, 3))
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
            case _ if word.startswith("]"):
                hidden = hidden + (layer(word[1:], shortcuts.pop()) if word[1:] else shortcuts.pop())
            case _ if "norm" not in word or f"{word}.weight" in weights:
                hidden = layer(word, hidden)
    return hidden
