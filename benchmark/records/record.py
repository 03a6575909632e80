"""Define the record of one run and read it from the run's folder.

results/runs/<cell_key>/seed=<n>/   experiment.json, manifest.json, rounds.jsonl, result.json,
weights

Types are checked once, when the record is read (`schema`). Code that has a `RunRecord` does not
check them again.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
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

ROUNDS = "rounds.jsonl"  # written once, when a run has ended, like RESULT
FAILED = "failed.json"  # how the last attempt of an unfinished run failed: {"error": "ValueError: ... (file.py:15)"}
PROGRESS = "progress.jsonl"  # the rounds of an unfinished run, as last saved
MEASURES = "measures.json"  # the method's own measures of an unfinished run, as last saved
NO_METRICS = {"cell_key", "seed", "round"}  # keys of a line in ROUNDS that are not metrics
FINISHED = ("done", "diverged")
CPU = "a CPU"  # manifests do not name it
CACHED_RUNS = 128  # number of runs with rounds in the memory of each process; about 0.3 MB per run at 100 rounds

Round = Mapping[str, Any]
Records = Mapping[str, Mapping[int, "RunRecord"]]  # cell_key -> seed -> record
OLD_CODE, DIFFERENT_DATA = "old code", "different data"  # why a record does not count


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run: a cell with a seed.

    `rounds` has one mapping per round, in order. A metric that was not measured in a round is
    absent from its mapping. Accuracies are fractions. A committed copy has the counts
    (`local_steps`, `comm/...`) of every round, and all other metrics only of evaluated rounds;
    `summary` still covers all rounds.
    """

    cell_key: str
    seed: int
    experiment: Mapping[str, Any]  # the resolved Experiment as JSON
    manifest: Mapping[str, Any]  # commit, versions, hashes of data and partition, hardware
    result: Mapping[str, Any]  # empty while the run is not finished
    rounds: Sequence[Round]
    summaries: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of a copy: {metric: {"mean": ...}}
    edited: bool = False  # its digest does not match its content
    committed: bool = False  # a copy of it counts for every results folder
    path: Path = field(default=Path(), compare=False)  # the run's folder, the copy's file, or its name in a submission
    copies: tuple["RunRecord", ...] = field(default=(), repr=False)  # the same run on other kinds of device
    stale: str = field(default="", compare=False)  # why it does not count: OLD_CODE or DIFFERENT_DATA; "" if it counts

    @property
    def is_copy(self) -> bool:
        return self.path.suffix == ".gz"

    @property
    def status(self) -> str:
        """Return "done", "diverged" or "unfinished"."""
        return self.result.get("status", "unfinished")

    def last(self, metric: str) -> float | None:
        """Return the metric's value after the last round, or None if the run has no result or did not measure it."""
        return self.result.get("last", {}).get(metric)

    def selected(self, metric: str) -> float | None:
        """Return the metric's value under the run's selection rule.

        That is the value in the best round, if the rule is "best_on_test" and the metric is on the
        test set. In all other cases it is the value after the last round.
        """
        if self.selected_on_test and metric.startswith("test/"):
            return (self.result.get("best") or {}).get(metric)
        return self.last(metric)

    @property
    def selected_on_test(self) -> bool:
        return self.result.get("selection") == "best_on_test"

    @property
    def measures(self) -> Mapping[str, Mapping[int, float]]:
        """Return the method's own measures (`Method.measures`): name -> round -> value. Usually empty."""
        return measures_in(self.result.get("measures", {}))

    @functools.cached_property
    def numerics(self) -> Mapping[str, int]:
        """Return the numerics version of each part of the code that computed the run
        (`benchmark.numerics`).
        """
        return numerics_of(self.experiment, self.manifest, self._metrics)

    @property
    def trained_by(self) -> tuple[str, str]:
        """Return the engine and the kind of device, such as ("pool", "a CPU") and ("pool", "NVIDIA H200")."""
        engine = self.manifest.get("engine", {})
        return str(engine.get("name", "")), str(engine.get("device", CPU))

    @property
    def is_current(self) -> bool:
        """Return whether this code computes the run bit by bit, on the same type of processor and
        with the same packages.
        """
        return is_current(self.numerics)

    @property
    def _metrics(self) -> set[str]:
        """Return the names of all metrics that the run measured in some round."""
        return {*self.result.get("last", {}), *self.summaries}

    @property
    def data_note(self) -> str:
        """Return a caveat about the data files, for pages that show the run's numbers; usually empty."""
        return str(self.manifest.get("data", {}).get("note", ""))

    @property
    def data_hash(self) -> str | None:
        return cast(str | None, self.manifest.get("data", {}).get("hash"))

    @property
    def class_counts(self) -> Mapping[str, Any]:
        """Return the images of each class at the participants, as in `Environment.class_counts`;
        empty in an older record.
        """
        return cast(Mapping[str, Any], self.manifest.get("data", {}).get("class_counts", {}))

    def summary(self, metric: str) -> Mapping[str, float]:
        """Return {"mean", "median"} over all rounds that measured the metric; empty if none did."""
        if metric in self.summaries:
            return self.summaries[metric]
        values = [float(line[metric]) for line in self.rounds if metric in line]
        return {"mean": fmean(values), "median": median(values)} if values else {}


class CellRecords(dict[int, RunRecord]):
    """The records of a cell by seed, as a dictionary, and apart from them the records that do not count.

    `stale` has by seed the finished records of different data or code (`RunRecord.stale`). A seed
    with a finished record that counts is not among them.
    """

    def __init__(self, records: Mapping[int, RunRecord], *, stale: Mapping[int, RunRecord]) -> None:
        super().__init__(records)
        self.stale = {seed: run for seed, run in stale.items() if seed not in records or not records[seed].result}


def stale_records(records: Mapping[int, RunRecord]) -> Mapping[int, RunRecord]:
    """Return the records of a cell that do not count, by seed; none if these records were not read from files."""
    return records.stale if isinstance(records, CellRecords) else {}


def contain_runs(records: Records) -> bool:
    """Return whether some cell has a run record, including finished records that do not count."""
    return any(runs or stale_records(runs) for runs in records.values())


def select_seeds(records: Mapping[int, RunRecord], is_selected: Callable[[int], bool]) -> CellRecords:
    """Return the records of the selected seeds of a cell, including records that do not count."""
    chosen = {seed: run for seed, run in records.items() if is_selected(seed)}
    stale = {seed: run for seed, run in stale_records(records).items() if is_selected(seed)}
    return CellRecords(chosen, stale=stale)


def measures_in(summary: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Return the values by name and round from a result of `OwnMeasures.summary`."""
    measures: dict[str, dict[int, float]] = {}
    for name, values in summary.get("values", {}).items():
        pairs = zip(summary["round"], values, strict=True)
        measures[name] = {number: value for number, value in pairs if value is not None}
    return measures


def metrics_in(line: Round) -> dict[str, Any]:
    """Return the metrics that a round measured, without its clocks."""
    return {name: line[name] for name in sorted(line) if name not in NO_METRICS and not name.startswith("time/")}


def measurements(evaluation: Evaluation) -> dict[str, int]:
    """Return how often a run makes the measurements that cost time and change no other number."""
    return {"every": evaluation.every, "gradient_diversity_every": evaluation.gradient_diversity_every}


def run_name(experiment: Experiment) -> str:
    return f"{experiment.cell_key}/seed={experiment.seed}"


def run_folder(results: Path, experiment: Experiment) -> Path:
    """Return the folder of the experiment's run for the current data and code; it need not exist.
    Raise ConfigError.
    """
    # Imports a custom network, because unpickling in a worker only imports the method.
    network_class(experiment.model.network)
    return seed_folder(results / "runs" / experiment.cell_key, to_json(experiment))


def read_run(folder: Path) -> RunRecord | None:
    """Return the record in a run's folder, finished or not, or None if no run has begun there.

    Raise DataError for a file that is damaged or has different content.
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
    whole = digest is not None and not edited  # if so, rounds are read when they are needed
    if not re.fullmatch(rf"seed={experiment['seed']}(@[0-9a-f]{{8}})?", folder.name):
        raise DataError(f"{experiment_path} has the seed {quoted(experiment['seed'])}, unlike its folder; {ANEW}")
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
    """Raise DataError if the result belongs to a different run than the record."""
    result = record.result
    faults = list[str]()
    for name, right in (("cell_key", record.cell_key), ("seed", record.seed)):
        if result.get(name, right) != right:
            faults.append(f"the result has {name} {quoted(result[name])}, but the record has {right!r}")
    if record.status == "done" and not len(record.rounds):
        faults.append("the run is done, but there are no rounds")
    if result and not record.manifest:
        faults.append("manifest.json is missing")
    if faults:
        raise DataError(f"{record.path / RESULT}: {faults[0]}; {ANEW}")


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return `result.json` of a run, or None if it is not finished. Raise DataError if it is damaged."""
    result = read_json(folder / RESULT)
    return result if result is None else dict(check(result, schema.RESULT, f"{folder / RESULT}"))


def json_lines(content: bytes, path: Path) -> tuple[dict[str, Any], ...]:
    """Return the objects in the complete lines of the file at `path`. Raise DataError."""
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
    """Return the rounds in the file. `digest` is part of the cache's key, so that a changed file is read again."""
    return json_lines(bytes_of(path) or b"", path)


class RoundsOnDisk(Sequence[Round]):
    """The rounds of one run, read when they are needed: a report on ten thousand runs needs the rounds of a few."""

    def __init__(self, path: Path, digest: str, number: int) -> None:
        self._path, self._digest, self._number = path, digest, number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: Any) -> Any:
        return _cached_rounds(self._path, self._digest)[index]


def run_digest(folder: Path, result: Mapping[str, Any]) -> str:
    """Return `digest_of` for the files in a run's folder."""
    manifest = read_json(folder / "manifest.json") or {}
    return digest_of(
        bytes_of(folder / "experiment.json") or b"", bytes_of(folder / "rounds.jsonl") or b"", manifest, result
    )


def digest_of(experiment: bytes, rounds: bytes, manifest: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Hash the parts of a finished run that must not change, as sha256 in hexadecimal: a later change of any part gives
    a different digest.

    The parts are experiment.json and rounds.jsonl as they are in the folder, the manifest without the attempts, and the
    result without the digest.
    """
    without_attempts = {key: value for key, value in manifest.items() if key != "attempts"}
    without_digest = {key: value for key, value in result.items() if key != "digest"}
    digest = hashlib.sha256()
    for part in (experiment, rounds, canonical(without_attempts), canonical(without_digest)):
        # With the length, so that nothing can move from one part to the next.
        digest.update(f"{len(part)}\n".encode() + part)
    return digest.hexdigest()


def canonical(value: Any) -> bytes:
    """Return JSON in a canonical form: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def is_recorded(results: Path, experiment: Experiment) -> bool:
    """Return whether the run is finished; False for a damaged one. Raise OSError."""
    try:
        record = read_run(run_folder(results, experiment))
    except DataError:
        return False
    return record is not None and record.status in FINISHED
