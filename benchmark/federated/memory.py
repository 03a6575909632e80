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


# What torch's allocator, C++ and oneDNN say; the last tells no reasons, and a shortage is the one seen.
SHORT = ("can't allocate memory", "bad_alloc", "could not create a primitive", "could not create a memory object")


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory did not suffice, in any of the ways that torch and its libraries say so."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and any(words in said for words in SHORT)


@contextlib.contextmanager
def memory_named(holder: str, round_number: int, why: str | None = None) -> Iterator[None]:
    """Name the holder whose job did not fit into memory, and `why` smaller parts are no way out. Raises FsslError."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_lack_of_memory(error):
            raise
        tried = f" ({why})" if why else ""
        raise FsslError(
            f"round {round_number}, {holder}: its job does not fit into memory{tried}; a smaller batch size or "
            "network, or fewer workers, would be right"
        ) from error
