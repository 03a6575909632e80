"""Write all committed records of a results folder to one archive, and unpack one: for installed packages without them.

The archive is a tar file with one entry per committed copy, CELL_KEY/seed=N.json.gz. Equal records give equal bytes.
"""

import io
import re
import tarfile
from pathlib import Path

from benchmark.errors import DataError, one_line
from benchmark.files import write_atomically
from benchmark.records.copies import LARGEST, copy_of

NAME = re.compile(r"[0-9a-f]{16}/seed=\d+(@[a-z0-9-]+)?\.json\.gz").fullmatch
REMEDY = "write the archive again by `fssl data records --write FILE` in a checkout"


def write_archive(results: Path, archive: Path) -> int:
    """Write the committed copies to the archive, and return their number. Raise DataError if there are none."""
    paths = sorted((results / "reference").glob("*/*.json.gz"))
    if not paths:
        raise DataError(f"{results / 'reference'} contains no committed records; type the command in a checkout")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as packed:
        for path in paths:
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{path.parent.name}/{path.name}")
            entry.size = len(content)
            entry.mode = 0o644
            packed.addfile(entry, io.BytesIO(content))
    write_atomically(archive, buffer.getbuffer())
    return len(paths)


def unpack_archive(archive: Path, results: Path) -> int:
    """Unpack the archive into the results folder, and return the number of records.

    Every entry is checked before the first one is written. Raise DataError if the file is not such an archive, if a
    record in it is damaged, or if the folder has a different record of the same name.
    """
    contents = _read(archive)
    for name, content in contents.items():
        path = results / "reference" / name
        copy_of(content, path, remedy=REMEDY)
        if path.is_file() and path.read_bytes() != content:
            raise DataError(f"{path} differs from the record in {archive}; move one of the two away")
    for name, content in contents.items():
        path = results / "reference" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content, flushed=False)
    return len(contents)


def _read(archive: Path) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, mode="r:") as packed:
            for entry in packed:
                if not (entry.isreg() and NAME(entry.name) and entry.size <= LARGEST):
                    raise DataError(f"{archive} contains {entry.name!r}, which is not a record; {REMEDY}")
                file = packed.extractfile(entry)
                assert file is not None  # it is a regular file
                contents[entry.name] = file.read()
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{archive} is not an archive of records ({one_line(error)}); {REMEDY}") from None
    return contents
