"""Local steps and bytes that follow from a run's settings, compared with those that its record names.

They are counted without data, as `fssl plan` counts them. Steps and bytes follow exactly from most settings. Where
pseudo-labels decide them there is a largest number, and where rounds draw how many take part an estimate.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from benchmark.errors import FsslError
from benchmark.experiment import Experiment, from_record
from benchmark.records.identity import own_names
from benchmark.records.record import RunRecord
from sweeps.cost import SAMPLED
from sweeps.counting import AT_MOST, BY_REPORTS, WHOLE_CHANGES, Cost, RoundCounter, of_any_seed

COUNTS: Mapping[str, str] = {"local_steps": "local_steps", "bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down"}
SAT_OUT = "comm/sat_out"
OFF, OFF_BY_REPORTS = 1.75, 2.5  # factors by which the sum of a run may differ from an estimate


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the rounds of a run have, by the names in COUNTS."""

    warm_rounds: int
    warm: Mapping[str, float]  # of each round of the warm start
    later: Mapping[str, float]  # of each round after it; their mean where these differ
    exact: frozenset[str]  # what is the same in every round
    at_most: frozenset[str]  # what is smaller in rounds with fewer confident pseudo-labels, or with fewer changes
    estimated: Mapping[str, float]  # and the factor by which the sum of a run may differ

    def of_round(self, number: int) -> Mapping[str, float]:
        return self.warm if number <= self.warm_rounds else self.later


def count_faults(records: Iterable[RunRecord], *, trusted: bool = True) -> list[str]:
    """Records whose local steps or bytes do not follow from their settings.

    `trusted`: the code that records name may be used; else runs of such code are left out.
    """
    faults: list[str] = []
    for record in records:
        if not record.result or (own_names(record.experiment) and not trusted):
            continue
        try:
            found = _faults_of(record, from_record(record.experiment))
        except FsslError:  # `record_faults` says what is wrong with its settings
            continue
        except Exception:  # whatever a user's own method raises: the run's own process tells of it
            continue
        faults += [f"{record.path}: {fault}" for fault in found]
    return faults


def _faults_of(record: RunRecord, run: Experiment) -> list[str]:
    """Before a record is refused, more rounds are counted: those that differ, and some of all others."""
    found = list(_faults(record, expected_of(run)))
    if not found:
        return []
    rounds = run.federation.rounds
    among = {1 + (rounds - 1) * index // (SAMPLED - 1) for index in range(SAMPLED)}
    right = expected_of(run, frozenset(among | {number for number, _ in found if number}))
    return [fault for _, fault in _faults(record, right)]


def _faults(record: RunRecord, expected: Expected) -> Iterator[tuple[int, str]]:
    """For each count the first round that is wrong, and what is wrong; round 0 for all of them together."""
    for what, name in COUNTS.items():
        for line in record.rounds:
            right, found = expected.of_round(line["round"])[what], line.get(name, 0)
            fewer = what in expected.at_most or bool(line.get(SAT_OUT, 0))
            if what in expected.exact | expected.at_most and (found > right or (found < right and not fewer)):
                amount = f"at most {right:,.0f}" if fewer else f"{right:,.0f}"
                yield line["round"], f"round {line['round']}: {name} is {found:,.0f}, but its settings make {amount}"
                break
        if what in expected.estimated and record.rounds:
            about = sum(expected.of_round(line["round"])[what] for line in record.rounds)
            total = sum(line.get(name, 0) for line in record.rounds)
            if not about / expected.estimated[what] <= total <= about * expected.estimated[what]:
                yield 0, f"{name} is {total:,.0f} in all rounds, but its settings make about {about:,.0f}"


def expected_of(run: Experiment, further: frozenset[int] = frozenset()) -> Expected:
    """Count a round of the warm start, the first and the last one after it, and further ones.

    They are the same for every seed and partition. Raises ConfigError where the run itself would.
    """
    return _expected_of(of_any_seed(run), further)


@cache
def _expected_of(run: Experiment, further: frozenset[int]) -> Expected:
    rounds, warm_rounds = run.federation.rounds, getattr(run.method, "warm_start_rounds", 0)
    first = min(warm_rounds + 1, rounds)
    counter = RoundCounter(run)
    warm = counter.play(1) if warm_rounds else Cost()
    sample = [counter.play(number) for number in sorted({first, rounds, *further}) if first <= number <= rounds]
    notes = {note for cost in (warm, *sample) for note in cost.notes}
    of_all: dict[str, list[float]] = {}
    for what in COUNTS:
        of_all[what] = [float(getattr(cost, what)) for cost in sample]
    same = {what for what, numbers in of_all.items() if len(set(numbers)) == 1}
    differ = dict.fromkeys(set(COUNTS) - same, OFF) if AT_MOST not in notes else {}
    if run.federation.epochs:  # how many steps a pass has depends on the images of those who take part
        K, C = run.federation.K, run.federation.C
        often = C * rounds >= 3 * K and min(of_all["local_steps"]) >= 2 * C  # else chance decides, or empty clients
        differ |= {what: OFF for what in COUNTS if what != "local_steps" or often}
        same -= set(COUNTS)
    if BY_REPORTS in notes:
        same -= {"bytes_down"}
        differ["bytes_down"] = OFF_BY_REPORTS
    at_most = set[str]()
    if AT_MOST in notes:
        at_most |= {"local_steps", "bytes_up"} & same
    if WHOLE_CHANGES in notes:
        at_most |= {"bytes_up", "bytes_down"} & same
        differ = {what: factor for what, factor in differ.items() if what == "local_steps"}
    of_warm_round = {what: float(getattr(warm, what)) for what in COUNTS}
    of_later_round = {what: sum(numbers) / len(numbers) for what, numbers in of_all.items()}
    return Expected(
        warm_rounds=warm_rounds,
        warm=of_warm_round,
        later=of_later_round,
        exact=frozenset(same - at_most),
        at_most=frozenset(at_most),
        estimated=differ,
    )
