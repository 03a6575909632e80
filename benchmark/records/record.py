"""The record of one run: what it holds, how it is read from the run's folder, and the types that it must have.

results/runs/<cell_key>/seed=<n>/   experiment.json, manifest.json, rounds.jsonl, result.json, weights

Types are checked here, once (`schema`): whoever has a `RunRecord` need not look at them again.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast

from benchmark.config import quoted
from benchmark.errors import DataError
from benchmark.experiment import Evaluation, Experiment, to_json
from benchmark.files import ANEW, bytes_of, json_object, read_json
from benchmark.models.build import network_class
from benchmark.numerics import is_current, numerics_of
from benchmark.records import schema
from benchmark.records.identity import RESULT, read_manifest, seed_folder
from benchmark.records.schema import check

ROUNDS = "rounds.jsonl"  # put in place once, when a run has ended; so is RESULT
FAILED = "failed.json"  # how the last attempt of an unfinished run failed: {"error": "ValueError: ... (file.py:15)"}
PROGRESS = "progress.jsonl"  # the rounds of an unfinished run, as they were saved last
NO_METRICS = {"cell_key", "seed", "round"}  # of a line in ROUNDS; all else are metrics
FINISHED = ("done", "diverged")
CPU = "a CPU"  # manifests do not name it
CACHED_RUNS = 128  # whose rounds stay in memory, in each process; about 0.3 MB each at 100 rounds

Round = Mapping[str, Any]
Records = Mapping[str, Mapping[int, "RunRecord"]]  # cell_key -> seed -> record


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run (a cell x a seed). `rounds` has one mapping a round, in order; a metric that was not measured in a round
    is absent from its mapping. Accuracies are fractions.

    A committed copy keeps counts (`local_steps`, `comm/...`) of every round, and all other metrics of evaluated rounds
    only; `summary` still is over all rounds.
    """

    cell_key: str
    seed: int
    experiment: Mapping[str, Any]  # the resolved Experiment as JSON
    manifest: Mapping[str, Any]  # commit, versions, data and partition hashes, hardware
    result: Mapping[str, Any]  # empty while the run is not finished
    rounds: Sequence[Round]
    summaries: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of a copy: {metric: {"mean": ...}}
    edited: bool = False  # its digest is of other content
    committed: bool = False  # a copy of it counts wherever runs are written
    path: Path = field(default=Path(), compare=False)  # the run's folder, the copy's file, its name in a bundle
    copies: tuple["RunRecord", ...] = field(default=(), repr=False)  # the same run, computed on other kinds of device

    @property
    def is_copy(self) -> bool:
        return self.path.suffix == ".gz"

    @property
    def status(self) -> str:
        """done | diverged | unfinished"""
        return self.result.get("status", "unfinished")

    def last(self, metric: str) -> float | None:
        """The metric's value after the last round, None where the run has no result or never measured it."""
        return self.result.get("last", {}).get(metric)

    def selected(self, metric: str) -> float | None:
        """The metric's value that counts under the run's selection rule: on the test set, in the best round where the
        rule is "best_on_test"; otherwise, and for everything that is not measured there, after the last round."""
        if self.selected_on_test and metric.startswith("test/"):
            return (self.result.get("best") or {}).get(metric)
        return self.last(metric)

    @property
    def selected_on_test(self) -> bool:
        return self.result.get("selection") == "best_on_test"

    @functools.cached_property
    def numerics(self) -> Mapping[str, int]:
        """The numerics version of each part that the run was computed with (`benchmark.numerics`)."""
        return numerics_of(self.experiment, self.manifest, self._metrics)

    @property
    def trained_by(self) -> tuple[str, str]:
        """The engine and the kind of device, such as ("pool", "a CPU") and ("pool", "NVIDIA H200")."""
        engine = self.manifest.get("engine", {})
        return str(engine.get("name", "")), str(engine.get("device", CPU))

    @property
    def is_current(self) -> bool:
        """Whether this code computes the run bit by bit, on the same processor type and packages."""
        return is_current(self.numerics)

    @property
    def _metrics(self) -> set[str]:
        """Names of what the run measured in some round."""
        return {*self.result.get("last", {}), *self.summaries}

    @property
    def data_note(self) -> str:
        """What a page that shows its numbers has to say of the files that it read; mostly nothing."""
        return str(self.manifest.get("data", {}).get("note", ""))

    @property
    def data_hash(self) -> str | None:
        return cast(str | None, self.manifest.get("data", {}).get("hash"))

    @property
    def class_counts(self) -> Mapping[str, Any]:
        """Images of each class at the holders, as `Environment.class_counts`; empty in an older record."""
        return cast(Mapping[str, Any], self.manifest.get("data", {}).get("class_counts", {}))

    def summary(self, metric: str) -> Mapping[str, float]:
        """{"mean", "median"} over all rounds that measured it; empty where none did."""
        if metric in self.summaries:
            return self.summaries[metric]
        values = [float(line[metric]) for line in self.rounds if metric in line]
        return {"mean": fmean(values), "median": median(values)} if values else {}


def metrics_in(line: Round) -> dict[str, Any]:
    """What a round measured, without its clocks."""
    return {name: line[name] for name in sorted(line) if name not in NO_METRICS and not name.startswith("time/")}


def measurements(evaluation: Evaluation) -> dict[str, int]:
    """How often a run measures what costs time and moves no other number."""
    return {"every": evaluation.every, "gradient_diversity_every": evaluation.gradient_diversity_every}


def run_name(experiment: Experiment) -> str:
    return f"{experiment.cell_key}/seed={experiment.seed}"


def run_folder(results: Path, experiment: Experiment) -> Path:
    """The folder of the experiment's run on the data and code at hand; it need not exist. Raises ConfigError."""
    network_class(experiment.model.network)  # imports a custom one: unpickling in a worker imports only the method
    return seed_folder(results / "runs" / experiment.cell_key, to_json(experiment))


def read_run(folder: Path) -> RunRecord | None:
    """The record in a run's folder, finished or not; None where no run has been started.

    Raises DataError for a file that is damaged or holds something else.
    """
    experiment_path = folder / "experiment.json"
    if (experiment_bytes := bytes_of(experiment_path)) is None:
        return None
    experiment = check(json_object(experiment_bytes, experiment_path), schema.EXPERIMENT, f"{experiment_path}")
    result = read_result(folder) or {}
    manifest = read_manifest(folder)
    path = folder / (ROUNDS if result or not (folder / PROGRESS).exists() else PROGRESS)
    lines = bytes_of(path) or b""
    digest = digest_of(experiment_bytes, lines, manifest, result) if "digest" in result else None
    edited = digest is not None and result["digest"] != digest
    whole = digest is not None and not edited  # then rounds are read when they are looked at
    if not re.fullmatch(rf"seed={experiment['seed']}(@[0-9a-f]{{8}})?", folder.name):
        raise DataError(f"{experiment_path}: is of seed {quoted(experiment['seed'])}; {ANEW}")
    record = RunRecord(
        cell_key=folder.parent.name,
        seed=experiment["seed"],
        experiment=experiment,
        manifest=manifest,
        result=result,
        rounds=RoundsOnDisk(path, str(digest), lines.count(b"\n")) if whole else json_lines(lines, path),
        edited=edited,
        path=folder,
    )
    check_result_is_of(record)
    return record


def check_result_is_of(record: RunRecord) -> None:
    """Raises DataError for a result of another run than the record's."""
    result, faults = record.result, list[str]()
    for name, right in (("cell_key", record.cell_key), ("seed", record.seed)):
        if result.get(name, right) != right:
            faults.append(f"{name} {quoted(result[name])}, but the record has {right!r}")
    if record.status == "done" and not len(record.rounds):
        faults.append("done, but there are no rounds")
    if result and not record.manifest:
        faults.append("manifest.json is missing")
    if faults:
        raise DataError(f"{record.path / RESULT}: {faults[0]}; {ANEW}")


def read_result(folder: Path) -> dict[str, Any] | None:
    """`result.json` of a run; None where it is not finished. Raises DataError."""
    result = read_json(folder / RESULT)
    return result if result is None else dict(check(result, schema.RESULT, f"{folder / RESULT}"))


def json_lines(content: bytes, path: Path) -> tuple[dict[str, Any], ...]:
    """The objects in the whole lines of the file at `path`. Raises DataError."""
    lines = content.splitlines(keepends=True)
    return tuple(_round(line, path, number) for number, line in enumerate(lines, 1) if line.endswith(b"\n"))


def _round(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number} is not a JSON object ({error})") from None
    return check(value, schema.ROUND, f"{path}: line {number}")


@functools.lru_cache(maxsize=CACHED_RUNS)
def _cached_rounds(path: Path, digest: str) -> tuple[Round, ...]:
    """`digest` is in the cache's key, so that a file that has changed is read again."""
    return json_lines(bytes_of(path) or b"", path)


class RoundsOnDisk(Sequence[Round]):
    """The rounds of one run, read when they are looked at: a report of ten thousand runs needs those of a few."""

    def __init__(self, path: Path, digest: str, number: int) -> None:
        self._path, self._digest, self._number = path, digest, number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        return _cached_rounds(self._path, self._digest)[index]


def run_digest(folder: Path, result: Mapping[str, Any]) -> str:
    """`digest_of` the files in a run's folder."""
    manifest = read_json(folder / "manifest.json") or {}
    return digest_of(
        bytes_of(folder / "experiment.json") or b"", bytes_of(folder / "rounds.jsonl") or b"", manifest, result
    )


def digest_of(experiment: bytes, rounds: bytes, manifest: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Hash (sha256, hex) what a finished run must not change: a later change of any part gives a different digest.

    The parts are experiment.json and rounds.jsonl as they are in the folder, the manifest without the attempts, and the
    result without the digest.
    """
    without_attempts = {key: value for key, value in manifest.items() if key != "attempts"}
    without_digest = {key: value for key, value in result.items() if key != "digest"}
    digest = hashlib.sha256()
    for part in (experiment, rounds, canonical(without_attempts), canonical(without_digest)):
        digest.update(f"{len(part)}\n".encode() + part)  # the length, so that nothing can move from part to part
    return digest.hexdigest()


def canonical(value: Any) -> bytes:
    """JSON in one form: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def is_recorded(results: Path, experiment: Experiment) -> bool:
    """Whether the run is finished; a damaged one is not. Raises OSError."""
    try:
        record = read_run(run_folder(results, experiment))
    except DataError:
        return False
    return record is not None and record.status in FINISHED
