"""What a run is computed from: the content of its data, and the sources of the user's own classes.

A record answers only for that. Its manifest names it from the first round on; where what is at hand differs, the run is
trained apart. `seed=<n>` is the first; another data or source hash goes to `seed=<n>@<8 hexadecimal digits>`.

What is not at hand cannot differ: then records count as they are. A record that lacks the source of a class that it
names, and that is at hand, is stale: older versions did not hash classes that were not imported yet. The initial
weights of a custom network are compared, too, since its constructor may read files that no source shows.
An experiment is its JSON here: that of a record, whose code is not imported, will do.
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
INITIAL_WEIGHTS = "initial_weights"  # an entry of the manifest: `fingerprint` of a custom network's
SAME_WEIGHTS = 1e-5  # relative: what processors differ in


def sources(experiment: Mapping[str, Any]) -> dict[str, str]:
    """`module:Class` -> hash of its source, for the user's own classes that are imported."""
    hashes = dict[str, str]()
    for name in own_classes(experiment):
        module = name.partition(":")[0]
        cls = _imported_class(name)
        if cls is not None and (source := source_hash(cls, module)) is not None:
            hashes[name] = source
    return hashes


def all_sources(experiment: Mapping[str, Any]) -> dict[str, str]:
    """`sources` of an experiment that is to be trained. Raises ConfigError if one of its classes has none."""
    hashes = sources(experiment)
    for name in own_classes(experiment):
        if name not in hashes:
            raise ConfigError(f"{name}: has no source to record; define the class in a file, and name it module:Class")
    return hashes


def initial_weights(experiment: Mapping[str, Any]) -> dict[str, float]:
    """The `fingerprint` of a custom network's initial weights, by seed 0 for all runs; empty if it is not imported, or
    fails."""
    name = str(experiment["model"].get("network", ""))
    if ":" not in name or _imported_class(name) is None:
        return {}
    return dict(_initial_weights(json.dumps(experiment["model"], sort_keys=True), experiment["data"]["name"]))


@functools.cache
def _initial_weights(model: str, data: str) -> Mapping[str, float]:
    try:
        known = DATASETS.get(data) or load(data)
        return fingerprint(build(from_plain(Model, json.loads(model)), known.image_shape, known.num_classes, seed=0))
    except FsslError:  # whoever trains it says what is wrong
        return {}


def look_again() -> None:
    """Forget what this process knows of files: they may have changed."""
    content.look_again()
    _initial_weights.cache_clear()


def fingerprint(network: nn.Module) -> dict[str, float]:
    """Two numbers that change with the weights: their norm, and their sum with weights that grow by position."""
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
    """8 hexadecimal digits that name the folder of a run that is trained apart."""
    weights = sorted((name, f"{number:.4g}") for name, number in initial_weights(experiment).items())
    parts = [data_hash(experiment), sorted(sources(experiment).items()), *weights]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:8]


def changed_inputs(experiment: Mapping[str, Any], manifest: Mapping[str, Any], *, finished: bool) -> list[str]:
    """What is here otherwise than a record was computed from, in words.

    A finished record on files of a known set that the suite lists counts wherever any others that it lists are. An
    unfinished run goes on with the same files only.
    """
    lines, name = [], experiment["data"]["name"]
    data, recorded = manifest.get("data", {}), manifest.get("sources", {})
    if "hash" in data and not (finished and are_listed(name, data)):
        here = data_hash(experiment)
        if here not in (None, data["hash"]):
            lines.append(_in_words(f"data: {public_name(name)} has content", here, data["hash"]))
    for name, here in sources(experiment).items() if manifest else ():  # an empty one is damaged
        if name not in recorded:
            lines.append(f"code: {name} has a source that the record does not name")
        elif recorded[name] != here:
            lines.append(_in_words(f"code: {name} and what it imports have source", here, recorded[name]))
    if not lines and (weights := manifest.get(INITIAL_WEIGHTS)):
        lines += _other_weights(experiment, weights)
    return lines


def _other_weights(experiment: Mapping[str, Any], recorded: Mapping[str, float]) -> list[str]:
    """What differs in the initial weights of the run's custom network; the sources are equal."""
    here = initial_weights(experiment)
    differ = [name for name in here if not math.isclose(here[name], recorded.get(name, math.nan), rel_tol=SAME_WEIGHTS)]
    if not differ:
        return []
    words = ", ".join(f"{name} {here[name]:.6g}, recorded {recorded.get(name, math.nan):.6g}" for name in differ)
    network = experiment["model"]["network"]
    return [f"code: {network} has other initial weights ({words}), so it reads a file that was changed"]


def own_names(experiment: Mapping[str, Any]) -> list[str]:
    """The classes and folders of the user's own that an experiment's JSON names: "my:Mine", "folder:/data/leaves"."""
    named = (experiment["method"]["kind"], experiment["model"].get("network", ""), experiment["data"]["name"])
    return [name for name in named if ":" in name]


def own_classes(experiment: Mapping[str, Any]) -> list[str]:
    """The custom classes that an experiment's JSON names."""
    return [name for name in own_names(experiment) if not name.startswith("folder:")]


def _imported_class(name: str) -> type | None:
    """The class `module:Class` if its module is imported."""
    module, _, attribute = name.partition(":")
    cls = getattr(sys.modules.get(module), attribute, None)
    return cls if isinstance(cls, type) else None


def seed_folder(cell_folder: Path, experiment: Mapping[str, Any]) -> Path:
    """Find the folder of the run on what is at hand: a finished one, else one that resumes, else one to begin."""
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
    """One line on a run that is not in the cell's first folder of its seed; None for one that is."""
    plain = folder.with_name(f"seed={experiment['seed']}")
    if folder == plain:
        return None
    return apart_in_words(changed_inputs(experiment, manifest_of(plain) or {}, finished=_finished(plain)), folder)


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

    Of the script, for a class in `__main__`; of the compiled methods, for one without a file, such as a notebook's.
    None for one that has neither.
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
    """The same code without the names of files and the numbers of lines."""
    constants = tuple(_without_places(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=constants)


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
    if module == MAIN:  # the script, which is no module that can be found
        script = Path(getattr(sys.modules[MAIN], "__file__", None) or "")
        return script.resolve() if script.suffix == ".py" and script.is_file() else None
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
