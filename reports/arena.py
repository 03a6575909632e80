"""Compare methods in one environment, at equal rounds and at equal bytes, with the cost of a run.

A column contains the cells that differ only in their method (untuned, or alpha = 0.1). All its means are over the
seeds that every compared method has. A method with fewer than `FEWEST_SEEDS` seeds is listed apart if other methods
have more, so that it does not shorten the comparison of the others. A method without a finished run, or with a
diverged one, is also listed apart and never averaged.

Methods are sorted by mean at equal rounds, and only over at least `FEWEST_SEEDS` common seeds: one seed ranks nothing.
Equal bytes are the bytes that the cheapest method transfers in a whole run: the others are scored at the last
evaluation that these bytes pay for, before their learning rate's schedule ends. Only claims decide whether a difference
is more than chance. A method that learned nothing from unlabelled images is last and not ranked: it selected no
pseudo-label in the last round of any run, or its median run ends no better than the supervised baseline on the same
seeds.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from benchmark.papers.bounds import is_bound
from benchmark.papers.item import ACCURACY, Cell, Choice
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import Summary, paired, summary
from reports.costs_and_curves import costs_of
from reports.entries import method_of
from reports.item_results import KEPT, ItemResults
from reports.open_set import is_open

FEWEST_SEEDS = 3  # common to all compared methods; with fewer, nothing is ranked
KEPT_NONE = "selected no pseudo-label in the last round"
NO_BETTER = "end no better than the supervised baseline (labels only) in the median"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A method that is compared with the others of its column."""

    result: CellResult
    runs: Sequence[RunRecord]  # on the common seeds
    values: Mapping[int, float]  # their accuracies, by seed
    at_bytes: Sequence[float] = ()  # as `values` at equal bytes; empty if these pay for no evaluation
    not_ranked: str = ""  # the reason: KEPT_NONE or NO_BETTER

    @property
    def seen(self) -> Summary:
        """Return mean and spread of the accuracies at equal rounds."""
        return summary(self.values.values())

    @property
    def seen_at_bytes(self) -> Summary | None:
        """Return mean and spread of the accuracies at equal bytes, or None if these pay for no evaluation."""
        return summary(self.at_bytes) if self.at_bytes else None

    @property
    def costs(self) -> dict[str, float | None]:
        """Return the local steps, bytes and times of a whole run, as means over the seeds.

        Times are seconds on the machine of the runs: the wall time, and the part of it for training and averaging at
        the server, or None if no run has recorded them.
        """
        known = costs_of(self.runs)
        return {
            "steps": known.get("local_steps", 0.0),
            "bytes": known.get("bytes_up", 0) + known.get("bytes_down", 0),
            "wall_seconds": known.get("wall_seconds"),
            "server_seconds": known.get("server_seconds"),
        }


@dataclass(frozen=True, kw_only=True)
class Arena:
    """A method comparison at one value of the setting that varies."""

    key: str  # "hyperparameters"
    value: str | int | float | None  # "untuned"; None if only the methods vary
    seeds: tuple[int, ...]  # common to all compared methods; empty: they are not compared
    budget: float | None  # equal bytes, or None if no method transfers any
    compared: tuple[Compared, ...]  # ranked methods first, best first
    apart: tuple[CellResult, ...]  # without a finished run, with a diverged one, or with too few seeds
    waiting: tuple[Choice, ...]
    bounds: tuple[CellResult, ...]  # not in the ranking

    @property
    def title(self) -> str:
        """Return the name of the column: "untuned hyperparameters", "alpha = 0.1"."""
        if self.value is None:
            return "all methods"
        return f"{self.value} {self.key}" if isinstance(self.value, str) else f"{self.key} = {self.value:g}"

    @property
    def ranked(self) -> tuple[Compared, ...]:
        """Return the ranked methods, best first; none with fewer than `FEWEST_SEEDS` common seeds."""
        if len(self.seeds) < FEWEST_SEEDS:
            return ()
        return tuple(method for method in self.compared if not method.not_ranked)

    @property
    def clear_best(self) -> Compared | None:
        """Return the best method if the interval of its difference to the second lies above zero (paired, 95 %)."""
        if len(self.ranked) < 2:
            return None
        best, second = self.ranked[:2]
        difference = paired(best.values, second.values)
        interval = difference.interval if difference else None
        return best if interval and interval[0] > 0 else None

    def to_best(self, method: Compared) -> float | None:
        """Return its mean less the best one's, a fraction; return None for the best and for methods that are not
        ranked.
        """
        if method not in self.ranked[1:]:
            return None
        return method.seen.mean - self.ranked[0].seen.mean


@functools.cache
def arenas(reported: ItemResults) -> tuple[Arena, ...]:
    """Return one arena for each value of the setting that varies, in the item's order."""
    entries: list[Cell | Choice] = [cell for cell in reported.item.cells if cell.role != "ladder"]
    entries += reported.item.choices
    keys = [key for entry in entries for key in entry.setting if key != "method"]
    key = keys[0] if keys else ""
    ranked = [entry for entry in entries if entry.role != "bound"] or entries
    values = dict.fromkeys(entry.setting.get(key) for entry in ranked)
    return tuple(_arena(reported, key, value) for value in values)


def _arena(reported: ItemResults, key: str, value: str | int | float | None) -> Arena:
    every = list(reported.results.values())
    own = [r for r in every if r.cell.setting.get(key) == value and r.cell.role not in ("bound", "ladder")]
    finished = [result for result in own if result.values and not result.diverged]
    enough = [result for result in finished if len(result.values) >= FEWEST_SEEDS]
    chosen = enough if len(enough) > 1 else finished
    seeds_of = [set(result.values) for result in chosen]
    common = set.intersection(*seeds_of) if seeds_of else set()
    bounds = _bounds(every, key, value)
    labels_alone = next((result.values for result in bounds if is_bound(result.cell)), {})
    runs_of: dict[str, list[RunRecord]] = {}
    for result in chosen:
        runs_of[result.cell.label] = [run for run in result.runs if run.seed in (common or result.values)]
    totals = [sum(_bytes(run)) for runs in runs_of.values() for run in runs]
    budget = min((total for total in totals if total), default=None)
    compared = []
    for result in chosen:
        runs = runs_of[result.cell.label]
        values = {run.seed: result.values[run.seed] for run in runs}
        at_bytes = _accuracies_at(runs, budget) if budget else []
        why = _why_not_ranked(runs, values, labels_alone)
        compared.append(Compared(result=result, runs=runs, values=values, at_bytes=at_bytes, not_ranked=why))
    if len(common) >= FEWEST_SEEDS:
        compared.sort(key=lambda method: -method.seen.mean)
    compared.sort(key=lambda method: bool(method.not_ranked))
    waiting = [choice for choice in reported.item.choices if choice.setting.get(key, value) == value]
    return Arena(
        key=key,
        value=value,
        seeds=tuple(sorted(common)),
        budget=budget,
        compared=tuple(compared),
        apart=tuple(result for result in own if result.cell.label not in runs_of),
        waiting=tuple(waiting),
        bounds=tuple(bounds),
    )


def _bounds(every: Sequence[CellResult], key: str, value: object) -> list[CellResult]:
    """Return the baselines of this column, and the baselines that the item has only once, which every column shows."""
    bounds = [result for result in every if result.cell.role == "bound"]
    times = Counter(method_of(result.cell) for result in bounds)
    return [r for r in bounds if r.cell.setting.get(key) == value or times[method_of(r.cell)] == 1]


def _why_not_ranked(runs: Sequence[RunRecord], values: Mapping[int, float], labels_alone: Mapping[int, float]) -> str:
    """Return why the method learned nothing from unlabelled images; "" if it did, or if this is not known."""
    if all(run.last(KEPT) == 0 for run in runs):
        return KEPT_NONE
    shared = values.keys() & labels_alone.keys()
    if not shared:
        return ""
    own = median(values[seed] for seed in shared)
    baseline = median(labels_alone[seed] for seed in shared)
    return NO_BETTER if own <= baseline else ""


def _bytes(run: RunRecord) -> list[float]:
    """Return the bytes up and down of each round."""
    return [line.get("comm/bytes_up", 0.0) + line.get("comm/bytes_down", 0.0) for line in run.rounds]


def _accuracies_at(runs: Sequence[RunRecord], budget: float) -> list[float]:
    """Return the runs' accuracies at the budget; none if it pays for no evaluation of one of them."""
    accuracies = [_accuracy_at(run, budget) for run in runs]
    reached = [accuracy for accuracy in accuracies if accuracy is not None]
    return reached if len(reached) == len(runs) else []  # all means are over the same seeds


def _accuracy_at(run: RunRecord, budget: float) -> float | None:
    """Return the accuracy at the last evaluation within `budget` bytes, or None without such an evaluation.

    If the run's rule selects the best round, return the best accuracy until then.
    """
    pairs = zip(run.rounds, accumulate(_bytes(run)), strict=True)
    seen: list[float] = [line[ACCURACY] for line, spent in pairs if spent <= budget and ACCURACY in line]
    if not seen:
        return None
    return max(seen) if run.selected_on_test else seen[-1]


def reference_arena(every: Sequence[ItemResults]) -> tuple[ItemResults, Arena] | None:
    """Return the environment that gives other lists their order of methods. Return None if nothing has been compared.

    This is the one on MNIST if its methods can be ranked, and if not, the one with the most common seeds. Accuracies on
    known classes (arena/open) are in no list of all methods.
    """
    closed = [one for one in every if one.paper == "arena" and not is_open(list(one.results.values()))]
    found = [(reported, arena) for reported in closed for arena in arenas(reported)]
    return max((pair for pair in found if pair[1].compared), key=_extent, default=None)


def _extent(pair: tuple[ItemResults, Arena]) -> tuple[bool, int, int]:
    reported, arena = pair
    data = {method.result.cell.experiment.data.name for method in arena.compared}
    n = len(arena.seeds)
    return data == {"mnist"} and n >= FEWEST_SEEDS, n, len(arena.compared)
