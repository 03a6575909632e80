"""All records there are, for reading only: what cannot be read is told and passed over, and rounds wait on the disk.

A report of ten thousand runs needs every result but, at any time, the rounds of a few runs only. Each record carries a
hash of the bytes that it was read from, and whether its digest still fits them.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from benchmark.errors import FsslError
from benchmark.experiment import NUMERICS
from benchmark.records.reading import Records, read_rounds, unpack
from benchmark.records.record import MIRROR_FILE, RunRecord
from benchmark.records.verify import digest_of

Round = Mapping[str, Any]
KEPT_RUNS = 512  # whose rounds stay in memory; about 0.2 MB each at 100 rounds


@functools.lru_cache(maxsize=KEPT_RUNS)
def _loaded(path: str, content: str) -> tuple[Round, ...]:
    """`content` is in the key, so that a file that has changed is read again."""
    return read_rounds(Path(path))


class RoundsOnDisk(Sequence[Round]):
    """The rounds of one run, read when they are looked at. A last line still being written is left out."""

    def __init__(self, path: Path, content: str, number: int) -> None:
        self._path, self._content, self._number = path, content, number

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, index: int) -> Round: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Round]: ...
    def __getitem__(self, index: int | slice) -> Round | Sequence[Round]:
        return _loaded(str(self._path), self._content)[index]

    def __iter__(self) -> Iterator[Round]:
        return iter(_loaded(str(self._path), self._content))


class Survey:
    """Reads a results folder once. `troubles` grows with every file that could not be read, one line each."""

    def __init__(self) -> None:
        self.troubles: list[str] = []
        self._known: dict[tuple[Path, str, bool], dict[int, RunRecord]] = {}

    @property
    def seen(self) -> frozenset[str]:
        """The cell keys that were asked for."""
        return frozenset(cell_key for _, cell_key, _ in self._known)

    def read(self, results: Path, cell_keys: Iterable[str], *, with_reference: bool) -> Records:
        """As `reading.read_records`, but never raises: a damaged record is missing, and in `troubles`."""
        return {key: self._cell(results, key, with_reference) for key in dict.fromkeys(cell_keys)}

    def _cell(self, results: Path, cell_key: str, with_reference: bool) -> dict[int, RunRecord]:
        place = (results, cell_key, with_reference)
        if place not in self._known:
            seeds: dict[int, RunRecord] = {}
            if with_reference:
                for path in sorted((results / "reference" / cell_key).glob("seed=*.json")):
                    copy = self._tried(_copy, path)
                    if copy is not None and copy.result.get("numerics") == NUMERICS:
                        seeds[copy.seed] = copy
            for folder in sorted((results / "runs" / cell_key).glob("seed=*")):
                run = self._tried(_run, folder)
                if run is not None and (run.result or run.seed not in seeds):
                    seeds[run.seed] = run
            self._known[place] = dict(sorted(seeds.items()))
        return self._known[place]

    def _tried(self, read: Any, path: Path) -> RunRecord | None:
        try:
            found: RunRecord | None = read(path)
            return found
        except (FsslError, ValueError, TypeError, KeyError, RecursionError, OSError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            self.troubles.append(f"{path.parent.name}/{path.name}: {text}")
            return None


def cell_keys(results: Path, *, with_reference: bool) -> list[str]:
    """Every cell that has a record in this folder, sorted."""
    places = [results / "runs", *([results / "reference"] if with_reference else [])]
    return sorted({path.name for place in places if place.is_dir() for path in place.iterdir() if path.is_dir()})


def _copy(path: Path) -> RunRecord:
    """A committed compact copy, whole: they are few. Raises DataError, ValueError."""
    raw = path.read_bytes()
    found = unpack(json.loads(raw), path)
    return RunRecord(
        cell_key=str(found.cell_key),
        seed=int(found.seed),
        experiment=_object(found.experiment, "experiment"),
        manifest=_object(found.manifest, "manifest"),
        result=_object(found.result, "result"),
        rounds=found.rounds,
        content=hashlib.sha256(raw).hexdigest(),
    )


def _run(folder: Path) -> RunRecord | None:
    """A run's folder; None where none has been started. Raises ValueError for what is no JSON object."""
    try:
        experiment = (folder / "experiment.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    manifest, result, rounds = (_bytes(folder / name) for name in ("manifest.json", "result.json", "rounds.jsonl"))
    found = _object(json.loads(experiment), "experiment.json")
    told = _object(json.loads(result), "result.json") if result else {}
    facts = _object(json.loads(manifest), "manifest.json") if manifest else {}
    own = digest_of(experiment, rounds, facts, told)
    mirror = _bytes(folder / MIRROR_FILE)
    content = hashlib.sha256(own.encode() + manifest + mirror).hexdigest()
    number = rounds.count(b"\n")
    if rounds and not told:
        _object(json.loads(rounds[: rounds.index(b"\n")]) if number else {}, "rounds.jsonl")
    return RunRecord(
        cell_key=folder.parent.name,
        seed=int(found["seed"]),
        experiment=found,
        manifest={**facts, **({"wandb": _object(json.loads(mirror), MIRROR_FILE)} if mirror else {})},
        result=told,
        rounds=RoundsOnDisk(folder / "rounds.jsonl", content, number),
        content=content,
        edited="digest" in told and bool(facts) and told["digest"] != own,
    )


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} is a {type(value).__name__}, no JSON object")
    return dict(value)
