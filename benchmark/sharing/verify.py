"""Check that each run record is consistent, and that records agree with each other and with the data on this machine.

Only `retrain` trains; the other functions only examine files, and none repairs anything. The types of values were
checked when the record was read.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark.data.datasets import DATASETS, DataSet, is_available, load
from benchmark.data.folder import public_name
from benchmark.data.reading import UNKNOWN_ORIGIN
from benchmark.errors import ConfigError, DataError, Diverged, FsslError, Stopped, one_line
from benchmark.experiment import NUMERICS, Experiment, from_record
from benchmark.fractions import is_fraction
from benchmark.numerics import CURRENT, numerics_in_words
from benchmark.records import run_lock, state
from benchmark.records.identity import changed_inputs
from benchmark.records.provenance import equal_bits_expected
from benchmark.records.record import RunRecord, metrics_in, read_run, run_folder
from benchmark.records.result import settings_of, sums_of
from benchmark.records.sources import own_names

ROUNDING = 1e-5  # committed copies have six significant digits
SIX_DIGITS = 2e-6  # tolerance for a fraction with six significant digits, slightly more than its rounding error
SPREAD = 0.0039  # measured root mean square difference of a run's final accuracy between types of processors
MOST_SPREADS = 4  # largest difference of one run in units of the spread, or of a mean of runs in standard errors


def check_records(
    records: Sequence[RunRecord], *, trusted: bool = True, with_data: bool = True
) -> tuple[list[str], set[str]]:
    """Return all faults of the records, and the data sets that could not be hashed again.

    If `trusted`, the code and the folders of images that records name may be used. If not, the checks that need them
    are left out.
    """
    faults = [fault for record in records for fault in record_faults(record, trusted=trusted)]
    readable = [record for record in records if trusted or not own_names(record.experiment)]
    other_data, absent = data_faults(readable) if with_data else ([], set[str]())
    return [*faults, *other_data, *equal_rounds(records)], absent


def record_faults(record: RunRecord, *, trusted: bool = True) -> list[str]:
    """Return the faults of one record: wrong key, settings, rounds, sums, saved state or digest."""
    readable = trusted or not own_names(record.experiment)
    faults = [*_experiment_faults(record, readable=readable), *_round_faults(record), *_accuracy_faults(record)]
    if record.result:
        faults += [f"result.json: {fault}" for fault in _result_faults(record, ROUNDING if record.is_copy else 0.0)]
    if not record.is_copy:
        faults += _unfinished_faults(record.path, f"{record.cell_key}/seed={record.seed}")
    if record.edited:
        faults.append("its digest does not match: experiment, manifest, rounds or result was edited afterwards")
    return [f"{record.path}: {fault}" for fault in faults]


def _experiment_faults(record: RunRecord, *, readable: bool) -> Iterator[str]:
    """Yield faults of the experiment. If not `readable`, its code may not be used, and its settings are not checked."""
    seed, set_name = record.experiment["seed"], record.experiment["data"]["name"]
    if seed != record.seed:
        yield f"experiment.json: seed is {seed}, but the record has seed {record.seed}"
    name = record.manifest.get("data", {}).get("name", set_name)
    if name not in (set_name, public_name(set_name)):
        yield f"manifest.json: data.name is {name!r}, but experiment.json has {set_name!r}"
    if not readable:
        return
    try:
        experiment = from_record(record.experiment)
    except FsslError as error:
        yield f"experiment.json: {one_line(error)}"
        return
    if experiment.cell_key != record.cell_key and record.result.get("numerics") == NUMERICS:
        yield (
            f"experiment.json has cell_key {experiment.cell_key}, but the record has {record.cell_key}; "
            "`fssl reproduce` trains it again"
        )
    result = record.result
    for key, right in settings_of(experiment).items():
        if key in result and result[key] != right:
            yield f"result.json: {key} is {result[key]!r}, but experiment.json has {right!r}"
    if result.get("status") == "done" and result["rounds"] != experiment.federation.rounds:
        yield f"result.json: status is 'done' after {result['rounds']} rounds of {experiment.federation.rounds}"
    if result.get("status") == "diverged" and "error" not in result:
        yield "result.json: status is 'diverged' without the field error; delete the run's folder to train it again"


def _round_faults(record: RunRecord) -> Iterator[str]:
    """Yield faults of the rounds. Committed copies contain cell and seed only once, not in each round."""
    numbers = [line.get("round") for line in record.rounds]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"rounds.jsonl: rounds {numbers[:3]}... are not 1 to {len(numbers)}, each once"
    for line in record.rounds:
        where = f"rounds.jsonl: round {line.get('round')}"
        for name, right in (("cell_key", record.cell_key), ("seed", record.seed)):
            if line.get(name, right) != right:
                yield f"{where} has {name} {line[name]}, not {right}"
        yield from (f"{where}, {fault}" for fault in _not_fractions(line))


def _not_fractions(metrics: Mapping[str, Any]) -> Iterator[str]:
    for name, value in metrics.items():
        if is_fraction(name) and not -1e-9 <= value <= 1.0 + 1e-9:
            yield f"{name} is {value}, not a fraction"


def _accuracy_faults(record: RunRecord) -> Iterator[str]:
    """Yield the first accuracy that is not a fraction of the number of evaluated images; a copy has six digits.

    With unknown classes, the accuracy is over the test images of known classes, whose number a record does not have.
    """
    data = record.experiment["data"]
    known = DATASETS.get(data["name"])
    tested = data.get("pooled_test") or (known and known.test)
    if data.get("label_setting") == "open":
        tested = None
    images = {"validation": data.get("N_validation"), "test": tested}
    parts = [("result.json: last.", record.result.get("last", {})), ("result.json: best.", record.result.get("best"))]
    parts += [(f"rounds.jsonl: round {line.get('round')}: ", line) for line in record.rounds]
    for part, N in images.items():
        for where, metrics in parts:
            accuracy = (metrics or {}).get(f"{part}/accuracy")
            if accuracy is not None and N and abs(accuracy * N - round(accuracy * N)) > 1e-3 + SIX_DIGITS * N:
                yield f"{where}{part}/accuracy is {accuracy}, which is impossible for {N:,} images"
                break


def _result_faults(record: RunRecord, tolerance: float) -> Iterator[str]:
    """Yield differences between the result and the rounds that it summarises.

    A copy contains the counts of all rounds, and all other values of some rounds.
    """
    result = record.result
    right = sums_of(record.rounds)
    copied = tolerance > 0
    if result["rounds"] != right["rounds"]:
        yield f"rounds is {result['rounds']}, but the record has {right['rounds']}"
    yield from (f"last.{fault}" for fault in _not_fractions(result["last"]))
    if copied:
        right["last"] = {name: value for name, value in right["last"].items() if name in record.rounds[-1]}
    for part in ("last", "best", "cost"):
        said, sums = result.get(part) or {}, right.get(part) or {}
        for name in sorted(said.keys() | sums.keys() if part == "cost" else said.keys()):
            if not equal(said.get(name), sums.get(name), tolerance) and (name in sums or not copied):
                yield f"{part}.{name} is {said.get(name)}, but the rounds give {sums.get(name)}"


def _unfinished_faults(folder: Path, run: str) -> Iterator[str]:
    if run_lock.read(folder) == {}:
        yield f"{run_lock.NAME} is damaged; its heartbeat decides whether the run is locked"
    try:
        state.load(folder, run)
    except (ConfigError, DataError) as error:
        yield one_line(error).removeprefix(f"{folder}/")


def equal(left: Any, right: Any, tolerance: float) -> bool:
    """Return whether two values are equal: numbers up to a share of their size, other values exactly."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return bool(left == right)
    return math.isclose(left, right, rel_tol=tolerance, abs_tol=tolerance * 1e-4)


@dataclass(frozen=True, kw_only=True)
class _OnThisMachine:
    """The data and the partition of a run, computed again from the files of this machine."""

    hash: str
    note: str
    partition: str  # hash
    class_counts: Mapping[str, Any]


def _on_this_machine(experiment: Experiment, data: DataSet) -> _OnThisMachine:
    from benchmark.federated.environment import prepare

    environment = prepare(experiment, data=data)
    return _OnThisMachine(
        hash=environment.data.content_hash,
        note=environment.data.note,
        partition=environment.split.hash(),
        class_counts=environment.class_counts,
    )


def data_faults(records: Iterable[RunRecord]) -> tuple[list[str], set[str]]:
    """Compute the hashes of data and partitions and the class counts of participants again, and return differences.

    Also return the data sets without files on this machine.
    """
    faults, absent = [], set()
    sets: dict[str, DataSet] = {}
    computed: dict[object, _OnThisMachine] = {}
    records = list(records)
    trained_on = {(run.cell_key, run.seed, run.data_hash) for run in records}
    for record in records:
        try:
            experiment = from_record(record.experiment)
            name = experiment.data.name
            if not is_available(name):
                absent.add(name)
                continue
            key = (experiment.data, experiment.partition, experiment.federation.K, record.seed)
            if key not in computed:
                sets[name] = sets[name] if name in sets else load(name)
                computed[key] = _on_this_machine(experiment.with_seed(record.seed), sets[name])
        except FsslError:  # `record_faults` reports faults of the experiment
            continue
        right = computed[key]
        is_noted_differently = record.data_note != right.note and UNKNOWN_ORIGIN not in record.data_note + right.note
        if is_noted_differently and name in DATASETS and DATASETS[name].original:
            absent.add(name)  # the suite also lists the record's files: the original or the packed ones
            continue
        was_trained_here = (record.cell_key, record.seed, right.hash) in trained_on
        if name not in DATASETS and record.data_hash != right.hash and was_trained_here:
            absent.add(name)  # the folder has changed, and this run was trained again on its current images
            continue
        for field, value in (("hash", right.hash), ("partition", right.partition)):
            recorded = record.manifest.get("data", {}).get(field)
            if record.manifest and recorded != value:
                faults.append(f"{record.path}: manifest.json: data.{field} is {recorded}, but it should be {value}")
        if record.class_counts not in ({}, right.class_counts):
            faults.append(f"{record.path}: manifest.json: data.class_counts do not match the data")
    return faults, absent


def equal_rounds(records: Iterable[RunRecord]) -> list[str]:
    """Return faults for runs of one cell with different seeds and equal metrics in every round, which are copies."""
    first: dict[str, tuple[int, Path]] = {}
    faults = []
    for record in records:
        lines = [metrics_in(line) for line in record.rounds]
        key = json.dumps([record.cell_key, record.is_copy, lines], sort_keys=True, default=str)
        seed, other = first.setdefault(key, (record.seed, record.path))
        if lines and seed != record.seed:
            faults.append(f"{record.path}: rounds.jsonl: every round is equal to {other}, which has a different seed")
    return faults


@dataclass(frozen=True, kw_only=True)
class Retrained:
    """The outcome of training a record again.

    `trouble` is the first difference, or None if there is none. `skipped` is the reason why nothing could be compared,
    or None if the runs were compared. `difference` is how much higher the accuracy of the record is, if the two runs
    used different processors.
    """

    exact: bool = False  # compared bit by bit, not to six digits or within the spread between processors
    without_diversity: str = ""  # an older version of gradient diversity, which was not compared
    trouble: str | None = None
    skipped: str | None = None
    difference: float | None = None

    def words(self) -> str:
        if self.skipped is not None:
            return f"not trained again: {self.skipped}"
        how = "bit by bit" if self.exact else "to six digits"
        how += f", without gradient diversity ({self.without_diversity})" if self.without_diversity else ""
        if self.difference is not None:
            how = f"within the spread between processors (its accuracy differs by {100 * self.difference:+.2f} points)"
        return f"trained again, equal {how}" if self.trouble is None else f"trained again, not equal {how}"


def retrain(record: RunRecord) -> Retrained:
    """Train the record's run again, with an engine that has its settings, and compare the two.

    If engine, processor, packages and numerics are equal, all common numbers are compared: bit by bit, or to the six
    digits of a compact copy. If not, rounding differs, and the final accuracy must be within the measured spread
    between processors. Data and partition must have the hashes in the manifest. Raise Stopped if the user interrupts.
    """
    from benchmark.federated.engines import EngineOptions
    from benchmark.records.run import run  # trains, and needs seconds to load

    if reason := why_not_here(record):
        return Retrained(skipped=reason)
    with tempfile.TemporaryDirectory(prefix="fssl-retrain-") as place:
        try:
            experiment = from_record(record.experiment)
            engine = EngineOptions().as_recorded(record.manifest)
            with contextlib.suppress(Diverged):  # the diverged run also has a record, which is compared
                run(experiment, Path(place), engine=engine)
            again = read_run(run_folder(Path(place), experiment))
        except Stopped:  # Ctrl-C of the user is not a result of the check
            raise
        except DataError as error:
            return Retrained(skipped=str(error))
        except FsslError as error:
            return Retrained(trouble=str(error))
        assert again is not None
        return compared(record, again)


def compared(record: RunRecord, again: RunRecord) -> Retrained:
    """Compare a record with the record of the same run that was trained again, by the rules of `retrain`."""
    if equal_bits_expected(record.manifest, again.manifest):
        exact = not record.committed
        differences = _differences(record, again, 0.0 if exact else ROUNDING)
        old_version = numerics_in_words(record.numerics)
        return Retrained(exact=exact, without_diversity=old_version, trouble=next(differences, None))
    trouble = next(_other_data_or_length(record, again), None)
    name = "validation/accuracy" if record.experiment["evaluation"].get("validation") else "test/accuracy"
    old, new = record.last(name), again.last(name)
    if trouble is not None or old is None or new is None:
        return Retrained(trouble=trouble)
    if abs(old - new) > MOST_SPREADS * SPREAD:
        trouble = (
            f"the final {name} is {new:.4f}, but it was {old:.4f}; the spread between processors is "
            f"{100 * SPREAD:.2f} points, and a difference of at most {MOST_SPREADS} times the spread is accepted"
        )
    return Retrained(trouble=trouble, difference=old - new)


def retrain_each(chosen: Iterable[RunRecord], *, silent: bool) -> dict[Path, Retrained]:
    """Apply `retrain` to each record. Unless `silent`, print each outcome immediately, because training is slow."""
    outcomes = {}
    for record in chosen:
        outcomes[record.path] = retrain(record)
        if not silent:
            print(f"{record.path}: {outcomes[record.path].words()}", flush=True)
    return outcomes


def troubles_of(retrained: Mapping[Path, Retrained]) -> list[str]:
    """Return the differences found by training again; if nothing could be compared, return the reason."""
    troubles = [f"{path}: {outcome.trouble}" for path, outcome in retrained.items() if outcome.trouble is not None]
    if retrained and all(outcome.skipped is not None for outcome in retrained.values()):
        troubles.append(f"nothing was checked by training: {next(iter(retrained.values())).skipped}")
    shifts = [outcome.difference for outcome in retrained.values() if outcome.difference is not None]
    if len(shifts) > 1 and abs(fmean(shifts)) > MOST_SPREADS * SPREAD / math.sqrt(len(shifts)):
        troubles.append(
            f"accuracies of {len(shifts)} runs differ by {100 * fmean(shifts):+.2f} points on average from the new "
            "ones, which the spread between processors does not explain"
        )
    return troubles


def why_not_here(record: RunRecord) -> str | None:
    """Return why this code cannot train the record's run again on this machine, or None if it can."""
    if reason := why_not_this_code(record):
        return reason
    return next(iter(changed_inputs(record.experiment, record.manifest, finished=True)), None)


def why_not_this_code(record: RunRecord) -> str | None:
    """Return why this code and this machine's devices cannot train the record's run again, whatever its inputs are.

    No custom code is imported.
    """
    from benchmark.federated.engines import EngineOptions

    if record.result.get("numerics") != NUMERICS:
        return f"it has numerics {record.result.get('numerics')}, but this code has {NUMERICS}"
    # All other metrics can be compared without diversity.
    compared_versions = {**record.numerics, "diversity": CURRENT["diversity"]}
    if old := numerics_in_words(compared_versions):
        return f"it has {old}, so that it cannot be checked bit by bit"
    try:
        EngineOptions().as_recorded(record.manifest)
    except ConfigError as error:  # the engine was withdrawn, or this machine has no such device
        return str(error)
    return None


def _differences(old: RunRecord, new: RunRecord, tolerance: float) -> Iterator[str]:
    """Yield the differences between values that two records of one run both contain.

    Data and rounds are compared, and the means and medians that a committed copy has of its missing rounds. Times are
    not compared, nor is gradient diversity if the old record has a different version of it.
    """
    left_out = ("time/",) if old.numerics["diversity"] == CURRENT["diversity"] else ("time/", "diversity/")
    yield from (others := list(_other_data_or_length(old, new)))
    if others:
        return
    for before, now in zip(old.rounds, new.rounds, strict=True):
        for name in before.keys() & now.keys() - {"cell_key", "seed"}:
            if not name.startswith(left_out) and not equal(before[name], now[name], tolerance):
                yield f"round {before['round']}: {name} is {now[name]}, but it was {before[name]}"
    for name in old.measures.keys() & new.measures.keys():
        for number, value in old.measures[name].items():
            if not equal(value, new.measures[name].get(number), tolerance):
                yield f"round {number}: the measure {name} is {new.measures[name].get(number)}, but it was {value}"
    for name, sums in old.summaries.items():
        if name.startswith(left_out):
            continue
        for what, value in new.summary(name).items():
            if not equal(sums.get(what), value, tolerance):
                yield f"{what} of {name} is {value}, but it was {sums.get(what)}"


def _other_data_or_length(old: RunRecord, new: RunRecord) -> Iterator[str]:
    there, here = (record.manifest.get("data", {}) for record in (old, new))
    for name in ("hash", "partition"):
        if there.get(name) != here.get(name):
            yield f"manifest.json: data.{name} is {there.get(name)}, but it is now {here.get(name)}"
    if (old.status, len(old.rounds)) != (new.status, len(new.rounds)):
        yield f"the run is {new.status} after {len(new.rounds)} rounds, but it was {old.status} after {len(old.rounds)}"
