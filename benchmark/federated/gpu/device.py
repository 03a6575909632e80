"""The device of a run, found or refused, and its arithmetic: full fp32, the same kernels at every step."""

import os
import warnings

import torch

from benchmark.errors import ConfigError


def device_named(name: str | None) -> torch.device:
    """The device of that name ("cuda", "cuda:1", "cpu"); None: the first CUDA device. Raises ConfigError."""
    wanted = "cuda" if name is None else name
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise ConfigError(f"--device: {wanted!r}; cuda, cuda:0 or cpu would be right") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device: {wanted!r}; cuda, cuda:0 or cpu would be right")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device: {wanted!r}, but torch finds no CUDA device here; --engine reference or cpu would be right"
        )
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ConfigError(f"--device: {wanted!r}, but there are {count} CUDA devices; cuda:{count - 1} is the last")
    return torch.device("cuda", device.index or 0)


def careful(device: torch.device) -> None:
    """Ask for fp32 without TF32, and for deterministic kernels, before the device's context exists.

    Where torch has no deterministic kernel (the backward pass of max-pooling) it takes the other one and does not
    refuse, so that a record cannot promise equal bits. Nothing is set for a CPU.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Else every new tensor is filled first: a kernel each, and nothing here reads what it has not written.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010  # the stubs lack it
    warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation.*")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
