"""File names that no label can break out of."""

import hashlib
import re


def slug(name: str) -> str:
    """A file name for `name`: itself where it is plain, otherwise its plain characters and a hash that keeps two
    names apart. Never empty, never "..", no separators."""
    if re.fullmatch(r"[a-z0-9]([a-z0-9_-]|\.(?=[a-z0-9]))*", name):
        return name
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:40]
    return f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}".lstrip("-")
