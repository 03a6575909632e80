"""Writing a report's files: each whole or not at all, and file names that no label can break out of."""

import hashlib
import os
import re
import tempfile
from pathlib import Path

from benchmark.errors import CannotWrite


def write_atomically(path: Path, content: bytes) -> None:
    """Writes beside the target and renames, so that a reader sees the old file or the new one. A file that already has
    this content is left alone. Raises CannotWrite, naming the path."""
    try:
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        reason = error.strerror or error
        raise CannotWrite(f"cannot write {path}: {reason}; choose a folder you may write to") from error


def slug(name: str) -> str:
    """A file name for `name`: itself where it is plain, otherwise its plain characters and a hash that keeps two
    names apart. Never empty, never "..", no separators."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9_-]|\.(?=[a-z0-9]))*", name):
        return name
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")
