"""Devices: their names on a command line, which of them `auto` is, and how torch is set for one."""

import os
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from benchmark.config import choose
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, Precision
from benchmark.federated.processes import CPU

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


def memory_format(device: torch.device, precision: Precision) -> torch.memory_format:
    """In which order a network's images lie: channels last on a CPU, and on CUDA in bf16.

    Max-pooling and convolutions run about twice as fast on a CPU as in NCHW order. cuDNN's float32 convolutions are
    slowest channels last (pytorch#44943).
    """
    return torch.contiguous_format if device.type == "cuda" and precision != "bf16" else torch.channels_last


def prepare_torch(device: torch.device, precision: Precision) -> None:
    """Ask torch for deterministic kernels on CUDA, and for TF32 with the precision tf32 alone.

    It has to be called before the device's context exists. Where torch has no deterministic kernel (the backward pass
    of max-pooling) it takes the other one, so a record cannot promise equal bits. Nothing is set for a CPU.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(device)  # otherwise operations that name no device open a context on the first one
    torch.use_deterministic_algorithms(True, warn_only=True)
    DETERMINISTIC.fill_uninitialized_memory = False  # no bit depends on it, and every `empty` would be filled
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"


def engine_settings(name: str, devices: Sequence[torch.device], threads: int) -> dict[str, Any]:
    """What decides an engine's bits, for the record: the kind of its CUDA devices, and not their numbers."""
    settings: dict[str, Any] = {"name": name, "threads": threads, "bit_equal": True}
    cards = {card_name(device) for device in devices}
    if name == "pool":  # its local step is another than the plain one on a CPU alone
        settings |= {"plain": cards != {CPU}, "confident_only": cards == {CPU}, "workers": len(devices)}
    if cards != {CPU}:
        settings |= {"bit_equal": False, "device": ", ".join(sorted(cards))}  # `prepare_torch` says why
    return settings
