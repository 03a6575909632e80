"""Messages from one process to another, whose tensors lie in memory that both share.

Through a pipe a weight set is copied six times, in pieces of 200 kB. Here its writer copies it once, and its reader not
at all or once.
"""

import io
import mmap
import os
import pickle
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

from benchmark.federated.start import CPU

ALIGNED = 64  # bytes, as torch's own tensors are


class MessageMemory:
    """Memory that two processes share, for the tensors of one message.

    One process writes messages, each over the one before, and the other reads them. It grows with the largest message,
    and may be handed to a process that is being started. It is a file in memory (Linux): a container's /dev/shm has
    64 MB.
    """

    def __init__(self, file: int | None = None) -> None:
        self._file = os.fdopen(os.memfd_create("message") if file is None else file, "rb", buffering=0)
        self._bytes_N = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_duplicate, (DupFd(self._file.fileno()),)

    def packed(self, message: Any) -> bytes:
        """The message for `opened`, its tensors on the host. What was packed before is lost."""
        self._used, file = 0, io.BytesIO()
        _Packer(file, self).dump(message)
        return file.getvalue()

    def opened(self, packed: bytes, *, copies: bool) -> Any:
        """The message. With `copies` its tensors stay as they are when the next message is written."""
        return _Opener(io.BytesIO(packed), self, copies).load()

    def put(self, tensor: Tensor) -> tuple[Any, ...]:
        """Write the tensor behind the others, in its own memory order. Returns the arguments of `take`."""
        dense = tensor.detach().to(CPU)
        if dense.untyped_storage().nbytes() != dense.nbytes:  # a part of another tensor
            dense = dense.clone()
        content_N = torch.empty(0, dtype=torch.uint8).set_(dense.untyped_storage())
        first, end = self._used, self._used + len(content_N)
        if end > len(self._bytes_N):
            os.truncate(self._file.fileno(), 2 * end)
            self._map()
        self._bytes_N[first:end] = content_N
        self._used = -(-end // ALIGNED) * ALIGNED
        return first, end, dense.dtype, tuple(dense.shape), dense.stride()

    def take(self, first: int, end: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
        """The tensor as it was put; it shares this memory."""
        if end > len(self._bytes_N):
            self._map()
        return self._bytes_N[first:end].view(dtype).as_strided(shape, stride)

    def _map(self) -> None:
        self._bytes_N = torch.frombuffer(mmap.mmap(self._file.fileno(), 0), dtype=torch.uint8)


def _of_duplicate(file: Any) -> MessageMemory:
    """The same memory in the process that was started; `file` is what DupFd gave."""
    return MessageMemory(file.detach())


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, memory: MessageMemory) -> None:
        super().__init__(file, protocol=5)
        self._memory = memory

    def persistent_id(self, value: Any) -> Any:
        return self._memory.put(value) if type(value) is Tensor else None


class _Opener(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: MessageMemory, copies: bool) -> None:
        super().__init__(file)
        self._memory, self._copies = memory, copies

    def persistent_load(self, where: Any) -> Tensor:
        tensor = self._memory.take(*where)
        return tensor.clone() if self._copies else tensor
