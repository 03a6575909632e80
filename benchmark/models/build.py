"""Build the network that a `Model` names, with its initial weights."""

import copy
import inspect
import threading
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from benchmark.config import Checked, Count, ShareAbove0, ShareBelow1, Whole, added, imported, nearest
from benchmark.errors import ConfigError, one_line
from benchmark.models.classifier import Classifier, ImageShape
from benchmark.models.norms import NORMS, require_groups_divide
from benchmark.streams import DrawingFrom, apart, stream_seed

# README.md of this folder describes the constructor. The suite's networks may also have a width, a share of the hidden
# units.
NETWORKS: Mapping[str, type[Classifier]] = {
    name: imported(f"benchmark.models.{place}", "network")
    for name, place in tomllib.loads(Path(__file__).with_name("networks.toml").read_text()).items()
}

_OWN_NETWORKS = threading.Lock()  # locked while a custom network is built


@dataclass(frozen=True, kw_only=True)
class Model(Checked):
    """A network and its normalisation, which are part of the cell key.

    Raise ConfigError for a network that is unknown or cannot be imported, for a group count that does not divide the
    network's channels, and for a norm, dropout or width that the network does not have: a setting without effect must
    not create a different cell.
    """

    network: str  # a name of NETWORKS, or module:Class
    # Group, instance, layer and batch norm; sbn: static batch norm, of SemiFL and HeteroFL.
    norm: Literal["gn", "in", "ln", "bn", "sbn", "none"] = "gn"
    norm_groups: Count = 32  # number of groups of a group norm; SSFL uses 32, the small networks use 4
    dropout: ShareBelow1 = 0.0  # probability that a channel is zeroed; .25 in the released EMNIST CNN
    width: ShareAbove0 = added(1.0)  # share of the hidden units in a HeteroFL sub-network
    # The seed of the initial weights. If it is None, it is the seed of the run. SSFL initialised all its runs with seed
    # 1 (A.4).
    seed: Whole | None = added(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        network = network_class(self.network)
        # A custom network has None. It is checked when it is built.
        norm_channels = getattr(network, "norm_channels", None)
        if norm_channels == () and self.norm != "none":
            raise ConfigError(f"norm is {self.norm!r}, but {self.network} has no norm; choose none")
        if self.norm == "gn":
            for channels in norm_channels or ():
                require_groups_divide(self.norm_groups, channels)
        if self.dropout and not takes(network, "dropout"):
            raise ConfigError(f"dropout is {self.dropout}, but {self.network} has no dropout; choose 0")
        if self.width != 1.0 and not takes(network, "width"):
            raise ConfigError(f"width is {self.width}, but {self.network} has only one width; choose 1")


def network_class(name: str) -> type[nn.Module]:
    """Return the class of a name of NETWORKS, or the class `module:Class`. Raise ConfigError if there is none."""
    if name in NETWORKS:
        return NETWORKS[name]
    if ":" not in name:
        raise ConfigError(
            f"network: unknown value {name!r}; {nearest(name, NETWORKS)} (for a custom network, type module:Class)"
        )
    network = imported(name, "network")
    if not (isinstance(network, type) and issubclass(network, nn.Module)):
        raise ConfigError(f"network: {name!r} is not a subclass of torch.nn.Module")
    try:
        inspect.signature(network).bind((1, 28, 28), 10, nn.Identity)
    except TypeError as error:
        raise ConfigError(f"network: {name!r} must accept (image_shape, num_classes, norm), but {error}") from None
    return network


def is_own(model: Model) -> bool:
    """Return whether the network is a custom one, from a user's file."""
    return model.network not in NETWORKS


def own_copy(network: nn.Module, model: Model) -> nn.Module:
    """Copy a custom network, which may keep more than its weights; return the suite's networks without a copy."""
    return copy.deepcopy(network) if is_own(model) else network


def head_of(model: Model) -> str:
    """Return the name of the network's last linear layer. Raise ConfigError for a network without features."""
    network = network_class(model.network)
    if not issubclass(network, Classifier):
        raise ConfigError(
            f"model.network: {model.network} has no features; make it a benchmark.models.classifier.Classifier"
        )
    return network.head


def takes(network: type[nn.Module], argument: str) -> bool:
    """Return whether the network's constructor has this argument."""
    return argument in inspect.signature(network).parameters


def build(model: Model, image_shape: ImageShape, num_classes: int, seed: int) -> nn.Module:
    """Build the network on the CPU, in training mode, with its initial weights.

    The initial weights follow PyTorch's defaults unless the network's file defines others. They are drawn from the
    stream "initial weights" of `seed`, the experiment's seed, and are the same for every call, whatever this thread and
    others draw. No global generator changes, and the default device is not used. Raise ConfigError if images are too
    small, if there are fewer than two classes, or if a custom network fails.
    """
    network = network_class(model.network)
    side = getattr(network, "smallest_side", 1)
    if min(image_shape[1:]) < side or image_shape[0] < 1:
        raise ConfigError(
            f"model.network: {model.network} needs images of at least {side} x {side}, but (C, H, W) is {image_shape}"
        )
    if num_classes < 2:
        raise ConfigError(f"the data set has {num_classes} classes, but classification needs at least 2")
    options: dict[str, Any] = {"dropout": model.dropout} if takes(network, "dropout") else {}
    if takes(network, "width"):
        options |= {"width": model.width, "channel_multiple": model.norm_groups if model.norm == "gn" else 1}
    norm = NORMS[model.norm](model.norm_groups)
    make = partial(network, image_shape, num_classes, norm, **options)
    own_seed = stream_seed(seed, "initial weights")
    if not is_own(model):
        with torch.device("cpu"), DrawingFrom(torch.Generator().manual_seed(own_seed)):
            built = make()
        _require_values_to_normalise(model, built, image_shape)
        return built
    # A custom constructor may seed the global generators, so they are restored, and only one thread builds at a time.
    with _OWN_NETWORKS, torch.random.fork_rng(devices=[]), torch.device("cpu"), apart(seed, "initial weights"):
        # torch.manual_seed would also seed the accelerators' generators, which fork_rng(devices=[]) does not restore.
        torch.default_generator.manual_seed(own_seed)
        return _built_own(model, image_shape, num_classes, make)


def _built_own(model: Model, image_shape: ImageShape, num_classes: int, make: Callable[[], nn.Module]) -> nn.Module:
    """Build a custom network and try it in both modes. Raise ConfigError if the suite cannot train it."""
    try:
        built = make()
        check_own(model, built)
        outputs = {}
        for mode in ("evaluation", "training"):
            outputs[mode] = copy.deepcopy(built).train(mode == "training")(torch.zeros(2, *image_shape))
        _require_values_to_normalise(model, built, image_shape)
    except ConfigError:
        raise
    except Exception as error:  # a custom network may raise anything
        raise ConfigError(
            f"model.network: {model.network} fails on images {image_shape} ({one_line(error)})"
        ) from error
    for mode, logits_ND in outputs.items():
        if not isinstance(logits_ND, torch.Tensor) or logits_ND.shape != (2, num_classes):
            returned = tuple(logits_ND.shape) if isinstance(logits_ND, torch.Tensor) else type(logits_ND).__name__
            raise ConfigError(
                f"model.network: {model.network} returns {returned} for 2 images of {num_classes} classes in {mode} "
                f"mode; return a tensor of shape (2, {num_classes})"
            )
        if not logits_ND.is_floating_point():
            raise ConfigError(
                f"model.network: {model.network} returns {logits_ND.dtype} in {mode} mode; return real numbers"
            )
    return built


def _require_values_to_normalise(model: Model, built: nn.Module, image_shape: ImageShape) -> None:
    """Raise ConfigError if an instance norm would get maps of one pixel, which it makes equal for all images."""
    if model.norm != "in":
        return

    def check(layer: nn.Module, inputs: Any) -> None:
        if inputs[0].shape[2:].numel() == 1:
            raise ConfigError(
                f"model.norm is 'in', but {model.network} reduces images {image_shape} to a map of one pixel, which "
                "has no spread; choose gn, ln or sbn"
            )

    own = copy.deepcopy(built).eval()
    for layer in own.modules():
        if isinstance(layer, nn.GroupNorm) and layer.num_groups == layer.num_channels:
            layer.register_forward_pre_hook(check)
    with torch.no_grad():
        own(torch.zeros(2, *image_shape))


def check_own(model: Model, built: nn.Module) -> None:
    """Raise ConfigError for a network with weights that cannot be trained, averaged or sent."""
    parameters = list(built.parameters())
    tensors = built.state_dict(keep_vars=True)
    lazy = [name for name, tensor in (*built.named_parameters(), *built.named_buffers()) if is_lazy(tensor)]
    extra = [name for name, value in tensors.items() if not isinstance(value, Tensor) or name.endswith("_extra_state")]
    no_numbers = [name for name, value in tensors.items() if isinstance(value, Tensor) and value.is_complex()]
    scripted = [name or "it" for name, part in built.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    fault = None
    if lazy:
        fault = f"{lazy[0]} has no size yet; give its layer the number of inputs"
    elif extra:
        fault = f"{extra[0]} in its state dict is not a weight; keep it in a buffer"
    elif no_numbers:
        fault = f"{no_numbers[0]} is complex, but weights are averaged as real numbers; use two real tensors"
    elif scripted:
        fault = f"{scripted[0]} is a scripted module, which cannot be copied; use the plain module"
    elif not any(parameter.requires_grad for parameter in parameters):
        fault = "it has no trained parameter; add one with requires_grad"
    if fault is not None:
        raise ConfigError(f"model.network: {model.network} cannot be trained: {fault}")


def count_parameters(module: nn.Module) -> int:
    """Count the parameters, without buffers such as the running statistics of a batch norm."""
    return sum(parameter.numel() for parameter in module.parameters())


def forward_flops(module: nn.Module, image_shape: ImageShape) -> int:
    """Count the floating-point operations of one image's forward pass in evaluation mode.

    A multiplication and its addition count as two operations. Only convolutions and linear layers are counted. `module`
    does not change.
    """
    flops = 0

    def add(layer: nn.Module, inputs: Any, output: Tensor) -> None:
        nonlocal flops
        products = layer.get_parameter("weight")[0].numel()  # for each output value
        flops += 2 * products * output.numel()

    own = copy.deepcopy(module).cpu().eval()
    for layer in own.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(add)
    with torch.no_grad():
        own(torch.zeros(1, *image_shape))
    return flops
