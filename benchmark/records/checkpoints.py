"""Checkpoints: the method's state and the round's number, nothing else, since every random stream has a name.

A file is written whole or not at all, with its attempt and the hash of its content in its name; the newest that is
whole is the one that counts: of the last attempt, its last round. An attempt removes files of its own and of earlier
attempts only. So one that stood still while it saved, and wakes when another has taken the run over, takes nothing from
that one: whatever the other goes on from is among the files that this one keeps.

It is a plain tree of tensors and numbers in torch's own format, which is read with `weights_only`: a file
that was put there by somebody else runs no code.

Size: the bytes of all tensors that the method carries (`State`: weight sets at the server, and what each client keeps),
and less than 300 bytes for each of them and 8 kB in all. On disk are `KEPT` of them, for a moment one more. Where the
clients keep more than stays in memory (`ClientStore`), a checkpoint has but the names of their files (`kept`): it
writes those that changed, and on disk are at most `KEPT` states of each client, and what left memory since.

Plain trees in torch's format rather than safetensors: `weights_only` loading runs no code either, the trees are nested
and hold numbers beside tensors, and no further library stands between a run and its state.
"""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.federated.store import MEMORY, ClientStore
from benchmark.methods.protocol import State, Tree
from benchmark.records.client_files import FOLDER, UNREADABLE, ClientFiles, compact, digest_of, first_line
from benchmark.records.files import write_atomically

# Raised when the content changes its meaning. Files without a number are of format 1; format 2 has names of clients'
# files, and is written only where there are some.
FORMAT = 2
KEPT = 2  # checkpoints left on disk
_NAME = re.compile(r"round-(\d{6})(?:-(\d{6}))?-([0-9a-f]{16})\.pt")  # round, attempt (older files: none), hash


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where to go on from."""

    round: int  # the last one that is finished
    state: State
    best: dict[str, Any] | None  # the best evaluated round so far
    last: dict[str, float]  # the latest value of every metric
    exchange: dict[str, Any] | None = None  # `Exchange.summary` so far; None in files of older versions


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a folder of checkpoints gave. Without a checkpoint the run starts from round 1."""

    checkpoint: Checkpoint | None
    warnings: tuple[str, ...] = ()  # one line for each file that was passed over


def save(folder: Path, checkpoint: Checkpoint, run: str, attempt: int = 0) -> int:
    """Write the checkpoint, then drop all but the newest of this and earlier attempts; its size in bytes. `run` names
    the cell and seed it is of. Raises CannotWrite; the checkpoints that were there are then whole."""
    buffer = io.BytesIO()
    shelf = ClientFiles(folder=folder / FOLDER, run=run, attempt=attempt)
    trees, names = _parted(checkpoint.state.clients, shelf)
    content = {
        "format": FORMAT if names else 1,
        "run": run,
        "round": checkpoint.round,
        "server": compact(checkpoint.state.server),
        "clients": compact(trees),
        **({"names": names} if names else {}),
        "best": checkpoint.best,
        "last": checkpoint.last,
        "exchange": checkpoint.exchange,
    }
    torch.save(content, buffer)
    data = buffer.getbuffer()
    write_atomically(folder / f"round-{checkpoint.round:06d}-{attempt:06d}-{digest_of(data)}.pt", data)
    drop(folder, attempt, keep=KEPT)
    if shelf.folder.is_dir():
        shelf.drop_all_but(name for other in _files(folder) for name in _names_in(other))
    return len(data)


def drop(folder: Path, attempt: int, *, keep: int = 0) -> None:
    """Remove the checkpoints of this and earlier attempts but the newest ones; those of a later attempt stay."""
    found = [path for path in _files(folder) if path.is_file() and _order(path)[0] <= attempt]
    for path in found[: len(found) - keep]:
        path.unlink(missing_ok=True)


def _parted(clients: Mapping[str, Tree], shelf: ClientFiles) -> tuple[Mapping[str, Tree], dict[str, str]]:
    """What the checkpoint itself holds, and the names of the files beside it; those of another folder are no use."""
    if isinstance(clients, ClientStore) and clients.shelf == shelf:
        return clients.shelved()
    return dict(clients), {}


def newest(
    folder: Path,
    run: str,
    recorded: int | None = None,
    *,
    before: int | None = None,
    memory: int = MEMORY,
    attempt: int = 0,
) -> Found:
    """The newest checkpoint that is whole, and what was passed over.

    `recorded`: rounds that the run has lines for; `before`: only checkpoints of earlier rounds; `memory`: bytes of what
    clients keep that stay in memory; `attempt`: the one that goes on from it. Raises ConfigError for a file of another
    run or of a newer format, and for one that only looks like a checkpoint.
    """
    warnings: list[str] = []
    shelf = ClientFiles(folder=folder / FOLDER, run=run, attempt=attempt)
    for path in reversed([path for path in _files(folder) if before is None or _round(path) < before]):
        if not path.is_file():
            warnings.append(f"{path.name} is no file: passed over")
            continue
        data = path.read_bytes()
        if digest_of(data) != _NAME.fullmatch(path.name).group(3):  # type: ignore[union-attr]  # it is one of _files
            warnings.append(f"{path.name} is damaged ({len(data)} bytes with another checksum): passed over")
        elif recorded is not None and _round(path) > recorded:
            warnings.append(f"{path.name} is ahead of rounds.jsonl, which ends at round {recorded}: passed over")
        else:
            found, names = _read(path, data, run)
            missing = shelf.missing(names.values())
            if not missing:
                store = ClientStore(found.state.clients, names=names, shelf=shelf, memory=memory)
                return Found(
                    checkpoint=replace(found, state=replace(found.state, clients=store)), warnings=(*warnings,)
                )
            warnings.append(f"{path.name} needs {FOLDER}/{missing[0]}, which is damaged or gone: passed over")
    if warnings:
        warnings.append("no checkpoint is left: the run starts from round 1")
    return Found(checkpoint=None, warnings=tuple(warnings))


def _read(path: Path, data: bytes, run: str) -> tuple[Checkpoint, dict[str, str]]:
    """The checkpoint, and the names of clients' files by keeper."""
    try:
        content = torch.load(io.BytesIO(data), weights_only=True)
        found_format, found_run = content.get("format", 1), content["run"]
        if found_run == run and found_format in range(1, FORMAT + 1):
            return _checkpoint(content), {str(keeper): str(name) for keeper, name in content.get("names", {}).items()}
    except UNREADABLE as error:
        raise ConfigError(
            f"{path}: is no checkpoint of a run ({first_line(error)}); without this file the run can start"
        ) from None
    if found_run != run:
        raise ConfigError(f"{path}: belongs to run {found_run}, not to {run}; it was put here by hand")
    raise ConfigError(
        f"{path}: has format {found_format}, this version reads format {FORMAT}; that which wrote it can go on"
    )


def _checkpoint(content: Mapping[str, Any]) -> Checkpoint:
    """Raises one of UNREADABLE for content of another form."""
    if not isinstance(content["round"], int) or content["round"] < 1:
        raise ValueError(f"round {content['round']!r}")
    for name in ("server", "clients", "last"):
        if not isinstance(content[name], dict):
            raise TypeError(f"{name} is a {type(content[name]).__name__}")
    for name in ("best", "exchange"):
        if not isinstance(content.get(name), dict | None):
            raise TypeError(f"{name} is a {type(content[name]).__name__}")
    for keeper, tree in content["clients"].items():
        if not isinstance(tree, dict | None):
            raise TypeError(f"what client {keeper} keeps is a {type(tree).__name__}")
    state = State(server=content["server"], clients=content["clients"])
    return Checkpoint(
        round=content["round"],
        state=state,
        best=content["best"],
        last=content["last"],
        exchange=content.get("exchange"),
    )


def _names_in(path: Path) -> Iterator[str]:
    """The clients' files that a checkpoint needs; none where it cannot be read."""
    try:
        content = torch.load(path, weights_only=True, mmap=True)
        yield from content.get("names", {}).values()
    except (OSError, *UNREADABLE):
        return


def _files(folder: Path) -> list[Path]:
    """The checkpoints, the newest last."""
    return sorted((path for path in folder.glob("round-*.pt") if _NAME.fullmatch(path.name)), key=_order)


def _order(path: Path) -> tuple[int, int]:
    """Attempt and round."""
    named = _NAME.fullmatch(path.name)
    assert named is not None
    return int(named.group(2) or 0), int(named.group(1))


def _round(path: Path) -> int:
    return _order(path)[1]
