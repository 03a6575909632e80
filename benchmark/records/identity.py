"""What a run is computed from: the content of its data, and the sources of the user's own classes.

A record answers only for that. Its manifest names it from the first round on; where what is at hand differs, the run is
trained apart. `seed=<n>` is the first; another data or source hash goes to `seed=<n>@<8 hexadecimal digits>`.

What is not at hand cannot differ: then records count as they are. So do those of older versions, which name no sources.
"""

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark.data.content import content_hash, has_known_files
from benchmark.data.datasets import DATASETS, UNKNOWN_ORIGIN, public_name
from benchmark.data.pooling import pooled_hash
from benchmark.errors import DataError
from benchmark.experiment import Experiment, to_json
from benchmark.records import schema
from benchmark.records.files import read_json
from benchmark.records.sources import source_hash

MANIFEST, RESULT = "manifest.json", "result.json"


@dataclass(frozen=True)
class AtHand:
    """What a run would be computed from here and now."""

    experiment: Mapping[str, Any]  # as JSON; that of a record, whose code is not imported, will do
    seed: int
    root: Path | None = None  # of data sets

    @property
    def data_hash(self) -> str | None:
        """As `manifest` has it; None: the data are not here."""
        data = self.experiment["data"]
        content, pooled_test = content_hash(data["name"], self.root), data.get("pooled_test")
        return pooled_hash(content, pooled_test, self.seed) if content and pooled_test else content

    @property
    def sources(self) -> dict[str, str]:
        """`module:Class` -> hash of its source, for the user's own classes that are imported."""
        hashes = dict[str, str]()
        for name in own_names(self.experiment):
            module, _, attribute = name.partition(":")
            cls = getattr(sys.modules.get(module), attribute, None)
            if isinstance(cls, type) and (source := source_hash(cls)) is not None:
                hashes[name] = source
        return hashes

    @property
    def short_hash(self) -> str:
        """8 hexadecimal digits that name the folder of a run that is trained apart."""
        return hashlib.sha256(repr([self.data_hash, sorted(self.sources.items())]).encode()).hexdigest()[:8]

    def differences(self, manifest: Mapping[str, Any], *, finished: bool) -> list[str]:
        """What is here otherwise than a record was computed from, in words.

        A finished record on files of a known set that the suite lists counts wherever any others that it lists are. An
        unfinished run goes on with the same files only.
        """
        differences, name = [], self.experiment["data"]["name"]
        data, sources = manifest.get("data", {}), manifest.get("sources", {})
        if "hash" in data and not (finished and self._lists_both(name, data)):
            here = self.data_hash
            if here not in (None, data["hash"]):
                differences.append(_in_words(f"data: {public_name(name)} has content", here, data["hash"]))
        for name, here in self.sources.items():
            if sources.get(name, here) != here:
                differences.append(_in_words(f"code: {name} and what it imports have source", here, sources[name]))
        return differences

    def _lists_both(self, name: str, recorded: Mapping[str, Any]) -> bool:
        """Whether the suite lists the files that are here and those of the record."""
        if name not in DATASETS or UNKNOWN_ORIGIN in recorded.get("note", ""):
            return False
        return has_known_files(name, self.root) is not False


def at_hand(experiment: Experiment, root: Path | None = None) -> AtHand:
    return AtHand(to_json(experiment), experiment.seed, root)


def own_names(experiment: Mapping[str, Any]) -> list[str]:
    """The classes and folders of the user's own that an experiment's JSON names: "my:Mine", "folder:/data/leaves"."""
    named = (experiment["method"]["kind"], experiment["model"].get("network", ""), experiment["data"]["name"])
    return [name for name in named if ":" in name]


def seed_folder(cell_folder: Path, here: AtHand) -> Path:
    """The folder of the run on what is at hand: a finished one, else one that goes on, else one to begin."""
    plain = cell_folder / f"seed={here.seed}"
    equal = [
        folder
        for folder in (plain, *sorted(cell_folder.glob(f"{plain.name}@*")))
        if (manifest := manifest_of(folder)) is not None and not here.differences(manifest, finished=_finished(folder))
    ]
    if equal:
        return min(equal, key=lambda folder: not _finished(folder))
    return plain if manifest_of(plain) is None else plain.with_name(f"{plain.name}@{here.short_hash}")


def why_apart(folder: Path, here: AtHand) -> str | None:
    """One line on a run that is not in the cell's first folder of its seed; None for one that is."""
    plain = folder.with_name(f"seed={here.seed}")
    if folder == plain:
        return None
    return apart_in_words(here.differences(manifest_of(plain) or {}, finished=_finished(plain)), folder)


def apart_in_words(differences: Sequence[str], folder: Path) -> str:
    return f"{'; '.join(differences)}; trained apart in {folder.name}"


def manifest_of(folder: Path) -> Mapping[str, Any] | None:
    """None where no run has begun there; empty for a damaged one, which whoever reads the record reports."""
    try:
        manifest = read_json(folder / MANIFEST)
        return manifest and schema.check(manifest, schema.MANIFEST, MANIFEST)
    except (DataError, OSError):
        return {}


def _finished(folder: Path) -> bool:
    return os.path.exists(folder / RESULT)  # also where this user may not look


def _in_words(what: str, here: str | None, recorded: str) -> str:
    return f"{what} {here and here[:8]}.., the record was computed from {recorded[:8]}.."
