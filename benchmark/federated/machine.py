"""Configure the allocator and matrix products of a process, and explain errors from a lack of memory."""

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from benchmark.errors import ConfigError, FsslError

# glibc's malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> None:
    """Let glibc reuse freed memory instead of returning it to the system.

    This only affects the time: without it, a local step's time depends on the process's earlier allocations, because of
    page faults. For the network of the `demo` profile it is 2.7 ms with the setting, and 2.7 to 5 ms without it. Other
    C libraries, such as macOS's and musl, do not have these settings, and nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for name, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 64 << 20)):
        mallopt(name, value)


# Messages of torch's allocator, C++ and oneDNN. oneDNN names no reason, and a lack of memory is the only one observed.
SHORT = ("can't allocate memory", "bad_alloc", "could not create a primitive", "could not create a memory object")


@contextlib.contextmanager
def failures_named(participant: str, round_number: int) -> Iterator[None]:
    """Name the participant whose job fails in torch, for lack of memory or because of a batch of one image.

    Raise FsslError in the first case and ConfigError in the second; pass on all other errors.
    """
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"round {round_number}, {participant}: a batch norm cannot train on a batch of one image; choose "
            "model.norm gn, or a different method.batch_size or number of clients"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(map(str(error).__contains__, SHORT)):
            raise
        raise FsslError(
            f"round {round_number}, {participant}: its job does not fit into memory; choose a smaller batch size "
            "or network, or fewer workers"
        ) from error


SETTINGS: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch creates this module at run time
# The relative error of products of 256 terms near 1 is about 1e-7 in float32, and 4e-3 in bfloat16.
MOST = 1e-5


@contextlib.contextmanager
def faster_products() -> Iterator[None]:
    """Compute this process's float32 matrix products with oneDNN instead of MKL, unless oneDNN would not use float32.

    On AMD's processors, MKL has .5 (Zen 5) to .9 (Zen 4) of oneDNN's speed. torch's switch for oneDNN is named after
    bfloat16, and a processor with units for bfloat16 (AMX) may actually use them, so one product is tested first. Jobs
    run inside this context and the evaluation does not, so that the evaluation has the same bits for every engine.
    """
    before = SETTINGS.fp32_precision
    SETTINGS.fp32_precision = "bf16" if stay_float32() else before
    try:
        yield
    finally:
        SETTINGS.fp32_precision = before


@cache
def stay_float32() -> bool:
    """Return whether a product with the switch has the accuracy of float32."""
    before = SETTINGS.fp32_precision
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.rand(256, 256, generator=draw, dtype=torch.float64) for _ in range(2))
    SETTINGS.fp32_precision = "bf16"
    off = ((left.float() @ right.float()).double() - left.float().double() @ right.float().double()).abs().max()
    SETTINGS.fp32_precision = before
    return float(off / 256) < MOST
