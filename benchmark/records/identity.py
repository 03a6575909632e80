"""What a run is computed from: the content of its data, and the sources of the user's own classes.

A record answers only for that. Its manifest names it from the first round on; where what is at hand differs, the run is
trained apart. `seed=<n>` is the first; another data or source hash goes to `seed=<n>@<8 hexadecimal digits>`.

What is not at hand cannot differ: then records count as they are. So do those of older versions, which name no sources.
An experiment is its JSON here: that of a record, whose code is not imported, will do.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.data.content import content_hash, has_known_files
from benchmark.data.datasets import DATASETS
from benchmark.data.fedmatch import pooled_hash
from benchmark.data.folder import public_name
from benchmark.data.reading import UNKNOWN_ORIGIN
from benchmark.errors import DataError
from benchmark.files import read_json
from benchmark.records import schema
from benchmark.records.provenance import CODE, ROOT

MANIFEST, RESULT = "manifest.json", "result.json"
INSTALLED = ("site-packages", "dist-packages")


def data_hash(experiment: Mapping[str, Any]) -> str | None:
    """The hash of an experiment's data, as `manifest` has it; None: they are not here."""
    data = experiment["data"]
    content, pooled_test = content_hash(data["name"]), data.get("pooled_test")
    return pooled_hash(content, pooled_test, experiment["seed"]) if content and pooled_test else content


def sources(experiment: Mapping[str, Any]) -> dict[str, str]:
    """`module:Class` -> hash of its source, for the user's own classes that are imported."""
    hashes = dict[str, str]()
    for name in own_names(experiment):
        module, _, attribute = name.partition(":")
        cls = getattr(sys.modules.get(module), attribute, None)
        if isinstance(cls, type) and (source := source_hash(cls, module)) is not None:
            hashes[name] = source
    return hashes


def short_hash(experiment: Mapping[str, Any]) -> str:
    """8 hexadecimal digits that name the folder of a run that is trained apart."""
    return hashlib.sha256(repr([data_hash(experiment), sorted(sources(experiment).items())]).encode()).hexdigest()[:8]


def differences(experiment: Mapping[str, Any], manifest: Mapping[str, Any], *, finished: bool) -> list[str]:
    """What is here otherwise than a record was computed from, in words.

    A finished record on files of a known set that the suite lists counts wherever any others that it lists are. An
    unfinished run goes on with the same files only.
    """
    lines, name = [], experiment["data"]["name"]
    data, recorded = manifest.get("data", {}), manifest.get("sources", {})
    if "hash" in data and not (finished and _lists_both(name, data)):
        here = data_hash(experiment)
        if here not in (None, data["hash"]):
            lines.append(_in_words(f"data: {public_name(name)} has content", here, data["hash"]))
    for name, here in sources(experiment).items():
        if recorded.get(name, here) != here:
            lines.append(_in_words(f"code: {name} and what it imports have source", here, recorded[name]))
    return lines


def _lists_both(name: str, recorded: Mapping[str, Any]) -> bool:
    """Whether the suite lists the files that are here and those of the record."""
    if name not in DATASETS or UNKNOWN_ORIGIN in recorded.get("note", ""):
        return False
    return has_known_files(name) is not False


def own_names(experiment: Mapping[str, Any]) -> list[str]:
    """The classes and folders of the user's own that an experiment's JSON names: "my:Mine", "folder:/data/leaves"."""
    named = (experiment["method"]["kind"], experiment["model"].get("network", ""), experiment["data"]["name"])
    return [name for name in named if ":" in name]


def seed_folder(cell_folder: Path, experiment: Mapping[str, Any]) -> Path:
    """The folder of the run on what is at hand: a finished one, else one that goes on, else one to begin."""
    plain = cell_folder / f"seed={experiment['seed']}"
    equal = [
        folder
        for folder in (plain, *sorted(cell_folder.glob(f"{plain.name}@*")))
        if (manifest := manifest_of(folder)) is not None
        and not differences(experiment, manifest, finished=_finished(folder))
    ]
    if equal:
        return min(equal, key=lambda folder: not _finished(folder))
    return plain if manifest_of(plain) is None else plain.with_name(f"{plain.name}@{short_hash(experiment)}")


def why_apart(folder: Path, experiment: Mapping[str, Any]) -> str | None:
    """One line on a run that is not in the cell's first folder of its seed; None for one that is."""
    plain = folder.with_name(f"seed={experiment['seed']}")
    if folder == plain:
        return None
    return apart_in_words(differences(experiment, manifest_of(plain) or {}, finished=_finished(plain)), folder)


def apart_in_words(lines: Sequence[str], folder: Path) -> str:
    return f"{'; '.join(lines)}; trained apart in {folder.name}"


def manifest_of(folder: Path) -> Mapping[str, Any] | None:
    """None where no run has begun there; empty for a damaged one, which whoever reads the record reports."""
    try:
        return read_manifest(folder) or None
    except (DataError, OSError):
        return {}


def read_manifest(folder: Path) -> dict[str, Any]:
    """`manifest.json` of a run; empty where there is none. Raises DataError."""
    manifest = read_json(folder / MANIFEST)
    return {} if manifest is None else dict(schema.check(manifest, schema.MANIFEST, f"{folder / MANIFEST}"))


def _finished(folder: Path) -> bool:
    return os.path.exists(folder / RESULT)  # also where this user may not look


def _in_words(what: str, here: str | None, recorded: str) -> str:
    return f"{what} {here and here[:8]}.., the record was computed from {recorded[:8]}.."


# Sources: the module of a user's class, and those of her modules that it imports. Hers are all that belong neither to
# Python, nor to an installed package, nor to this project.


@functools.cache
def source_hash(cls: type, module: str) -> str | None:
    """16 hexadecimal digits of the module that names the class, which may be made in another one; as it was imported.

    None for one that has no file, such as a notebook.
    """
    files = files_of(module)
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
    place = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    if not place:
        return False
    path = Path(place).resolve()
    ours = any(path.is_relative_to(ROOT / folder) for folder in CODE)
    return not ours and not set(INSTALLED) & set(path.parts)


def _imported(source: bytes, module: str, *, is_package: bool) -> Iterator[str]:
    """Names of all modules that the source may import, wherever in it, and of their packages; some are no modules."""
    parent = module.rpartition(".")[0]
    names = [parent]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # then nothing can import it, either
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
