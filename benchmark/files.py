"""Write files atomically, so that each is complete or absent, and read them with checks."""

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

ANEW = "delete this run's folder to train it again"
TEMPORARY = ".tmp"  # suffix of a file that is being written


def write_atomically(path: Path, content: bytes | memoryview, *, flushed: bool = True) -> None:
    """Replace the file's content atomically; do not touch a file that already has this content. Raise CannotWrite.

    If not `flushed`, thousands of files are written within seconds, but a power failure may lose them.
    """
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    with replacing(path, flushed=flushed) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, check: Callable[[], object] = lambda: None, *, flushed: bool = True) -> Iterator[BinaryIO]:
    """Yield a temporary file to write into, which finally replaces the file at `path`.

    The file is flushed to the disk and renamed, and then the folder is flushed. A reader therefore sees either the old
    file or the new one, even after a power failure. `check` is called just before the rename. Raise CannotWrite, and
    any error that `check` raises.
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
    """Create the file with this content if it does not exist yet, and return its content afterwards.

    Raise CannotWrite if this fails.
    """
    try:
        with _temporary(path) as (temporary, file):
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except OSError:
                if not path.exists():  # without links, a file may appear after this check
                    os.replace(temporary, path)
            flush_folder(path.parent)
            return path.read_bytes()
    except OSError as error:
        raise cannot_write(path, error) from None


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield a temporary file in the same folder, which is deleted at the end unless it was renamed."""
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
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "free some space, or name a different folder" if is_full else "name a different folder"
    return (DiskFull if is_full else CannotWrite)(f"{path} cannot be written ({error.strerror}); {remedy}")


def flush_folder(path: Path) -> None:
    """Wait until the folder's file names are on the disk. Raise OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot flush a folder
            raise
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Remove the temporary files of killed processes from a folder that this process has locked."""
    for path in folder.rglob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write the value atomically as `json_bytes`. Raise CannotWrite."""
    write_atomically(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Return the value as JSON with sorted keys. Raise ValueError for NaN, which JSON readers treat differently."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def bytes_of(path: Path) -> bytes | None:
    """Return the file's content, or None if there is no file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path: Path) -> Any:
    """Return the file's JSON object, or None if there is no file. Raise DataError for any other content."""
    content = bytes_of(path)
    return None if content is None else json_object(content, path)


def json_object(content: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON object in the content of the file at `path`. Raise DataError if it is not a JSON object."""
    try:
        value = from_json_text(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}); {ANEW}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path} contains a {type(value).__name__}, not a JSON object; {ANEW}")
    return value
