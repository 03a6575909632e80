"""Messages from one process to another, whose tensors lie in memory that both share.

Through a pipe a weight set is copied six times, in pieces of 200 kB. Here its writer copies it once, and its reader not
at all or once.
"""

import io
import mmap
import os
import pickle
from multiprocessing.reduction import DupFd
from typing import Any, Self

import torch
from torch import Tensor

from benchmark.federated.start import CPU

ALIGNED = 64  # bytes, as torch's own tensors are


class Mailbox:
    """Memory for the tensors of one message at a time, as large as the largest so far. It may be given to a process
    that is being started, and one of the two writes.

    It is a file in memory (Linux), since a container's /dev/shm has 64 MB.
    """

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("message"), "rb", buffering=0)
        self._bytes_N = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return Mailbox._opened, (DupFd(self._file.fileno()),)

    @classmethod
    def _opened(cls, file: Any) -> Self:
        mailbox = cls.__new__(cls)
        mailbox._file = os.fdopen(file.detach(), "rb", buffering=0)
        mailbox._bytes_N, mailbox._used = torch.empty(0, dtype=torch.uint8), 0
        return mailbox

    def packed(self, message: Any) -> bytes:
        """The message for `opened`, its tensors on the host. What was packed before is lost."""
        self._used, file = 0, io.BytesIO()
        _Packer(file, self).dump(message)
        return file.getvalue()

    def opened(self, packed: bytes, *, copies: bool) -> Any:
        """The message. `copies`: its tensors outlast the mailbox's next message."""
        return _Opener(io.BytesIO(packed), self, copies).load()

    def put(self, tensor: Tensor) -> tuple[Any, ...]:
        """Write the tensor behind the others, memory as it is: channels last stays channels last. How to `take` it."""
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
        """The tensor as it was put, in the mailbox's own memory."""
        if end > len(self._bytes_N):
            self._map()
        return self._bytes_N[first:end].view(dtype).as_strided(shape, stride)

    def _map(self) -> None:
        self._bytes_N = torch.frombuffer(mmap.mmap(self._file.fileno(), 0), dtype=torch.uint8)


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, mailbox: Mailbox) -> None:
        super().__init__(file, protocol=5)
        self._mailbox = mailbox

    def persistent_id(self, value: Any) -> Any:
        return self._mailbox.put(value) if type(value) is Tensor else None


class _Opener(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, mailbox: Mailbox, copies: bool) -> None:
        super().__init__(file)
        self._mailbox, self._copies = mailbox, copies

    def persistent_load(self, where: Any) -> Tensor:
        tensor = self._mailbox.take(*where)
        return tensor.clone() if self._copies else tensor
