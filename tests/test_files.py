"""Files on file systems that do less than usual."""

import errno
import os
from pathlib import Path

import pytest

from benchmark.files import put_once, write_atomically


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EACCES])
def test_a_file_system_without_modes_is_written_to(number: int, tmp_path: Path, monkeypatch) -> None:
    """CIFS, gcsfuse and mounts of S3 refuse `chmod` in several ways."""

    def refuse(*args: object, **options: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "chmod", refuse)
    write_atomically(tmp_path / "a", b"1")
    assert put_once(tmp_path / "b", b"2") == b"2"
    assert (tmp_path / "a").read_bytes() == b"1" and sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
