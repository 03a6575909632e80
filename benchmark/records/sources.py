"""Hash the source of custom classes: the module of each class, and the user's modules that it imports.

A module is the user's if it belongs neither to Python, nor to an installed package, nor to this project. Experiments
are passed as JSON, so that a record can be checked without importing its code.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import itertools
import marshal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

from benchmark.errors import ConfigError
from benchmark.records.provenance import CODE, ROOT

INSTALLED = ("site-packages", "dist-packages")
MAIN = "__main__"


def own_names(experiment: Mapping[str, Any]) -> list[str]:
    """Return the custom classes and folders in an experiment's JSON: "my:Mine", "folder:/data/leaves"."""
    named = (experiment["method"]["kind"], experiment["model"].get("network", ""), experiment["data"]["name"])
    return [name for name in named if ":" in name]


def own_classes(experiment: Mapping[str, Any]) -> list[str]:
    """Return the custom classes in an experiment's JSON."""
    return [name for name in own_names(experiment) if not name.startswith("folder:")]


def imported_class(name: str) -> type | None:
    """Return the class `module:Class` if its module is imported, and None if not."""
    module, _, attribute = name.partition(":")
    cls = getattr(sys.modules.get(module), attribute, None)
    return cls if isinstance(cls, type) else None


def sources(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return `module:Class` -> hash of its source, for custom classes that are imported."""
    hashes = dict[str, str]()
    for name in own_classes(experiment):
        module = name.partition(":")[0]
        cls = imported_class(name)
        if cls is not None and (source := source_hash(cls, module)) is not None:
            hashes[name] = source
    return hashes


def all_sources(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return `sources` of an experiment that will be trained. Raise ConfigError if one of its
    classes has no source.
    """
    hashes = sources(experiment)
    for name in own_classes(experiment):
        if name not in hashes:
            raise ConfigError(
                f"{name} has no source that can be recorded; define the class in a file, and name it module:Class"
            )
    return hashes


@functools.cache
def source_hash(cls: type, module: str) -> str | None:
    """Return 16 hexadecimal digits of the module that names the class, as imported; the class may
    be defined elsewhere.

    For a class in `__main__`, hash the script. For one without a file, such as in a notebook, hash
    the compiled methods. Return None for a class that has neither.
    """
    if files := files_of(module):
        return hash_of(files)
    codes = [(name, _code_of(value)) for name, value in sorted(vars(cls).items())]
    compiled = [(name, marshal.dumps(_without_places(code))) for name, code in codes if code is not None]
    return hashlib.sha256(repr(compiled).encode()).hexdigest()[:16] if compiled else None


def _code_of(value: object) -> CodeType | None:
    function = getattr(value, "fget", None) or getattr(value, "__func__", value)
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _without_places(code: CodeType) -> CodeType:
    """Return the same code without file names and line numbers."""
    constants = tuple(_without_places(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=constants)


def files_of(start: str) -> dict[str, bytes]:
    """Return the module with that name and the user's modules that it imports: "pkg/part.py" -> content."""
    own_package = start.partition(".")[0]
    files: dict[str, bytes] = {}
    waiting = [start]
    seen = set[str]()
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
    """Return a hash of the names and contents of the modules, wherever they are."""
    digest = hashlib.sha256()
    modules = [(module_of(name), source) for name, source in files.items()]
    for module, source in sorted(modules):
        digest.update(f"{module} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:16]


def module_of(name: str) -> str:
    """Return the module of a file's name: "pkg/__init__.py" -> "pkg"."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _file_of(module: str) -> Path | None:
    if module == MAIN:  # the script, which cannot be found as a module
        script = Path(getattr(sys.modules[MAIN], "__file__", None) or "")
        return script.resolve() if script.suffix == ".py" and script.is_file() else None
    try:
        spec = importlib.util.find_spec(module)
    except Exception:  # a name in a module, or any error of a user's package, which this line imports
        return None
    path = Path(spec.origin) if spec is not None and spec.origin else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


@functools.cache
def _is_users(package: str) -> bool:
    """Return whether a top-level module or package is the user's. It is located without an import."""
    try:
        spec = None if package in sys.stdlib_module_names else importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    if not place:
        return False
    path = Path(place).resolve()
    ours = any(path.is_relative_to(ROOT / folder) for folder in CODE)
    return not ours and not set(INSTALLED) & set(path.parts)


def _imported(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Yield the names of all modules that the source may import, anywhere in it, and of their packages.

    Some of the names are not modules.
    """
    parent = module.rpartition(".")[0]
    names = [parent]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # then nothing can import it
        tree = ast.Module(body=[], type_ignores=[])
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names += [alias.name for alias in aliases]
            case ast.ImportFrom(module=start, names=aliases, level=level):
                with contextlib.suppress(ImportError):  # beyond the top package
                    start = importlib.util.resolve_name("." * level + (start or ""), module if is_package else parent)
                    names += [start, *(f"{start}.{alias.name}" for alias in aliases)]
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                called = getattr(function, "attr", getattr(function, "id", None))
                names += [name] if called in ("import_module", "__import__") else []
    for name in filter(None, names):
        yield from itertools.accumulate(name.split("."), "{}.{}".format)
