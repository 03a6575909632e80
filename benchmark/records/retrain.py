"""Finished runs trained once more, elsewhere, and compared with their records."""

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmark.errors import DataError, Diverged, FsslError, Stopped
from benchmark.experiment import NUMERICS, from_record
from benchmark.federated.engines import EngineOptions
from benchmark.records.provenance import equal_bits_expected
from benchmark.records.record import RunRecord, read_run, run_folder
from benchmark.records.run import run
from benchmark.records.verify import ROUNDING, equal


@dataclass(frozen=True, kw_only=True)
class Retrained:
    """What came of it: `trouble` where something differs; `skipped`, the reason, where nothing could be compared."""

    exact: bool = False  # compared bit by bit; else to six digits
    trouble: str | None = None
    skipped: str | None = None

    def words(self) -> str:
        if self.skipped is not None:
            return f"not trained again: {self.skipped}"
        how = "bit by bit" if self.exact else "to six digits"
        return f"trained again, equal {how}" if self.trouble is None else f"trained again, not equal {how}"


def retrain(record: RunRecord, data_root: Path | None = None, *, copied: bool) -> Retrained:
    """Train the record's run again, by an engine of its settings, and compare all numbers that both have.

    Bit by bit where engine, processor and packages are equal; to six digits elsewhere, and for a committed copy
    (`copied`), which has no more. Data and partition must have the hashes of the manifest.
    """
    if record.result.get("numerics") != NUMERICS:
        return Retrained(skipped=f"it is of numerics {record.result.get('numerics')}, this code of {NUMERICS}")
    with tempfile.TemporaryDirectory(prefix="fssl-retrain-") as place:
        try:
            experiment = from_record(record.experiment)
            engine = EngineOptions().as_recorded(record.manifest)
            with contextlib.suppress(Diverged):  # the record of it is compared
                run(experiment, Path(place), data_root=data_root, engine=engine)
            again = read_run(run_folder(Path(place), experiment, data_root))
        except Stopped:  # Ctrl-C: the user's, and no word on the record
            raise
        except DataError as error:
            return Retrained(skipped=str(error))
        except FsslError as error:
            return Retrained(trouble=str(error))
        assert again is not None
        exact = not copied and equal_bits_expected(record.manifest, again.manifest)
        trouble = _other_data(record, again) or disagreement(record, again, exact=exact) or _other_sums(record, again)
        return Retrained(exact=exact, trouble=trouble)


def _other_data(record: RunRecord, again: RunRecord) -> str | None:
    there, here = record.manifest.get("data", {}), again.manifest["data"]
    for name in ("hash", "partition"):
        if there.get(name) != here[name]:
            return f"manifest.json: data.{name} is {there.get(name)}, it is now {here[name]}"
    return None


def _other_sums(record: RunRecord, again: RunRecord) -> str | None:
    """A committed copy's means and medians, which are of rounds that it has not kept."""
    for name in record.summaries:
        for what, now in again.summary(name).items():
            before = record.summary(name).get(what)
            if not equal(before, now, ROUNDING):
                return f"{what} of {name} is {now}, it was {before}"
    return None


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
