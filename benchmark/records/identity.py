"""Identify the inputs of a run: the content of its data, and the sources of custom classes.

A record is valid only for these. Its manifest names them from the first round on. With different
data or code, the run is trained in a separate folder: `seed=<n>` is the first one, and other hashes
of data or sources go to `seed=<n>@<8 hexadecimal digits>`.

Data and sources that this machine does not have cannot differ, and then records count. A record is
stale if it lacks the source of a class that it names and that is imported: older versions did not
hash classes that were not yet imported. The initial weights of a custom network are also compared,
since its constructor may read files that no source shows. Experiments are passed as JSON, so that a
record can be checked without importing its code.
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import marshal
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from torch import nn

from benchmark.config import from_plain
from benchmark.data import content
from benchmark.data.content import are_listed, data_hash
from benchmark.data.datasets import DATASETS, load
from benchmark.data.folder import public_name
from benchmark.errors import ConfigError, DataError, FsslError
from benchmark.files import read_json
from benchmark.models.build import Model, build
from benchmark.records import schema
from benchmark.records.provenance import CODE, ROOT

MANIFEST, RESULT = "manifest.json", "result.json"
INSTALLED = ("site-packages", "dist-packages")
MAIN = "__main__"
INITIAL_WEIGHTS = "initial_weights"  # an entry of the manifest: the `fingerprint` of a custom network
SAME_WEIGHTS = 1e-5  # relative; processors differ less than this


def sources(experiment: Mapping[str, Any]) -> dict[str, str]:
    """Return `module:Class` -> hash of its source, for custom classes that are imported."""
    hashes = dict[str, str]()
    for name in own_classes(experiment):
        module = name.partition(":")[0]
        cls = _imported_class(name)
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


def initial_weights(experiment: Mapping[str, Any]) -> dict[str, float]:
    """Return the `fingerprint` of a custom network's initial weights, with seed 0 for all runs.

    The result is empty if the network is not imported or fails.
    """
    name = str(experiment["model"].get("network", ""))
    if ":" not in name or _imported_class(name) is None:
        return {}
    return dict(_initial_weights(json.dumps(experiment["model"], sort_keys=True), experiment["data"]["name"]))


@functools.cache
def _initial_weights(model: str, data: str) -> Mapping[str, float]:
    try:
        known = DATASETS.get(data) or load(data)
        return fingerprint(build(from_plain(Model, json.loads(model)), known.image_shape, known.num_classes, seed=0))
    except FsslError:  # training reports the error
        return {}


def look_again() -> None:
    """Forget all that this process knows about files, because they may have changed."""
    content.look_again()
    _initial_weights.cache_clear()


def fingerprint(network: nn.Module) -> dict[str, float]:
    """Return two numbers that change with the weights: their norm, and their sum weighted by position."""
    norm, moment, position = 0.0, 0.0, 0
    for value in network.state_dict().values():
        flat_N = value.detach().double().flatten()
        norm += float(flat_N @ flat_N)
        for index, total in enumerate(flat_N.abs().split(4096)):
            moment += float(total.sum()) * (1 + (position + index) % 97)
        position += 1 + len(flat_N) // 4096
    numbers = {"norm": math.sqrt(norm), "moment": moment} if math.isfinite(norm) else {}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def short_hash(experiment: Mapping[str, Any]) -> str:
    """Return the 8 hexadecimal digits in the name of a run that is trained in a separate folder."""
    weights = sorted((name, f"{number:.4g}") for name, number in initial_weights(experiment).items())
    parts = [data_hash(experiment), sorted(sources(experiment).items()), *weights]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def changed_inputs(experiment: Mapping[str, Any], manifest: Mapping[str, Any], *, finished: bool) -> list[str]:
    """Return phrases about data and code that differ from a record's data and code.

    A finished record on files of a known data set that the suite lists counts with any other listed
    files of it. An unfinished run only resumes with the same files.
    """
    lines = []
    name = experiment["data"]["name"]
    data, recorded = manifest.get("data", {}), manifest.get("sources", {})
    if "hash" in data and not (finished and are_listed(name, data)):
        here = data_hash(experiment)
        if here not in (None, data["hash"]):
            lines.append(_in_words(f"data: {public_name(name)} has the content", here, data["hash"]))
    for name, here in sources(experiment).items() if manifest else ():  # an empty manifest is damaged
        if name not in recorded:
            lines.append(f"code: {name} has a source, but the record does not name it")
        elif recorded[name] != here:
            lines.append(_in_words(f"code: {name} and its imports have the source", here, recorded[name]))
    if not lines and (weights := manifest.get(INITIAL_WEIGHTS)):
        lines += _other_weights(experiment, weights)
    return lines


def _other_weights(experiment: Mapping[str, Any], recorded: Mapping[str, float]) -> list[str]:
    """Return a phrase if the initial weights of the run's custom network differ; the sources are equal."""
    here = initial_weights(experiment)
    differ = [name for name in here if not math.isclose(here[name], recorded.get(name, math.nan), rel_tol=SAME_WEIGHTS)]
    if not differ:
        return []
    words = ", ".join(f"{name} {here[name]:.6g}, recorded {recorded.get(name, math.nan):.6g}" for name in differ)
    network = experiment["model"]["network"]
    return [f"code: {network} has different initial weights ({words}), so that it must read a file that was changed"]


def own_names(experiment: Mapping[str, Any]) -> list[str]:
    """Return the custom classes and folders in an experiment's JSON: "my:Mine", "folder:/data/leaves"."""
    named = (experiment["method"]["kind"], experiment["model"].get("network", ""), experiment["data"]["name"])
    return [name for name in named if ":" in name]


def own_classes(experiment: Mapping[str, Any]) -> list[str]:
    """Return the custom classes in an experiment's JSON."""
    return [name for name in own_names(experiment) if not name.startswith("folder:")]


def _imported_class(name: str) -> type | None:
    """Return the class `module:Class` if its module is imported, and None if not."""
    module, _, attribute = name.partition(":")
    cls = getattr(sys.modules.get(module), attribute, None)
    return cls if isinstance(cls, type) else None


def seed_folder(cell_folder: Path, experiment: Mapping[str, Any]) -> Path:
    """Return the run's folder for the current data and code: a finished one if possible, or one
    that resumes, or a new one.
    """
    plain = cell_folder / f"seed={experiment['seed']}"
    equal = []
    for folder in (plain, *sorted(cell_folder.glob(f"{plain.name}@*"))):
        manifest = manifest_of(folder)
        if manifest is not None and not changed_inputs(experiment, manifest, finished=_finished(folder)):
            equal.append(folder)
    if equal:
        return min(equal, key=lambda folder: not _finished(folder))
    return plain if manifest_of(plain) is None else plain.with_name(f"{plain.name}@{short_hash(experiment)}")


def why_apart(folder: Path, experiment: Mapping[str, Any]) -> str | None:
    """Return one line about a run that is not in the cell's first folder of its seed, or None if it is."""
    plain = folder.with_name(f"seed={experiment['seed']}")
    if folder == plain:
        return None
    return apart_in_words(changed_inputs(experiment, manifest_of(plain) or {}, finished=_finished(plain)), folder)


def apart_in_words(lines: Sequence[str], folder: Path) -> str:
    return f"{'; '.join(lines)}; trained separately in {folder.name}"


def manifest_of(folder: Path) -> Mapping[str, Any] | None:
    """Return the manifest, or None if no run has begun there; an empty one if it is damaged, which
    readers of the record report.
    """
    try:
        return read_manifest(folder) or None
    except (DataError, OSError):
        return {}


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return `manifest.json` of a run, or an empty one if there is no file. Raise DataError if it is damaged."""
    manifest = read_json(folder / MANIFEST)
    return {} if manifest is None else dict(schema.check(manifest, schema.MANIFEST, f"{folder / MANIFEST}"))


def _finished(folder: Path) -> bool:
    return os.path.exists(folder / RESULT)  # also if this user may not read the folder


def _in_words(what: str, here: str | None, recorded: str) -> str:
    return f"{what} {here and here[:8]}.., but the record was computed from {recorded[:8]}.."


# Sources: the module of a custom class, and the user's modules that it imports. A module is the user's if it
# belongs neither to Python, nor to an installed package, nor to this project.


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
    for module, source in sorted((module_of(name), source) for name, source in files.items()):
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
