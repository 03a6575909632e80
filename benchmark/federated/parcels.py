"""Trees of tensors between processes: a pickle without the tensors, and beside it the tensors' own memory.

Tensors go by number. A sender that keeps its `Numbers` sends a tensor that many jobs receive only once, and a receiver
gets every tensor in the layout it had (channels last stays channels last), so that nothing downstream can tell.
There and back, a pipe takes 1.4 ms for 0.2 M weights, 1 % of a job, and 88 ms for 11 M; torch's shared memory, with a
file for each tensor, 22 and 1016 ms (`tests/performance/workers_speed.py`). So nothing is shared but the images.
"""

import io
import itertools
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor


class Numbers:
    """Numbers for tensors. Holds every tensor that has one: the id of a freed tensor may come again."""

    def __init__(self, first: int = 0, step: int = 1) -> None:
        self._count = itertools.count(first, step)
        self._known: dict[int, tuple[int, Tensor]] = {}  # by id
        self.tensors: dict[int, Tensor] = {}  # by number

    def of(self, tensor: Tensor) -> int:
        if id(tensor) not in self._known:
            number = next(self._count)
            self._known[id(tensor)] = (number, tensor)
            self.tensors[number] = tensor
        return self._known[id(tensor)][0]


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A pickle in which tensors stand as numbers."""

    pickled: bytes
    numbers: tuple[int, ...]  # of the tensors in it


def pack(tree: Any, numbers: Numbers) -> Parcel:
    """Raises what pickle raises for what it cannot take (a class that is not at a module's top level)."""
    file = io.BytesIO()
    packer = _Packer(file, numbers)
    packer.dump(tree)
    return Parcel(pickled=file.getvalue(), numbers=tuple(packer.used))


def unpack(pickled: bytes, tensors: Mapping[int, Tensor]) -> Any:
    """What was packed, around tensors that came beside it."""
    return _Unpacker(io.BytesIO(pickled), tensors).load()


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, numbers: Numbers) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._numbers = numbers
        self.used: dict[int, None] = {}  # a set in order

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
            return None
        number = self._numbers.of(value)
        self.used[number] = None
        return number


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: Mapping[int, Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def send(connection: Connection, message: Any, tensors: Iterable[tuple[int, Tensor]] = ()) -> None:
    """A message of plain values, and tensors by number."""
    packed = [(number, packed_tensor(tensor)) for number, tensor in tensors]
    layouts = [(number, tensor.dtype, tuple(tensor.shape), tensor.stride()) for number, tensor in packed]
    connection.send_bytes(pickle.dumps((message, layouts), protocol=pickle.HIGHEST_PROTOCOL))
    for _, tensor in packed:
        if tensor.numel():
            in_memory = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
            connection.send_bytes(in_memory.view(torch.uint8).numpy().data)


def receive(connection: Connection) -> tuple[Any, dict[int, Tensor]]:
    """The next message and its tensors, each in memory of its own. Raises EOFError where the other end is closed."""
    message, layouts = pickle.loads(connection.recv_bytes())
    tensors = {}
    for number, dtype, shape, stride in layouts:
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
        if tensor.numel():
            connection.recv_bytes_into(tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data)
        tensors[number] = tensor
    return message, tensors


def packed_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself where its elements fill a stretch of memory, in whatever order; else a copy that does."""
    tensor = tensor.detach()
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride != expected:
            return tensor.contiguous()
        expected *= size
    return tensor
