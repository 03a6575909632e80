"""File names that no label can break out of, and files of the site."""

import hashlib
import os
import re
from pathlib import Path

from benchmark.errors import CannotWrite
from benchmark.papers.item import Item


def slug(name: str) -> str:
    """A file name for `name`: itself where it is plain, otherwise its plain characters and a hash that keeps two
    names apart. Never empty, never "..", no separators."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9_-]|\.(?=[a-z0-9])){0,100}", name):
        return name
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")


def item_page(item: Item) -> Path:
    """The item's page, relative to the site: ssfl/tab2/laptop/index.html."""
    return Path(*(slug(part) for part in item.name.split("/")), slug(item.profile), "index.html")


def put(path: Path, content: bytes) -> None:
    """The file whole or as it was, without waiting for the disk: what is built from records can be built again.
    A file that has this content already is left alone. Raises CannotWrite."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_file() and path.read_bytes() == content:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CannotWrite(
            f"{path}: cannot be written ({error.strerror}); a folder of yours with room would be right"
        ) from None
