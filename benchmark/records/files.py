"""Files that are whole or absent: atomic writes, checked reads."""

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmark.errors import CannotWrite, DataError

ANEW = "without this run's folder it is trained anew"
TEMPORARY = ".tmp"  # the end of the name of a file that is being written


def write_atomically(path: Path, content: bytes | memoryview, *, anew: bool = False) -> None:
    """Write beside, flush to disk, rename, flush the folder: a reader sees the old file or the new one, also after the
    machine has lost its power. A file that has this content already is left alone, unless it has to be `anew`: who has
    the old one open then writes to a file that has no name any more. Raises CannotWrite."""
    try:
        if not anew and path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = written_beside(path, content)
        try:
            os.replace(temporary, path)
            flush(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot_write(path, error) from None


def written_beside(path: Path, content: bytes | memoryview) -> Path:
    """A temporary file in the folder of `path` with this content, flushed to the disk. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def cannot_write(path: Path, error: OSError) -> CannotWrite:
    return CannotWrite(f"{path}: cannot be written ({error.strerror}); make room, or name another folder by --results")


def flush(path: Path) -> None:
    """Wait until a file's content, or a folder's names, are on the disk. Raises OSError."""
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
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is damaged ({error}); {ANEW}") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: is a {type(value).__name__}, not a JSON object; {ANEW}")
    return value


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
