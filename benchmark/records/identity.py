"""Decide which record a run with the current data and custom code has, and in which folder it is trained.

A record is valid only for these. Its manifest names them from the first round on. With different
data or code, the run is trained in a separate folder: `seed=<n>` is the first one, and other hashes
of data or sources go to `seed=<n>@<8 hexadecimal digits>`.

Data and sources that this machine does not have cannot differ, and then records count. A record is
stale if it lacks the source of a class that it names and that is imported: older versions did not
hash classes that were not yet imported. The initial weights of a custom network are also compared.
"""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.data import content
from benchmark.data.content import are_listed, data_hash
from benchmark.data.folder import public_name
from benchmark.errors import DataError
from benchmark.files import read_json
from benchmark.records import schema
from benchmark.records.fingerprint import INITIAL_WEIGHTS, different_numbers, forget_weights, initial_weights
from benchmark.records.sources import sources

MANIFEST, RESULT = "manifest.json", "result.json"


def look_again() -> None:
    """Forget all that this process knows about files, because they may have changed."""
    content.look_again()
    forget_weights()


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
    differ = different_numbers(here, recorded)
    if not differ:
        return []
    words = ", ".join(f"{name} {here[name]:.6g}, recorded {recorded.get(name, math.nan):.6g}" for name in differ)
    network = experiment["model"]["network"]
    return [f"code: {network} has different initial weights ({words}), so that it must read a file that was changed"]


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
