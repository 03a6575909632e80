"""The sources of the user's own classes: the module of a class, and those of her modules that it imports.

Her modules are all that belong neither to Python, nor to an installed package, nor to this project.
"""

import contextlib
import functools
import hashlib
import inspect
import sys
import sysconfig
from modulefinder import ModuleFinder
from pathlib import Path

from benchmark.records.provenance import CODE

INSTALLED = frozenset({"site-packages", "dist-packages"})  # folders of packages


@functools.cache
def source_hash(cls: type) -> str | None:
    """16 hexadecimal digits; None for a class that has no file, such as one typed into a notebook.

    It is of the names and contents of the modules, wherever they lie.
    """
    files: dict[str, str] = {}
    with contextlib.suppress(OSError, TypeError):
        files[cls.__module__] = inspect.getfile(cls)
    finder = ModuleFinder(_users_folders(), excludes=CODE)
    with contextlib.suppress(ImportError):  # of an installed package: its own file alone
        finder.import_hook(cls.__module__)  # reads sources, and runs nothing
        modules = ((name, getattr(module, "__file__", None)) for name, module in finder.modules.items())
        files |= {name: file for name, file in modules if file}
    digest = hashlib.sha256()
    for name, file in sorted(files.items()):
        source = Path(file).read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16] if files else None


def _users_folders() -> list[str]:
    """Where Python looks for modules, without its own and the installed ones."""
    python = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    folders = [Path(entry or ".").resolve() for entry in sys.path]
    return [
        str(folder) for folder in folders if not python & {folder, folder.parent} and INSTALLED.isdisjoint(folder.parts)
    ]
