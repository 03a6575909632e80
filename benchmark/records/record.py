"""The record of one run: what it holds, how it is read from the run's folder, and the types that it must have.

results/runs/<cell_key>/seed=<n>/   experiment.json, manifest.json, rounds.jsonl, result.json, weights

Types are checked here, once: whoever has a `RunRecord` need not look at them again.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmark.config import quoted
from benchmark.errors import DataError
from benchmark.experiment import Evaluation, Experiment
from benchmark.records.files import ANEW, bytes_of, json_object, read_json
from benchmark.records.identity import at_hand, seed_folder

ROUNDS, RESULT = "rounds.jsonl", "result.json"  # put in place once, when a run has ended
PROGRESS = "progress.jsonl"  # the rounds of an unfinished run, as they were saved last
FILES = ("experiment.json", "manifest.json", ROUNDS, RESULT)  # of a run; all that its digest is made of
MIRROR_FILE = "wandb.json"  # in a run's folder: {"url": its page on W&B}; not part of the record
FINISHED = ("done", "diverged")
STATUSES = (*FINISHED, "failed")  # of a result
LARGEST = 1e300  # of a number in a record
CACHED_RUNS = 512  # whose rounds stay in memory; about 0.2 MB each at 100 rounds

Round = Mapping[str, Any]
Records = Mapping[str, Mapping[int, "RunRecord"]]  # cell_key -> seed -> record


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run (a cell x a seed). `rounds` has one mapping a round, in order; a metric that was not measured in a round
    is absent from its mapping. Accuracies are fractions.

    A committed copy keeps counts (`local_steps`, `comm/...`) of every round, and all other metrics of evaluated rounds
    only; `mean` and `median` still are those over all rounds.
    """

    cell_key: str
    seed: int
    experiment: Mapping[str, Any]  # the resolved Experiment as JSON
    manifest: Mapping[str, Any]  # commit, versions, data and partition hashes, hardware
    result: Mapping[str, Any]  # empty while the run is not finished
    rounds: Sequence[Round]
    summaries: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of a copy: {metric: {"mean": ...}}
    wandb_url: str | None = None  # its page on W&B
    edited: bool = False  # its digest is of other content
    apart: str = ""  # 8 hexadecimal digits of what it was computed from, where another run has the cell's `seed=<n>`

    @property
    def folder_name(self) -> str:
        """Of its folder among those of its cell."""
        return f"seed={self.seed}@{self.apart}" if self.apart else f"seed={self.seed}"

    @property
    def status(self) -> str:
        """done | diverged | failed | unfinished"""
        return self.result.get("status", "unfinished")

    @property
    def measured(self) -> Mapping[str, Any]:
        """{"every": rounds between evaluations, "gradient_diversity_every": 0 for never}"""
        return self.result.get("measured") or self.experiment.get("evaluation", {})

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

    @property
    def data_note(self) -> str:
        """What a page that shows its numbers has to say of the files that it read; mostly nothing."""
        return str(self.manifest.get("data", {}).get("note", ""))

    def median(self, metric: str) -> float | None:
        """Over all rounds that measured it; None where none did."""
        return self.summary(metric).get("median")

    def mean(self, metric: str) -> float | None:
        """Over all rounds that measured it; None where none did."""
        return self.summary(metric).get("mean")

    def summary(self, metric: str) -> Mapping[str, float]:
        """{"mean", "median"} over all rounds that measured it; empty where none did."""
        if metric in self.summaries:
            return self.summaries[metric]
        values = [float(line[metric]) for line in self.rounds if metric in line]
        return {"mean": fmean(values), "median": median(values)} if values else {}


def measurements(evaluation: Evaluation) -> dict[str, int]:
    """How often a run measures what costs time and moves no other number: `RunRecord.measured`."""
    return {"every": evaluation.every, "gradient_diversity_every": evaluation.gradient_diversity_every}


# Types


# What every manifest and every result has, by its path.
MANIFEST: Mapping[str, tuple[type, ...]] = {
    "code.commit": (str,),
    "packages": (dict,),
    "data.name": (str,),
    "data.hash": (str,),
    "data.partition": (str,),
    "engine.threads": (int,),
}
OF_RESULT: Mapping[str, tuple[type, ...]] = {
    "status": (str,),
    "cell_key": (str,),
    "seed": (int,),
    "numerics": (int,),
    "rounds": (int,),
    "selection": (str,),
    "last": (dict,),
    "cost": (dict,),
    "wall_seconds": (int, float),
}


def check_types(record: RunRecord, path: Path) -> None:
    """Raises DataError, which names the first field of another type than a record's. Rounds that a digest vouches for
    are not looked at."""
    for fault in _type_faults(record):
        raise DataError(f"{path}: {fault}; {ANEW}")


def _type_faults(record: RunRecord) -> Iterator[str]:
    if not isinstance(record.cell_key, str) or not re.fullmatch("[0-9a-f]{16}", record.cell_key):
        yield f"cell_key {quoted(record.cell_key)} is not 16 hexadecimal digits"
    if not isinstance(record.seed, int) or isinstance(record.seed, bool):
        yield f"seed {quoted(record.seed)} is not a whole number"
    for name in ("experiment", "manifest", "result", "summaries"):
        if not isinstance(getattr(record, name), dict):
            yield f"{name} is {quoted(getattr(record, name))}, not a JSON object"
    if record.manifest or record.result:
        yield from _schema_faults("manifest.json", record.manifest, MANIFEST)
        if not isinstance(attempts := record.manifest.get("attempts", []), list):
            yield f"manifest.json: attempts is {quoted(attempts)}, not a list"
    if record.result:
        yield from _result_faults(record)
    if not isinstance(record.rounds, RoundsOnDisk):
        for number, line in enumerate(record.rounds, 1):
            yield from (f"round {number}: {fault}" for fault in _round_faults(line))


def _schema_faults(file: str, part: Mapping[str, Any], wanted: Mapping[str, tuple[type, ...]]) -> Iterator[str]:
    for name, kinds in wanted.items():
        value: Any = part
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if not isinstance(value, kinds) or isinstance(value, bool):
            names = " or ".join(kind.__name__ for kind in kinds)
            yield f"{file}: {name} is {quoted(value)}; {names} is wanted"


def _result_faults(record: RunRecord) -> Iterator[str]:
    result = record.result
    yield from _schema_faults(RESULT, result, OF_RESULT)
    if result["status"] not in STATUSES:
        yield f"{RESULT}: status {quoted(result['status'])}; there are {', '.join(STATUSES)}"
    for name, right in (("cell_key", record.cell_key), ("seed", record.seed)):
        if result[name] != right:
            yield f"{RESULT}: {name} {quoted(result[name])}, but the record has {right!r}"
    if result["status"] in FINISHED and not len(record.rounds) and result["status"] == "done":
        yield f"{RESULT}: done, but there are no rounds"
    for name in ("best", "measured", "exchange", "fall"):
        if not isinstance(result.get(name), Mapping | None):
            yield f"{RESULT}: {name} is {quoted(result[name])}, not a JSON object"
    for name in ("last", "best", "cost"):
        for metric, value in (result.get(name) or {}).items():
            if not is_number(value):
                yield f"{RESULT}: {name}.{metric} is {quoted(value)}, not a number"


def _round_faults(line: Round) -> Iterator[str]:
    if not isinstance(line.get("round"), int) or isinstance(line["round"], bool):
        yield f"round is {quoted(line.get('round'))}, not a whole number"
    for name, value in line.items():
        if name not in ("cell_key", "seed", "round") and not is_number(value):
            yield f"{name} is {quoted(value)}, not a number"


def is_number(value: object) -> bool:
    """Whether it is a finite number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


# Reading


def run_name(experiment: Experiment) -> str:
    return f"{experiment.cell_key}/seed={experiment.seed}"


def run_folder(results: Path, experiment: Experiment, data_root: Path | None = None) -> Path:
    """The folder of the experiment's run on the data and code at hand; it need not exist."""
    return seed_folder(results / "runs" / experiment.cell_key, at_hand(experiment, data_root))


def read_run(folder: Path) -> RunRecord | None:
    """The record in a run's folder, finished or not; None where no run has been started.

    Raises DataError for a file that is damaged or holds something else.
    """
    experiment_bytes = bytes_of(folder / "experiment.json")
    if experiment_bytes is None:
        return None
    experiment = json_object(experiment_bytes, folder / "experiment.json")
    manifest, result = read_json(folder / "manifest.json") or {}, read_result(folder) or {}
    path = _rounds_path(folder)
    lines = bytes_of(path) or b""
    digest = digest_of(experiment_bytes, lines, manifest, result) if "digest" in result else None
    edited = digest is not None and bool(manifest) and result["digest"] != digest
    whole = digest is not None and not edited  # then rounds are read when they are looked at
    seed = experiment.get("seed")
    folder_name = re.fullmatch(r"seed=(\d+)(?:@([0-9a-f]{8}))?", folder.name)
    if not isinstance(seed, int) or folder_name is None or folder_name[1] != str(seed):
        raise DataError(f"{folder / 'experiment.json'}: is of seed {quoted(seed)}; {ANEW}")
    url = (read_json(folder / MIRROR_FILE) or {}).get("url")
    record = RunRecord(
        cell_key=folder.parent.name,
        seed=seed,
        experiment=experiment,
        manifest=manifest,
        result=result,
        rounds=RoundsOnDisk(path, str(digest), lines.count(b"\n")) if whole else json_lines(lines, path),
        wandb_url=url if isinstance(url, str) else None,
        edited=edited,
        apart=folder_name[2] or "",
    )
    check_types(record, folder)
    return record


def read_result(folder: Path) -> dict[str, Any] | None:
    """`result.json` of a run; None where it is not finished. Raises DataError."""
    result: dict[str, Any] | None = read_json(folder / RESULT)
    if result is not None and result.get("status") not in STATUSES:
        status = quoted(result.get("status"))
        raise DataError(f"{folder / RESULT}: status {status}; there are {', '.join(STATUSES)}; {ANEW}")
    return result


def result_if_whole(folder: Path) -> dict[str, Any]:
    """`result.json` of a run; empty where it is not finished, or damaged: `fssl verify` reports that."""
    try:
        return read_result(folder) or {}
    except DataError:
        return {}


def read_rounds(folder: Path) -> tuple[dict[str, Any], ...]:
    """The rounds of a run: of a finished one all, of an unfinished one those that are saved. Raises DataError."""
    path = _rounds_path(folder)
    return json_lines(bytes_of(path) or b"", path)


def _rounds_path(folder: Path) -> Path:
    return folder / (ROUNDS if (folder / RESULT).exists() or not (folder / PROGRESS).exists() else PROGRESS)


def json_lines(content: bytes, path: Path) -> tuple[dict[str, Any], ...]:
    """The objects in the whole lines of the file at `path`. Raises DataError."""
    lines = content.splitlines(keepends=True)
    return tuple(_round(line, path, number) for number, line in enumerate(lines, 1) if line.endswith(b"\n"))


def _round(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number} is not a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise DataError(f"{path}: line {number} is not a JSON object (it is a {type(value).__name__})")
    return value


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
    """sha256 (hex) over a run's experiment.json and rounds.jsonl as they lie there, its manifest without the attempts,
    and its result without the digest: any of these changed later gives another one."""
    parts = [
        experiment,
        rounds,
        canonical({key: value for key, value in manifest.items() if key != "attempts"}),
        canonical({key: value for key, value in result.items() if key != "digest"}),
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode() + part)  # the length, so that nothing can move from part to part
    return digest.hexdigest()


def canonical(value: Any) -> bytes:
    """JSON in one form: equal values, equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def is_recorded(results: Path, experiment: Experiment) -> bool:
    """Whether the run is finished; one that cannot be read is not."""
    try:
        record = read_run(run_folder(results, experiment))
    except DataError:
        return False
    return record is not None and record.status in FINISHED
