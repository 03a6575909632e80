"""Checkpoints: the method's state and the round's number, nothing else, since every random stream has a name.

A file is written whole or not at all, with its hash in its name; the newest that is whole is the one that counts.
"""

import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.methods.protocol import State
from benchmark.tracking.files import write_atomically

KEPT = 2  # checkpoints left on disk
_NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.pt")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where to go on from."""

    round: int  # the last one that is finished
    state: State
    best: dict[str, Any] | None  # the best evaluated round so far
    last: dict[str, float]  # the latest value of every metric


def save(folder: Path, checkpoint: Checkpoint, run: str) -> None:
    """Write the checkpoint, then drop all but the newest. `run` names the cell and seed it belongs to."""
    buffer = io.BytesIO()
    content = {
        "run": run,
        "round": checkpoint.round,
        "server": checkpoint.state.server,
        "clients": checkpoint.state.clients,
        "best": checkpoint.best,
        "last": checkpoint.last,
    }
    torch.save(content, buffer)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()[:16]
    write_atomically(folder / f"round-{checkpoint.round:06d}-{digest}.pt", data)
    for old in _files(folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def newest(folder: Path, run: str) -> Checkpoint | None:
    """The newest checkpoint that is whole; damaged ones are passed over. None where there is none.

    Raises ConfigError for a checkpoint of another run.
    """
    for path in reversed(_files(folder)):
        data = path.read_bytes()
        match = _NAME.fullmatch(path.name)
        if match is None or hashlib.sha256(data).hexdigest()[:16] != match.group(2):
            continue
        content = torch.load(io.BytesIO(data), weights_only=True)
        if content["run"] != run:
            raise ConfigError(f"{path}: belongs to run {content['run']}, not to {run}; it was put here by hand")
        state = State(server=content["server"], clients=content["clients"])
        return Checkpoint(round=content["round"], state=state, best=content["best"], last=content["last"])
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("round-*.pt") if _NAME.fullmatch(path.name))
