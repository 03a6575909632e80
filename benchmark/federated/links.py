"""Messages between two ranks of one run: plain values, and tensors by number, over torch.distributed.

A message is what `parcels` packs for a pipe, in three parts: two lengths, a pickle, and the bytes of all its tensors in
one stretch. The first two go over gloo; the bytes go over gloo from a CPU and over NCCL from a GPU, chosen by nothing
but the device that they lie on. torch.distributed cannot wait for a message with an ear open for signals, and a send to
a process that has been stopped waits for ever, so each direction of a link has a thread of its own, and a process group
of its own: NCCL does one thing after another within a group, and two ranks that both send first would wait for each
other.
"""

import math
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmark.federated.parcels import packed_tensor

BEAT = 1.0  # seconds after which a link that has nothing to say says that it is there
ALIVE, FAREWELL = ("alive",), ("farewell",)
ALIGNED = 64  # bytes, so that every tensor may be read where it lies

Tensors = Mapping[int, Tensor]
Heard = Callable[[Any, dict[int, Tensor]], None]


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The process groups of the two directions: from rank 0 ("down") and to it ("up")."""

    down: dist.ProcessGroup
    up: dist.ProcessGroup
    device: torch.device  # where the tensors of messages lie


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A message as it travels."""

    pickled: bytes
    payload: Tensor  # uint8, of all tensors


class Traffic:
    """What has been sent and received, for measuring; `received` counts messages, signs of life apart."""

    def __init__(self) -> None:
        self.received = self.bytes_sent = self.bytes_received = 0


class Link:
    """One other rank, seen from this one: `put` never waits, and `heard` is called in a thread for all that comes.

    `ended` is called once, in a thread, with the reason, where the other one's end of the line is gone.
    """

    def __init__(self, other: int, groups: Groups, heard: Heard, ended: Callable[[str], None]) -> None:
        self.other, self.traffic = other, Traffic()
        self.beats = 0  # how often anything was heard
        self.expected_bytes = 0  # of the message that is on its way
        leads = dist.get_rank() == 0
        self._out, self._in = (groups.down, groups.up) if leads else (groups.up, groups.down)
        self._device, self._heard, self._ended = groups.device, heard, ended
        self._waiting: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send_all, self._receive_all)]
        for thread in self._threads:
            thread.start()

    def put(self, message: Any, tensors: Iterable[tuple[int, Tensor]] = ()) -> None:
        """Send the message, and a copy of the tensors as they are now."""
        self._waiting.put(packed_letter(message, tensors, self._device))

    def farewell(self) -> None:
        """The last message."""
        self._waiting.put(packed_letter(FAREWELL, (), self._device))
        self._waiting.put(None)

    def is_closed(self, seconds: float) -> bool:
        """Whether the other one has said farewell, too, or is gone, in at most so many seconds."""
        until = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _send_all(self) -> None:
        alive = packed_letter(ALIVE, (), self._device)
        try:
            while not self._over.is_set():
                try:
                    letter = self._waiting.get(timeout=BEAT)
                except queue.Empty:
                    letter = alive
                if letter is None:
                    return
                self._send(letter)
        except RuntimeError as error:
            self._end(error)

    def _send(self, letter: Letter) -> None:
        pickled = torch.frombuffer(bytearray(letter.pickled), dtype=torch.uint8)
        lengths_2 = torch.tensor([len(letter.pickled), len(letter.payload)], dtype=torch.int64)
        for tensor in (lengths_2, pickled, letter.payload):
            if tensor.numel():
                dist.send(tensor, self.other, group=self._out)
        self.traffic.bytes_sent += len(letter.pickled) + len(letter.payload)

    def _receive_all(self) -> None:
        try:
            while True:
                message, tensors = self._receive()
                self.beats += 1
                if message != ALIVE:
                    self.traffic.received += 1
                    self._heard(message, tensors)
                if message == FAREWELL:
                    return
        except RuntimeError as error:
            self._end(error)

    def _receive(self) -> tuple[Any, dict[int, Tensor]]:
        lengths_2 = self._next(2, torch.int64)
        pickled, payload = (int(length) for length in lengths_2)
        self.expected_bytes = pickled + payload
        message, layouts = pickle.loads(self._next(pickled).numpy().tobytes())
        tensors = opened(layouts, self._next(payload, device=self._device))
        self.expected_bytes = 0
        self.traffic.bytes_received += pickled + payload
        return message, tensors

    def _next(self, length: int, dtype: torch.dtype = torch.uint8, device: torch.device | None = None) -> Tensor:
        tensor = torch.empty(length, dtype=dtype, device=device or torch.device("cpu"))
        if length:
            dist.recv(tensor, self.other, group=self._in)
        return tensor

    def _end(self, error: RuntimeError) -> None:
        if not self._over.is_set():
            self._over.set()
            self._ended(str(error).partition("\n")[0])


def packed_letter(message: Any, tensors: Iterable[tuple[int, Tensor]], device: torch.device) -> Letter:
    """The message and a copy of its tensors, each at a multiple of `ALIGNED` bytes."""
    whole = [(number, packed_tensor(tensor)) for number, tensor in tensors]
    layouts, end = [], 0
    for number, tensor in whole:
        layouts.append((number, tensor.dtype, tuple(tensor.shape), tensor.stride(), end))
        end += math.ceil(tensor.nbytes / ALIGNED) * ALIGNED
    payload = torch.empty(end, dtype=torch.uint8, device=device)
    for (_, tensor), layout in zip(whole, layouts, strict=True):
        _place(payload, layout).copy_(tensor)
    return Letter(pickled=pickle.dumps((message, layouts), protocol=pickle.HIGHEST_PROTOCOL), payload=payload)


Layout = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], int]


def opened(layouts: Iterable[Layout], payload: Tensor) -> dict[int, Tensor]:
    """The tensors, each in memory of its own: one that is kept for long must not hold the others' memory."""
    tensors = {}
    for layout in layouts:
        number, dtype, shape, stride, _ = layout
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=payload.device)
        tensors[number] = tensor.copy_(_place(payload, layout))
    return tensors


def _place(payload: Tensor, layout: Layout) -> Tensor:
    """A tensor of that layout on its stretch of the payload."""
    _, dtype, shape, stride, start = layout
    length = math.prod(shape) * dtype.itemsize
    return payload[start : start + length].view(dtype).as_strided(shape, stride)
