"""Records of runs: what one is, where it lies, how it is read, and the compact copies that are committed.

results/runs/<cell_key>/seed=<n>/             a run: experiment, manifest, rounds, result, weights
results/reference/<cell_key>/seed=<n>.json.gz the committed compact copy of a finished run
results/reference/index.json                  the digest of every committed copy
"""

import functools
import gzip
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmark.config import shown
from benchmark.errors import DataError, FsslError
from benchmark.experiment import NUMERICS, Evaluation, Experiment
from benchmark.records.files import ANEW, bytes_of, json_bytes, json_object, one_line, read_json, write_atomically

LONGEST_LINE = 1 << 20  # bytes of a round's line in rounds.jsonl
ROUNDS, RESULT = "rounds.jsonl", "result.json"  # put in place once, when a run has ended
PROGRESS = "progress.jsonl"  # the rounds of an unfinished run, as they were saved last
FILES = ("experiment.json", "manifest.json", ROUNDS, RESULT)  # of a run; all that its digest is made of
MIRROR_FILE = "wandb.json"  # in a run's folder: {"url": its page on W&B}; no part of the record
INDEX = "index.json"  # in results/reference
FINISHED = ("done", "diverged")
STATUSES = (*FINISHED, "failed")  # of a result
ROUNDING = 1e-5  # committed copies have six significant digits
CACHED_RUNS = 512  # whose rounds stay in memory; about 0.2 MB each at 100 rounds

Round = Mapping[str, Any]
Records = Mapping[str, Mapping[int, "RunRecord"]]  # cell_key -> seed -> record


# A fall while training: accuracy so far below the run's own best before it, a fraction.
FALL = 0.2
AGAINST_A_FALL = (
    "clients may be learning wrong pseudo-labels; what usually helps: a longer warm start "
    "(method.warm_start_rounds), a lower learning rate, smaller batches, more labels"
)


def fall_of(rounds: Iterable[Round]) -> dict[str, Any] | None:
    """The deepest fall of the accuracy below the best before it: its rounds and accuracies; None below `FALL`."""
    best: tuple[float, int] | None = None
    deepest: dict[str, Any] | None = None
    for line in rounds:
        accuracy = line.get("test/accuracy", line.get("validation/accuracy"))
        if accuracy is None:
            continue
        if best is None or accuracy > best[0]:
            best = accuracy, line["round"]
        depth = best[0] - accuracy
        if depth > max(FALL, deepest["depth"] if deepest else 0.0):
            deepest = {"depth": depth, "round": line["round"], "accuracy": accuracy, "from": best[0], "best": best[1]}
    return deepest


def fall_in_words(fall: Mapping[str, Any]) -> str:
    """ "accuracy fell from 91.0 % (round 30) to 44.3 % (round 40)" """
    return (
        f"accuracy fell from {100 * fall['from']:.1f} % (round {fall['best']}) "
        f"to {100 * fall['accuracy']:.1f} % (round {fall['round']})"
    )


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
        data = self.manifest.get("data")
        return str(data.get("note", "")) if isinstance(data, Mapping) else ""

    def median(self, metric: str) -> float | None:
        """Over all rounds that measured it; None where none did."""
        return self._summary(metric).get("median")

    def mean(self, metric: str) -> float | None:
        """Over all rounds that measured it; None where none did."""
        return self._summary(metric).get("mean")

    def _summary(self, metric: str) -> Mapping[str, float]:
        if metric in self.summaries:
            return self.summaries[metric]
        values = [float(line[metric]) for line in self.rounds if metric in line]
        return {"mean": fmean(values), "median": median(values)} if values else {}


# What is measured


def measurements(evaluation: Evaluation) -> dict[str, int]:
    """How often a run measures what costs time and moves no other number: `RunRecord.measured`."""
    return {"every": evaluation.every, "gradient_diversity_every": evaluation.gradient_diversity_every}


def disagreement(old: RunRecord, new: RunRecord, *, exact: bool) -> str | None:
    """The first number that two records of one run both have and that differs, in words; None where there is none.

    `exact`: bit by bit; else to six significant digits. Clocks are not compared.
    """
    if (old.status, len(old.rounds)) != (new.status, len(new.rounds)):
        return f"{new.status} after {len(new.rounds)} rounds, it was {old.status} after {len(old.rounds)}"
    for before, now in zip(old.rounds, new.rounds, strict=True):
        for name in before.keys() & now.keys() - {"cell_key", "seed"}:
            if not name.startswith("time/") and not equal(before[name], now[name], 0.0 if exact else ROUNDING):
                return f"round {before['round']}: {name} is {now[name]}, it was {before[name]}"
    return None


def equal(left: Any, right: Any, tolerance: float) -> bool:
    """Numbers up to a share of their size, other values exactly."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return bool(left == right)
    return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance * 1e-4)


# Runs


def run_folder(results: Path, experiment: Experiment) -> Path:
    return results / "runs" / experiment.cell_key / f"seed={experiment.seed}"


def read_run(folder: Path) -> RunRecord | None:
    """The record in a run's folder, finished or not; None where no run has been started.

    Raises DataError for a file that is damaged or holds something else.
    """
    raw = {name: bytes_of(folder / name) for name in (*FILES, MIRROR_FILE)}
    if raw["experiment.json"] is None:
        return None
    names = ("experiment.json", "manifest.json", "result.json", MIRROR_FILE)
    found = ((raw[name], folder / name) for name in names)
    experiment, manifest, result, mirror = ({} if text is None else json_object(text, path) for text, path in found)
    if raw["result.json"] is not None:
        _check_result(result, folder / "result.json")
    seed = experiment.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise DataError(f"{folder / 'experiment.json'}: seed is {shown(seed)}, not a whole number")
    unfinished = raw[RESULT] is None and (folder / PROGRESS).exists()
    lines = (bytes_of(folder / PROGRESS) if unfinished else raw[ROUNDS]) or b""
    digest = digest_of(raw["experiment.json"], lines, manifest, result) if "digest" in result else None
    edited = digest is not None and bool(manifest) and result["digest"] != digest
    if folder.name != f"seed={seed}":
        raise DataError(f"{folder}: holds a run of seed {seed}; {ANEW}")
    path = folder / (PROGRESS if unfinished else ROUNDS)
    whole = digest is not None and not edited  # then rounds are read when they are looked at
    rounds = RoundsOnDisk(path, str(digest), lines.count(b"\n")) if whole else json_lines(lines, path)
    url = mirror.get("url")
    return RunRecord(
        cell_key=folder.parent.name,
        seed=seed,
        experiment=experiment,
        manifest=manifest,
        result=result,
        rounds=rounds,
        wandb_url=url if isinstance(url, str) else None,
        edited=edited,
    )


def read_result(folder: Path) -> dict[str, Any] | None:
    """`result.json` of a run; None where it is not finished. Raises DataError."""
    result = read_json(folder / "result.json")
    if result is not None:
        _check_result(result, folder / "result.json")
    return result


def result_if_whole(folder: Path) -> dict[str, Any]:
    """`result.json` of a run; empty where it is not finished, or damaged: `fssl verify` tells of that."""
    try:
        return read_result(folder) or {}
    except DataError:
        return {}


def _check_result(result: Mapping[str, Any], path: Path) -> None:
    if result.get("status") not in STATUSES:
        raise DataError(f"{path}: status {shown(result.get('status'))}; there are {', '.join(STATUSES)}; {ANEW}")


def read_rounds(folder: Path) -> tuple[dict[str, Any], ...]:
    """The rounds of a run: of a finished one all, of an unfinished one those that are saved. Raises DataError."""
    path = _rounds_of(folder)
    return json_lines(bytes_of(path) or b"", path)


def last_round(folder: Path) -> dict[str, Any] | None:
    """The newest saved round of a run, read from the end of the file alone: it is asked for twice a second. None where
    there is none, or its line is damaged."""
    path = _rounds_of(folder)
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LONGEST_LINE))
            lines = [line for line in file.read().splitlines(keepends=True) if line.endswith(b"\n")]
        return _round(lines[-1], path, 0) if lines else None
    except (OSError, DataError):
        return None


def _rounds_of(folder: Path) -> Path:
    return folder / (ROUNDS if (folder / RESULT).exists() else PROGRESS)


def json_lines(content: bytes, path: Path) -> tuple[dict[str, Any], ...]:
    """The objects in the whole lines of the file at `path`. Raises DataError."""
    lines = content.splitlines(keepends=True)
    return tuple(_round(line, path, number) for number, line in enumerate(lines, 1) if line.endswith(b"\n"))


def _round(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: line {number} is no JSON object ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: line {number} is no JSON object (it is a {type(found).__name__})")
    return found


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
        _canonical({key: value for key, value in manifest.items() if key != "attempts"}),
        _canonical({key: value for key, value in result.items() if key != "digest"}),
    ]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}\n".encode() + part)  # the length, so that nothing can move from part to part
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def is_recorded(results: Path, experiment: Experiment) -> bool:
    """Whether the run is finished; one that cannot be read is not."""
    try:
        record = read_run(run_folder(results, experiment))
    except DataError:
        return False
    return record is not None and record.status in FINISHED


# Committed copies


def reference_path(results: Path, cell_key: str, seed: int) -> Path:
    return results / "reference" / cell_key / f"seed={seed}.json.gz"


def write_reference(results: Path, record: RunRecord) -> Path:
    """Put a finished run's compact copy into `results/reference`, which git keeps, and its digest into the index.

    Raises DataError for a record that was edited: the copy's digest would hide it.
    """
    if record.edited:
        run = f"{record.cell_key}/seed={record.seed}"
        raise DataError(f"{run}: was edited after it was written, and is not committed; see `fssl verify`")
    path, copy = reference_path(results, record.cell_key, record.seed), pack(record)
    write_atomically(path, gzip.compress(_canonical(copy) + b"\n", mtime=0))
    index = read_index(results)
    index[copy_name(path)] = copy["digest"]
    write_index(results, index)
    return path


def read_index(results: Path) -> dict[str, str]:
    """The digest of every committed copy by `copy_name`; empty where nothing is committed. Raises DataError."""
    return read_json(results / "reference" / INDEX) or {}


def write_index(results: Path, index: Mapping[str, str]) -> None:
    write_atomically(results / "reference" / INDEX, json_bytes(index))


def copy_name(path: Path) -> str:
    """results/reference/<cell_key>/seed=0.json.gz -> "<cell_key>/seed=0" """
    return f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"


def read_copy(path: Path) -> RunRecord:
    """The record of a committed copy. Raises DataError for a file that is none."""
    return unpack(_unzipped(path), path)


def stated_digest(path: Path) -> str | None:
    """What a committed copy says that its digest is. Raises DataError."""
    return _unzipped(path).get("digest")


def _unzipped(path: Path) -> dict[str, Any]:
    try:
        return json_object(gzip.decompress(path.read_bytes()), path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({one_line(error)}); `git checkout` restores it") from None


def pack(record: RunRecord) -> dict[str, Any]:
    """The compact copy as JSON values. Its rounds are one list a metric: counts have a value a round; of everything
    else, `evaluated` names the rounds that are kept, with six significant digits, and `summaries` sums up all."""
    rounds = record.rounds
    # A copy of a copy has a metric that no kept round has in its summaries alone.
    names = sorted({name for line in (*rounds, record.summaries) for name in line} - {"cell_key", "seed", "round"})
    counts, others = [name for name in names if _is_count(name)], [name for name in names if _is_sampled(name)]
    kept = [line for line in rounds if line is rounds[-1] or any(name.startswith(_EVALUATED) for name in line)]
    copy = {
        "cell_key": record.cell_key,
        "seed": record.seed,
        "experiment": dict(record.experiment),
        "manifest": dict(record.manifest),
        "result": dict(record.result),
        "counts": {name: [line.get(name) for line in rounds] for name in ("round", *counts)},
        "evaluated": {
            "round": [line["round"] for line in kept],
            **{name: [_short(line.get(name)) for line in kept] for name in others},
        },
        "summaries": {
            name: {key: _short(value) for key, value in record._summary(name).items()}
            for name in others
            if not name.startswith(_EVALUATED)
        },
    }
    return {**copy, "digest": copy_digest(copy)}


_EVALUATED = ("test/", "validation/", "diversity/gradient/")  # starts of the metrics that say which rounds are kept


def _is_count(name: str) -> bool:
    return name == "local_steps" or name.startswith("comm/")


def _is_sampled(name: str) -> bool:
    """Clocks are left out: the result has their sums."""
    return not _is_count(name) and not name.startswith("time/")


def copy_digest(copy: Mapping[str, Any]) -> str:
    """128 bits (hex) over all of a compact copy but the digest itself."""
    return hashlib.sha256(_canonical({**copy, "digest": None})).hexdigest()[:32]


def unpack(copy: Mapping[str, Any], path: Path) -> RunRecord:
    """The record of a compact copy. Raises DataError for content that is none."""
    try:
        counts, evaluated = copy["counts"], copy["evaluated"]
        lines: dict[int, dict[str, Any]] = {number: {} for number in counts["round"]}
        for columns in (counts, evaluated):
            for name, column in columns.items():
                for number, value in zip(columns["round"], column, strict=True):
                    if value is not None:
                        lines[number][name] = value
        for name in ("experiment", "manifest", "result", "summaries"):
            if not isinstance(copy[name], dict):
                raise TypeError(f"{name} is a {type(copy[name]).__name__}")
        if not isinstance(copy["cell_key"], str) or type(copy["seed"]) is not int:
            raise TypeError(f"cell_key {copy['cell_key']!r}, seed {copy['seed']!r}")
        return RunRecord(
            cell_key=copy["cell_key"],
            seed=copy["seed"],
            experiment=copy["experiment"],
            manifest=copy["manifest"],
            result=copy["result"],
            rounds=tuple(lines.values()),
            summaries=copy["summaries"],
            edited=copy["digest"] != copy_digest(copy),
        )
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: is no compact record ({error!r}); `git checkout` restores it") from None


def _short(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return float(f"{value:.6g}")
    return value


# Reading many


def read_records(
    results: Path,
    cell_keys: Iterable[str],
    *,
    with_reference: bool,
    with_runs: bool = True,
    troubles: list[str] | None = None,
) -> Records:
    """All records of these cells. A run of this machine takes precedence over a committed copy of the same seed, unless
    it is not finished.

    `with_reference`: committed copies count; `with_runs`: this machine's runs do. With a list as `troubles`, a damaged
    record is left out and told there in one line. Raises DataError without one.
    """
    records: dict[str, dict[int, RunRecord]] = {}
    for cell_key in dict.fromkeys(cell_keys):
        copies = (results / "reference" / cell_key).glob("seed=*.json.gz") if with_reference else ()
        tried = (_tried(read_copy, path, troubles) for path in sorted(copies))
        seeds = {copy.seed: copy for copy in tried if copy is not None and copy.result.get("numerics") == NUMERICS}
        folders = (results / "runs" / cell_key).glob("seed=*") if with_runs else ()
        for folder in sorted(folders):
            run = _tried(read_run, folder, troubles)
            if run is not None and (run.seed not in seeds or run.result):
                seeds[run.seed] = run
        records[cell_key] = dict(sorted(seeds.items()))
    return records


def _tried(read: Any, path: Path, troubles: list[str] | None) -> RunRecord | None:
    try:
        record: RunRecord | None = read(path)
        return record
    except (FsslError, OSError) as error:
        if troubles is None:
            raise
        troubles.append(f"{path.parent.name}/{path.name}: {one_line(error)}")
        return None
