"""Devices: their names on a command line, which of them `auto` is, and how torch is set for one."""

import os
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch

from benchmark.config import choose
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, Precision
from benchmark.federated.processes import CPU
from benchmark.models.build import Model

AUTO = "auto"
OF_THE_CORES = ("demo", "laptop")  # profiles of networks so small that the cores are faster

DETERMINISTIC: Any = torch.utils.deterministic  # torch makes the module's attribute when it is imported


def cuda_devices() -> tuple[str, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(f"cuda:{index}" for index in range(count))


def card_name(device: str | torch.device) -> str:
    """The kind of device, as records and plans name it."""
    return CPU if torch.device(device).type == CPU else torch.cuda.get_device_name(device)


def auto_devices(runs: Iterable[Experiment]) -> tuple[str, ...]:
    """All CUDA devices; the CPU where there is none, or where all runs are of the profiles demo and laptop."""
    small = all(run.profile in OF_THE_CORES for run in runs)
    return (CPU,) if small else cuda_devices() or (CPU,)


def devices_named(text: str | None) -> tuple[str, ...] | None:
    """The devices of "cuda:0,cuda:1", "0,1" or "cpu,cpu"; None for "auto". Raises ConfigError."""
    if text is None or text == AUTO:
        return None
    names = {"cuda": "cuda:0", "cpu:0": CPU}
    words = [word.strip() for word in text.split(",")]
    devices = tuple(names.get(word, f"cuda:{word}" if word.isdecimal() else word) for word in words)
    available = (CPU, *cuda_devices())
    for device in devices:
        if device not in available:
            here = choose(available) if len(available) > 1 else f"this machine has no CUDA device; choose {CPU}"
            raise ConfigError(f"--devices: no device {device!r} in {text!r}; {here}")
    if CPU in devices and set(devices) != {CPU}:
        raise ConfigError(f"--devices: {text!r}; the CPU and CUDA devices give other bits; choose one of the two")
    return devices


def check_precision(precision: Precision, devices: Iterable[str]) -> None:
    """Raise ConfigError for tf32 on a device without it: records of one cell would be of two precisions."""
    for device in devices:
        if precision == "tf32" and (device == CPU or torch.cuda.get_device_capability(device) < (8, 0)):
            raise ConfigError(f"precision: 'tf32', which {device} does not have; choose fp32, or other --devices")


CHOICES = Path(__file__).with_name("choices.toml")
Images = Literal["contiguous", "channels last"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How a network's images lie in memory on a device, and whether cuDNN times its algorithms to choose one."""

    images: Images
    cudnn_benchmark: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.images == "channels last" else torch.contiguous_format


Measured = Mapping[tuple[str, str, str, str], Choice]  # card, network, norm, precision -> the fastest choice


@cache
def measured_choices() -> Measured:
    """Read `choices.toml`. Its numbers are those of `python -m tests.performance.gpu`."""
    tables = tomllib.loads(CHOICES.read_text()).get("choice", [])
    return {
        (one["card"], one["network"], one["norm"], one["precision"]): Choice(
            images=one["images"], cudnn_benchmark=one["cudnn_benchmark"]
        )
        for one in tables
    }


def choice_for(device: torch.device, precision: Precision, model: Model | None = None) -> Choice:
    """Return what was fastest for the network on this card.

    Where nothing was measured, images are channels last on a CPU, and on CUDA in bf16, and cuDNN times nothing.
    Max-pooling and convolutions run about twice as fast on a CPU as in NCHW order. cuDNN's float32 convolutions are
    slowest channels last (pytorch#44943).
    """
    if device.type != "cuda":
        return Choice(images="channels last")
    if model is None or not measured_choices():
        return usual_choice(precision)
    return choice_on(card_name(device), model.network, model.norm, precision)


def choice_on(card: str, network: str, norm: str, precision: Precision) -> Choice:
    """Return what was fastest on the card; without measurement the usual choice."""
    return measured_choices().get((card, network, norm, precision), usual_choice(precision))


def usual_choice(precision: Precision) -> Choice:
    """Return the choice on CUDA where nothing was measured."""
    return Choice(images="channels last" if precision == "bf16" else "contiguous")


def memory_format(device: torch.device, precision: Precision, model: Model | None = None) -> torch.memory_format:
    """Return the order in which the network's images lie, as `choice_for` says."""
    return choice_for(device, precision, model).memory_format


def prepare_torch(device: torch.device, precision: Precision, model: Model | None = None) -> None:
    """Ask torch for deterministic kernels on CUDA, and for TF32 with the precision tf32 alone.

    cuDNN times its algorithms where `choice_for` says so; it takes deterministic ones even then. It has to be called
    before the device's context exists. Where torch has no deterministic kernel (the backward pass of max-pooling) it
    takes the other one, so a record cannot promise equal bits. Nothing is set for a CPU.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(device)  # otherwise operations that name no device open a context on the first one
    torch.use_deterministic_algorithms(True, warn_only=True)
    DETERMINISTIC.fill_uninitialized_memory = False  # no bit depends on it, and every `empty` would be filled
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
    torch.backends.cudnn.benchmark = choice_for(device, precision, model).cudnn_benchmark
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def engine_settings(name: str, devices: Sequence[torch.device], threads: int, experiment: Experiment) -> dict[str, Any]:
    """Return what determines an engine's bits, for the record: the kind of its CUDA devices, not their numbers."""
    settings: dict[str, Any] = {"name": name, "threads": threads, "bit_equal": True}
    cards = {card_name(device) for device in devices}
    if name == "pool":  # its local step is another than the plain one on a CPU alone
        settings |= {"plain": cards != {CPU}, "confident_only": cards == {CPU}, "workers": len(devices)}
    if cards != {CPU}:
        settings |= {"bit_equal": False, "device": ", ".join(sorted(cards))}  # `prepare_torch` says why
        choice = choice_for(devices[0], experiment.precision, experiment.model)
        settings |= {"images": choice.images, "cudnn_benchmark": choice.cudnn_benchmark}
    return settings
