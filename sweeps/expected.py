"""Compare the local steps and bytes in a run record with the numbers that follow from the run's settings.

These numbers are counted without data, like the numbers of `fssl plan`. Most settings decide steps and bytes exactly.
The notes of a count name the numbers that are upper bounds or estimates.
"""

from collections.abc import Iterable, Iterator, Mapping

from benchmark.errors import FsslError
from benchmark.experiment import Experiment, from_record
from benchmark.records.record import RunRecord
from benchmark.records.sources import own_names
from sweeps.cost import RunCost, count
from sweeps.counting import Note

COLUMNS: Mapping[str, str] = {
    "local_steps": "local_steps",
    "bytes_up": "comm/bytes_up",
    "bytes_down": "comm/bytes_down",
}
SKIPPED = "comm/sat_out"
# A sum of local steps is compared with an estimate only if each client takes part at least this often on average, with
# at least this many steps per round. If not, chance or a client with few images decides the sum.
OFTEN, STEPS = 3, 2

Fault = tuple[int, str]  # the first wrong round, or 0 for the sum of all rounds, and the fault in words


def count_faults(records: Iterable[RunRecord], *, trusted: bool = True) -> list[str]:
    """Return the faults in the local steps and bytes of these run records.

    If `trusted` is false, records that name code of their own are left out, so that this code is not run.
    """
    faults: list[str] = []
    for record in records:
        if not record.result or (own_names(record.experiment) and not trusted):
            continue
        try:
            found = _faults_of(record, from_record(record.experiment))
        except FsslError:  # `record_faults` reports faults of its settings
            continue
        except Exception:  # a custom method may raise any error; the run's own process reports it
            continue
        faults += [f"{record.path}: {fault}" for fault in found]
    return faults


def _faults_of(record: RunRecord, run: Experiment) -> list[str]:
    """Return the faults of a run record. If there are some, also count the rounds that differ before refusing it."""
    found = list(_faults(record, run, count(run)))
    if found:
        wrong_rounds = frozenset(number for number, _ in found)
        found = list(_faults(record, run, count(run, also=wrong_rounds)))
    return [fault for _, fault in found]


def _faults(record: RunRecord, run: Experiment, cost: RunCost) -> Iterator[Fault]:
    """Yield at most one fault per count."""
    federation = run.federation
    takes_part_often = federation.C * federation.rounds >= OFTEN * federation.K
    has_many_steps = cost.later.local_steps >= STEPS * federation.C
    for name, column in COLUMNS.items():
        factors = [note.factor for note in cost.notes if name in note.about]
        if not factors:
            yield from _wrong_rounds(record, cost, name, column)
        elif name != "local_steps" or (takes_part_often and has_many_steps):
            yield from _wrong_sum(record, cost, name, column, max(factors))


def _wrong_rounds(record: RunRecord, cost: RunCost, name: str, column: str) -> Iterator[Fault]:
    """Yield the first round with a count that differs from the settings' count or exceeds its upper bound."""
    for line in record.rounds:
        right = getattr(cost.of_round(line["round"]), name)
        found = line.get(column, 0)
        may_be_fewer = _is_at_most(name, cost.notes) or bool(line.get(SKIPPED, 0))
        if found > right or (found < right and not may_be_fewer):
            amount = f"at most {right:,.0f}" if may_be_fewer else f"{right:,.0f}"
            yield line["round"], f"round {line['round']}: {column} is {found:,.0f}, but its settings lead to {amount}"
            return


def _wrong_sum(record: RunRecord, cost: RunCost, name: str, column: str, factor: float) -> Iterator[Fault]:
    """Yield a fault if the sum over all rounds differs from the estimate by more than the factor."""
    about = sum(getattr(cost.of_round(line["round"]), name) for line in record.rounds)
    total = sum(line.get(column, 0) for line in record.rounds)
    is_too_small = total < about / factor and not _is_at_most(name, cost.notes)
    if is_too_small or total > about * factor:
        yield 0, f"{column} is {total:,.0f} in all rounds, but its settings lead to about {about:,.0f}"


def _is_at_most(name: str, notes: Iterable[Note]) -> bool:
    return any(name in note.at_most for note in notes)
