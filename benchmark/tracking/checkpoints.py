"""Checkpoints: the method's state and the round's number, nothing else, since every random stream has a name.

A file is written whole or not at all, with the hash of its content in its name; the newest that is whole is the one
that counts. It is a plain tree of tensors and numbers in torch's own format, which is read with `weights_only`: a file
that was put there by somebody else runs no code.

Size: the bytes of all tensors that the method carries (`State`: weight sets at the server, and what each client keeps),
and less than 300 bytes for each of them and 8 kB in all. On disk are `KEPT` of them, for a moment one more.
"""

import hashlib
import io
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.methods.protocol import State
from benchmark.tracking.files import write_atomically

FORMAT = 1  # raised when the content changes its meaning; files without a number are of format 1
KEPT = 2  # checkpoints left on disk
_NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where to go on from."""

    round: int  # the last one that is finished
    state: State
    best: dict[str, Any] | None  # the best evaluated round so far
    last: dict[str, float]  # the latest value of every metric


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a folder of checkpoints gave. Without a checkpoint the run starts from round 1."""

    checkpoint: Checkpoint | None
    warnings: tuple[str, ...] = ()  # one line for each file that was passed over


def save(folder: Path, checkpoint: Checkpoint, run: str) -> int:
    """Write the checkpoint, then drop all but the newest; its size in bytes. `run` names the cell and seed it is of.

    Later rounds than this one are dropped, too: they were damaged, and the run went on from an older one.
    Raises CannotWrite; the checkpoints that were there are then whole.
    """
    buffer = io.BytesIO()
    content = {
        "format": FORMAT,
        "run": run,
        "round": checkpoint.round,
        "server": _compact(checkpoint.state.server),
        "clients": _compact(checkpoint.state.clients),
        "best": checkpoint.best,
        "last": checkpoint.last,
    }
    torch.save(content, buffer)
    data = buffer.getbuffer()
    path = folder / f"round-{checkpoint.round:06d}-{_digest(data)}.pt"
    write_atomically(path, data)
    older = [other for other in _files(folder) if _round(other) <= checkpoint.round and other != path]
    for other in set(_files(folder)) - {path, *older[len(older) - (KEPT - 1) :]}:
        other.unlink(missing_ok=True)
    return len(data)


def newest(folder: Path, run: str, recorded: int | None = None) -> Found:
    """The newest checkpoint that is whole, and what was passed over. `recorded`: rounds that the run has lines for.

    Raises ConfigError for a file of another run or of a newer format, and for one that only looks like a checkpoint.
    """
    warnings: list[str] = []
    for path in reversed(_files(folder)):
        data = path.read_bytes()
        if _digest(data) != _NAME.fullmatch(path.name).group(2):  # type: ignore[union-attr]  # it is one of _files
            warnings.append(f"{path.name} is damaged ({len(data)} bytes with another checksum): passed over")
        elif recorded is not None and _round(path) > recorded:
            warnings.append(f"{path.name} is ahead of rounds.jsonl, which ends at round {recorded}: passed over")
        else:
            return Found(checkpoint=_read(path, data, run), warnings=tuple(warnings))
    if warnings:
        warnings.append("no checkpoint is left: the run starts from round 1")
    return Found(checkpoint=None, warnings=tuple(warnings))


def _read(path: Path, data: bytes, run: str) -> Checkpoint:
    try:
        content = torch.load(io.BytesIO(data), weights_only=True)
        found_format, found_run = content.get("format", 1), content["run"]
    except (pickle.UnpicklingError, RuntimeError, AttributeError, LookupError, TypeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"{path}: is no checkpoint of a run ({reason}); without this file the run can start"
        ) from None
    if found_format != FORMAT:
        raise ConfigError(
            f"{path}: has format {found_format}, this version reads format {FORMAT}; that which wrote it can go on"
        )
    if found_run != run:
        raise ConfigError(f"{path}: belongs to run {found_run}, not to {run}; it was put here by hand")
    state = State(server=content["server"], clients=content["clients"])
    return Checkpoint(round=content["round"], state=state, best=content["best"], last=content["last"])


def _compact(tree: Any) -> Any:
    """The tree without the rest of a storage that a tensor is only a view of, which torch would write, too."""
    if isinstance(tree, Mapping):
        return {name: _compact(value) for name, value in tree.items()}
    if isinstance(tree, Tensor) and tree.untyped_storage().nbytes() > tree.numel() * tree.element_size():
        return tree.clone()
    return tree


def _digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _files(folder: Path) -> list[Path]:
    """The checkpoints by name, the newest last."""
    return sorted(path for path in folder.glob("round-*.pt") if _NAME.fullmatch(path.name))


def _round(path: Path) -> int:
    return int(path.name.split("-")[1])
