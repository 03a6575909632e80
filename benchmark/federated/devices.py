"""Parse device names of the command line, choose the devices for `auto`, and configure torch for a device."""

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
OF_THE_CORES = ("demo", "laptop")  # profiles with networks so small that the CPU is faster

DETERMINISTIC: Any = torch.utils.deterministic  # torch creates this attribute when it is imported


def cuda_devices() -> tuple[str, ...]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return tuple(f"cuda:{index}" for index in range(count))


def card_name(device: str | torch.device) -> str:
    """Return the kind of device by its name in records and plans."""
    return CPU if torch.device(device).type == CPU else torch.cuda.get_device_name(device)


def auto_devices(runs: Iterable[Experiment]) -> tuple[str, ...]:
    """Return all CUDA devices, or the CPU if there are none or if all runs have the profiles demo and laptop."""
    small = all(run.profile in OF_THE_CORES for run in runs)
    return (CPU,) if small else cuda_devices() or (CPU,)


def devices_named(text: str | None) -> tuple[str, ...] | None:
    """Return the devices of "cuda:0,cuda:1", "0,1" or "cpu,cpu"; return None for "auto".

    Raise ConfigError for a device that does not exist, for Apple's GPUs, and for a mixture of the CPU and CUDA devices.
    """
    if text is None or text == AUTO:
        return None
    names = {"cuda": "cuda:0", "cpu:0": CPU}
    words = [word.strip() for word in text.split(",")]
    devices = tuple(names.get(word, f"cuda:{word}" if word.isdecimal() else word) for word in words)
    available = (CPU, *cuda_devices())
    for device in devices:
        if device.partition(":")[0] == "mps":
            raise ConfigError(f"--devices is {text!r}, but runs on Apple GPUs are not supported; type --devices {CPU}")
        if device not in available:
            here = choose(available) if len(available) > 1 else f"this machine has no CUDA device; choose {CPU}"
            raise ConfigError(f"--devices: no device {device!r} in {text!r}; {here}")
    if CPU in devices and set(devices) != {CPU}:
        raise ConfigError(
            f"--devices is {text!r}, but the CPU and CUDA devices give different last bits; choose one of the two"
        )
    return devices


def check_precision(precision: Precision, devices: Iterable[str]) -> None:
    """Raise ConfigError for tf32 on a device without it, because records of one cell would have two precisions."""
    for device in devices:
        if precision == "tf32" and (device == CPU or torch.cuda.get_device_capability(device) < (8, 0)):
            raise ConfigError(f"precision is 'tf32', but {device} does not have it; choose fp32, or other --devices")


CHOICES = Path(__file__).with_name("choices.toml")
Images = Literal["contiguous", "channels last"]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The memory format of a network's images on a device, and whether cuDNN times its algorithms to choose one."""

    images: Images
    cudnn_benchmark: bool = False

    @property
    def memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.images == "channels last" else torch.contiguous_format


Measured = Mapping[tuple[str, str, str, str], Choice]  # card, network, norm, precision -> the fastest choice


@cache
def measured_choices() -> Measured:
    """Read `choices.toml`. Its entries are measured by `python -m tests.performance.gpu`."""
    tables = tomllib.loads(CHOICES.read_text()).get("choice", [])
    return {
        (one["card"], one["network"], one["norm"], one["precision"]): Choice(
            images=one["images"], cudnn_benchmark=one["cudnn_benchmark"]
        )
        for one in tables
    }


def choice_for(device: torch.device, precision: Precision, model: Model | None = None) -> Choice:
    """Return the fastest measured choice for the network on this GPU.

    Without a measurement, images are channels last on a CPU and, for bf16, on CUDA, and cuDNN does not time its
    algorithms. On a CPU, max-pooling and convolutions are about twice as fast channels last as in NCHW order. cuDNN's
    float32 convolutions are slowest channels last (pytorch#44943).
    """
    if device.type != "cuda":
        return Choice(images="channels last")
    if model is None or not measured_choices():
        return usual_choice(precision)
    return choice_on(card_name(device), model.network, model.norm, precision)


def choice_on(card: str, network: str, norm: str, precision: Precision) -> Choice:
    """Return the fastest measured choice on the GPU, or the usual choice without a measurement."""
    return measured_choices().get((card, network, norm, precision), usual_choice(precision))


def usual_choice(precision: Precision) -> Choice:
    """Return the choice on CUDA without a measurement."""
    return Choice(images="channels last" if precision == "bf16" else "contiguous")


def memory_format(device: torch.device, precision: Precision, model: Model | None = None) -> torch.memory_format:
    """Return the memory format of the network's images by `choice_for`."""
    return choice_for(device, precision, model).memory_format


def prepare_torch(device: torch.device, precision: Precision, model: Model | None = None) -> None:
    """Configure torch to use deterministic kernels on CUDA, and TF32 only with the precision tf32.

    cuDNN times its algorithms if `choice_for` decides so, and even then only uses deterministic ones. This must be
    called before the device's context exists. If torch has no deterministic kernel, as for the backward pass of
    max-pooling, it uses a different one, so that a record cannot guarantee equal bits. For a CPU, nothing is
    configured.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(device)  # without this, operations without a device open a context on the first one
    torch.use_deterministic_algorithms(True, warn_only=True)
    DETERMINISTIC.fill_uninitialized_memory = False  # results do not depend on it, and it would fill every `empty`
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
    torch.backends.cudnn.benchmark = choice_for(device, precision, model).cudnn_benchmark
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def engine_settings(name: str, devices: Sequence[torch.device], threads: int, experiment: Experiment) -> dict[str, Any]:
    """Return the settings that determine an engine's bits, for the record: kinds of CUDA devices, not their numbers."""
    settings: dict[str, Any] = {"name": name, "threads": threads, "bit_equal": True}
    cards = {card_name(device) for device in devices}
    if name == "pool":  # only on a CPU does its local step differ from the plain one
        settings |= {"plain": cards != {CPU}, "confident_only": cards == {CPU}, "workers": len(devices)}
    if cards != {CPU}:
        settings |= {"bit_equal": False, "device": ", ".join(sorted(cards))}  # `prepare_torch` explains this
        choice = choice_for(devices[0], experiment.precision, experiment.model)
        settings |= {"images": choice.images, "cudnn_benchmark": choice.cudnn_benchmark}
    return settings
