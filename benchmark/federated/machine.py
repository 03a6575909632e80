"""Allocator and matrix products of a process, and errors for want of memory."""

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
    """Tell glibc to reuse freed memory instead of giving it back.

    Nothing depends on it but time: without it a local step's time depends on the process's history of allocations (2.7
    ms with it, 2.7 to 5 ms without on the `demo` profile's network, in page faults).
    """
    for name, value in ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 64 << 20)):
        ctypes.CDLL(None).mallopt(name, value)


# What torch's allocator, C++ and oneDNN say; the last tells no reasons, and a shortage is the one seen.
SHORT = ("can't allocate memory", "bad_alloc", "could not create a primitive", "could not create a memory object")


@contextlib.contextmanager
def failures_named(holder: str, round_number: int) -> Iterator[None]:
    """Name the holder whose job fails in torch: by memory, or a batch of one image. Raises FsslError."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"round {round_number}, {holder}: a batch of one image, which a batch norm cannot take; choose model.norm "
            "gn, or another method.batch_size or number of clients"
        ) from error
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(map(str(error).__contains__, SHORT)):
            raise
        raise FsslError(
            f"round {round_number}, {holder}: its job does not fit into memory; choose a smaller batch size "
            "or network, or fewer workers"
        ) from error


SETTINGS: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # torch says so of a module it makes
# Products of float32 of 256 terms near 1 are off by about 1e-7 relative to their size; of bfloat16 by 4e-3.
MOST = 1e-5


@contextlib.contextmanager
def faster_products() -> Iterator[None]:
    """Inside, this process's float32 matrix products are oneDNN's instead of MKL's; not where that is not float32.

    MKL runs on AMD's processors at .5 (Zen 5) to .9 (Zen 4) of oneDNN's speed. torch's switch for it is named after
    bfloat16, and a processor with units for bfloat16 (AMX) may do just that; so it is tried on one product first. A job
    is inside and the evaluation is not, so that the evaluation gives the same bits whoever does the jobs.
    """
    before = SETTINGS.fp32_precision
    SETTINGS.fp32_precision = "bf16" if stay_float32() else before
    try:
        yield
    finally:
        SETTINGS.fp32_precision = before


@cache
def stay_float32() -> bool:
    """Whether one product under the switch is what it has to be."""
    before = SETTINGS.fp32_precision
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.rand(256, 256, generator=draw, dtype=torch.float64) for _ in range(2))
    SETTINGS.fp32_precision = "bf16"
    off = ((left.float() @ right.float()).double() - left.float().double() @ right.float().double()).abs().max()
    SETTINGS.fp32_precision = before
    return float(off / 256) < MOST
