"""What clients keep, as files beside the checkpoints: one for each state that a client was in when it had to leave
memory, written once and never changed, with its attempt and the hash of its content in its name."""

import hashlib
import io
import pickle
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from torch import Tensor

from benchmark.errors import DataError
from benchmark.methods.protocol import Tree
from benchmark.records.files import write_atomically

FOLDER = "clients"  # within that of the checkpoints
_NAME = re.compile(r"[A-Za-z0-9_.~%-]{0,40}?(?:-(\d{6}))?-([0-9a-f]{16})\.pt")  # attempt (older files: none), hash


@dataclass(frozen=True, kw_only=True)
class ClientFiles:
    """A `Shelf` in a folder. `run` names the cell and seed that the files belong to, `attempt` is the one that writes.
    It removes no later attempt's files."""

    folder: Path
    run: str
    attempt: int = 0

    def put(self, keeper: str, tree: Tree) -> str:
        """Write the tree durably. Raises CannotWrite."""
        buffer = io.BytesIO()
        torch.save({"run": self.run, "keeper": keeper, "tree": compact(tree)}, buffer)
        data = buffer.getbuffer()
        name = f"{quote(keeper, safe='')[:40]}-{self.attempt:06d}-{digest_of(data)}.pt"
        write_atomically(self.folder / name, data)
        return name

    def get(self, keeper: str, name: str) -> Tree:
        """The tree, mapped from its file. Raises DataError where the file is gone, damaged or of somebody else."""
        try:
            content = torch.load(self.folder / name, weights_only=True, mmap=True)
            if (content["run"], content["keeper"]) != (self.run, keeper):
                raise ValueError(f"it is of {content['keeper']} of run {content['run']}")
            return content["tree"]
        except (OSError, *UNREADABLE) as error:
            raise DataError(
                f"{self.folder / name}: what {keeper} keeps cannot be read ({first_line(error)}); the same command "
                "goes on from the last checkpoint that is whole"
            ) from None

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those of the names whose file is not there, or has other content than it was written with."""
        return [name for name in names if not is_whole(self.folder / name)]

    def drop_all_but(self, names: Iterable[str]) -> None:
        """Remove what no checkpoint needs any more, or what a process that was killed had put there."""
        needed = set(names)
        for path in self.folder.glob("*.pt"):
            named = _NAME.fullmatch(path.name)
            if named and int(named.group(1) or 0) <= self.attempt and path.name not in needed:
                path.unlink(missing_ok=True)


# What reading a file raises that is not what torch wrote.
UNREADABLE = (
    pickle.UnpicklingError,
    struct.error,
    RuntimeError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    EOFError,
)


def is_whole(path: Path) -> bool:
    """Whether the file has the content that its name says; a name that `put` does not give is nobody's."""
    named = _NAME.fullmatch(path.name)
    if named is None or not path.is_file():
        return False
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16] == named.group(2)


def digest_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def first_line(error: BaseException) -> str:
    said = str(error).strip()
    return said.splitlines()[0] if said else repr(error)


def compact(tree: Any) -> Any:
    """The tree without the rest of a storage that a tensor is only a view of, which torch would write, too."""
    if isinstance(tree, Mapping):
        return {name: compact(value) for name, value in tree.items()}
    if isinstance(tree, Tensor) and tree.untyped_storage().nbytes() > tree.numel() * tree.element_size():
        return tree.clone()
    return tree
