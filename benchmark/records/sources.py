"""The sources of the user's own classes: the module of a class, and those of her modules that it imports.

Her modules are all that belong neither to Python, nor to an installed package, nor to this project.
"""

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmark.records.provenance import CODE, ROOT

INSTALLED = ("site-packages", "dist-packages")


@functools.cache
def source_hash(cls: type) -> str | None:
    """16 hexadecimal digits; None for a class that has no file, such as one typed into a notebook."""
    files = files_of(cls.__module__)
    return hash_of(files) if files else None


def files_of(start: str) -> dict[str, bytes]:
    """The module of that name and the user's modules that it imports: "pkg/part.py" -> content."""
    own_package = start.partition(".")[0]
    files: dict[str, bytes] = {}
    waiting, seen = [start], set[str]()
    while waiting:
        module = waiting.pop()
        package = module.partition(".")[0]
        wanted = module == start or _is_users(package) or (package == own_package and package not in CODE)
        path = _file_of(module) if wanted and module not in seen else None
        seen.add(module)
        if path is not None:
            is_package = path.name == "__init__.py"
            name = f"{module.replace('.', '/')}{'/__init__' if is_package else ''}.py"
            files[name] = path.read_bytes().replace(b"\r\n", b"\n")
            waiting += _imported(files[name], module, is_package=is_package)
    return files


def hash_of(files: Mapping[str, bytes]) -> str:
    """Of the names and contents of the modules, wherever they lie."""
    digest = hashlib.sha256()
    for module, source in sorted((module_of(name), source) for name, source in files.items()):
        digest.update(f"{module} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def module_of(name: str) -> str:
    """ "pkg/__init__.py" -> "pkg"."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _file_of(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # not a module, but a name in one; or whatever a user's package raises, which is imported for it
        return None
    path = Path(spec.origin) if spec is not None and spec.origin else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


@functools.cache
def _is_users(package: str) -> bool:
    """Whether a top-level module or package is the user's. It is looked for, and not imported."""
    try:
        spec = None if package in sys.stdlib_module_names else importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    places = [spec.origin] if spec and spec.origin else [*(spec.submodule_search_locations or ())] if spec else []
    if not places:
        return False
    path = Path(str(places[0])).resolve()
    return not any(part in INSTALLED for part in path.parts) and not any(
        path.is_relative_to(ROOT / folder) for folder in CODE
    )


def _imported(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Names of all modules that the source may import, wherever in it; some of them are no modules."""
    parents = module.split(".")
    yield from (".".join(parents[:length]) for length in range(1, len(parents)))
    package = module if is_package else ".".join(parents[:-1])
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # then nothing can import it, either
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            ancestors = package.split(".")
            base = ancestors[: len(ancestors) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [start, *(f"{start}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and _is_import_module(node.func) and node.args:
            names = [value for value in [getattr(node.args[0], "value", None)] if isinstance(value, str)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _is_import_module(function: ast.expr) -> bool:
    return getattr(function, "attr", getattr(function, "id", None)) in ("import_module", "__import__")
