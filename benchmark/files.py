"""Files that are whole or absent: atomic writes, checked reads."""

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from benchmark.errors import CannotWrite, DataError, DiskFull
from benchmark.plain import from_json_text

ANEW = "without this run's folder it is trained anew"
TEMPORARY = ".tmp"  # the end of the name of a file that is being written


def write_atomically(path: Path, content: bytes | memoryview, *, flushed: bool = True) -> None:
    """Write `content` in place of the file; one that has it already is left alone. Raises CannotWrite.

    Where it is not `flushed`, thousands of files take seconds; a machine that loses its power may lose them.
    """
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    with replacing(path, flushed=flushed) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, check: Callable[[], object] = lambda: None, *, flushed: bool = True) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of the one at `path` in the end.

    It is flushed to the disk, renamed, and the folder flushed: a reader sees the old file or the new one, also after
    the machine has lost its power. `check` is called just before the rename. Raises CannotWrite, and what `check` does.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as (temporary, file):
            yield file
            file.flush()
            if flushed:
                os.fsync(file.fileno())
            check()
            os.replace(temporary, path)
            if flushed:
                flush_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from None


def put_once(path: Path, content: bytes) -> bytes:
    """Link the content into place where no file is there yet. The content that is there then. Raises CannotWrite."""
    try:
        with _temporary(path) as (temporary, file):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except OSError:
                if not path.exists():  # a file system without links: only as good as this look
                    os.replace(temporary, path)
            flush_folder(path.parent)
            return path.read_bytes()
    except OSError as error:
        raise cannot_write(path, error) from None


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A file in the same folder, gone in the end unless it was renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=TEMPORARY)
    try:
        with contextlib.suppress(OSError):  # file systems without modes: CIFS, gcsfuse, mounts of S3
            os.chmod(name, 0o644)
        with open(handle, "wb") as file:
            yield Path(name), file
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else CannotWrite
    return kind(f"{path}: cannot be written ({error.strerror}); make room, or name another folder")


def flush_folder(path: Path) -> None:
    """Wait until the folder's names are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Drop what processes that were killed had begun to write. Only for a folder that this process has claimed."""
    for path in folder.rglob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `json_bytes` atomically. Raises CannotWrite."""
    write_atomically(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """JSON with sorted keys; NaN is refused (ValueError), since readers differ about it."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def bytes_of(path: Path) -> bytes | None:
    """The file's content, or None where there is no file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path: Path) -> Any:
    """The file's JSON object, or None where there is no file. Raises DataError for anything else."""
    content = bytes_of(path)
    return None if content is None else json_object(content, path)


def json_object(content: bytes, path: Path) -> dict[str, Any]:
    """The JSON object in the content of the file at `path`. Raises DataError."""
    try:
        value = from_json_text(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is damaged ({error}); {ANEW}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: is a {type(value).__name__}, not a JSON object; {ANEW}")
    return value
