"""The memory of processes: what is freed, what they share, and who ran out of it.

`keep_freed_memory` sets the C library's allocator so that large tensors are reused instead of given back to the system
at every free. Without it, a local step's time depends on the process's history of allocations: measured 2.7 ms with it
and 2.7 to 5 ms without on the `demo` profile's network (page faults).
"""

import contextlib
import ctypes
import math
import os
import sys
from collections.abc import Iterator

import torch

from benchmark.errors import FsslError

# glibc's malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory. False where the C library is another one; nothing depends on it but time."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((M_MMAP_THRESHOLD, 1 << 30), (M_TRIM_THRESHOLD, (1 << 31) - 1), (M_TOP_PAD, 64 << 20))
    return all(mallopt(name, value) == 1 for name, value in settings)


def shared_memory_left() -> float:
    """Bytes that tensors can still be moved into; infinite where the system does not say.

    Linux hands out shared memory beyond this too, and then kills the process at its first use.
    """
    try:
        room = os.statvfs("/dev/shm")
    except OSError:
        return math.inf
    return room.f_bavail * room.f_frsize


@contextlib.contextmanager
def memory_named(holder: str, round_number: int) -> Iterator[None]:
    """Name the holder whose job did not fit into memory. Raises FsslError.

    The job is not tried again in smaller parts: passes that only read are in small parts already, and a local step in
    parts would add up in another order (and with batch norm see other batches), which are other numbers.
    """
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        known = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
        if not known:
            raise
        raise FsslError(
            f"round {round_number}, {holder}: its job does not fit into memory; a smaller batch size or network, or "
            "fewer workers, would be right"
        ) from error
