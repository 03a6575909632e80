"""The study in its storage: which trial is taken, which is given up, what became of each.

A trial belongs to the worker that holds its lease. The trial of a worker that died is taken over where it was, under
its own number; where workers share nothing but the database, heartbeats tell, and Optuna queues the trial again.
Whoever tells a trial's end second is not heard: its runs are the same runs, so the number would be the same.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, Trial, TrialState

from benchmark.errors import RunningElsewhere
from benchmark.experiment import Experiment
from benchmark.records.lease import claimed, newest
from sweeps.tune.sampling import NamedTPE, pruner
from sweeps.tune.storage import Place, opened
from sweeps.tune.study import Plan

FAILED, SURPLUS = "failed", "surplus"  # attributes of a trial that has no value, and why
LEAST_FOR_IMPORTANCE = 10  # finished trials; of fewer, Parzen estimators say nothing
OF_THE_BEST = 5  # trials that importance is told from, as Optuna advises


@dataclass(kw_only=True)
class Taken:
    """A trial that this process is at."""

    trial: Trial
    values: dict[str, float]  # by field
    runs: tuple[Experiment, ...]  # a run a seed
    scores: dict[int, float]  # by the place of the seed: accuracy on held-out labels, 0 where the run diverged
    lease: contextlib.ExitStack
    deaths: int = 0
    look_again: float = 0.0  # monotonic time before which its run, which another process is at, is left alone

    @property
    def number(self) -> int:
        return self.trial.number

    @property
    def next_run(self) -> Experiment | None:
        """The first seed's run without a score."""
        return next((run for place, run in enumerate(self.runs) if place not in self.scores), None)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many trials are where; those that failed or were one too many are in none."""

    complete: int
    pruned: int
    running: int  # here or elsewhere
    waiting: int

    @property
    def finished(self) -> int:
        return self.complete + self.pruned


@dataclass(kw_only=True)
class Book:
    """A plan's study, opened. Every method may raise what `storage.Patient` does."""

    plan: Plan
    place: Place
    patience: float
    outage: float
    mine: dict[int, Taken] = field(default_factory=dict)  # by number
    _orphans: dict[int, float] = field(default_factory=dict)  # number -> since when it is seen without an owner

    def __post_init__(self) -> None:
        storage, self._ask = opened(self.place, self.patience, outage=self.outage)
        self._study = self._ask(
            lambda: optuna.create_study(
                storage=storage,
                study_name=f"{self.plan.slug} {self.plan.key}",
                direction="maximize",
                load_if_exists=True,
                sampler=NamedTPE(self.plan),
                pruner=pruner(self.plan),
            )
        )
        self._storage = storage
        self.leases = self.place.leases / self.plan.key

    def trials(self) -> list[FrozenTrial]:
        """All that count, by number: without those that failed for want of an owner, and those too many."""
        found = self._ask(lambda: self._study.get_trials(deepcopy=False))
        return [t for t in found if t.state != TrialState.FAIL or FAILED in t.user_attrs]

    def counts(self) -> Counts:
        states = [trial.state for trial in self.trials()]
        return Counts(
            complete=states.count(TrialState.COMPLETE),
            pruned=states.count(TrialState.PRUNED),
            running=states.count(TrialState.RUNNING),
            waiting=states.count(TrialState.WAITING),
        )

    def take(self) -> Taken | None:
        """A trial to work at: one whose worker died, else a new one; None where all that are wanted are done or in
        hands. Raises ConfigError where the space holds a setting that no experiment takes."""
        if self.place.beats:
            self._ask(lambda: optuna.storages.fail_stale_trials(self._study))
        trials = [trial for trial in self.trials() if trial.state != TrialState.FAIL]
        for frozen in trials:
            if frozen.state == TrialState.RUNNING and frozen.number not in self.mine and self._left(frozen):
                taken = self._claimed(frozen.number, functools.partial(Trial, self._study, frozen._trial_id))
                if taken is not None:
                    return taken
        waiting = any(trial.state == TrialState.WAITING for trial in trials)
        if not waiting and len(trials) >= self.plan.trials:
            return None
        trial = self._ask(self._study.ask)
        if self._is_surplus(trial.number):
            self._end(trial, {SURPLUS: True})
            return None
        return self._claimed(trial.number, lambda: trial)

    def _left(self, frozen: FrozenTrial) -> bool:
        """Whether the trial's worker is gone, as far as its lease tells, or there is none."""
        found = newest(self.leases / str(frozen.number))
        if found is not None:
            return not found.held(time.time(), self.patience)
        since = self._orphans.setdefault(frozen.number, time.monotonic())
        if not self.place.beats:
            return time.monotonic() - since > 1.0  # a worker that has just asked for it is about to claim it
        # Elsewhere is another folder: a heartbeat tells, if there is one. It comes before the first value is drawn.
        if len(frozen.params) < len(self.plan.study.space) and time.monotonic() - since > self.patience:
            self._ask(lambda: self._tell(frozen.number, None, TrialState.FAIL))
        return False

    def _claimed(self, number: int, trial_of: Callable[[], Trial]) -> Taken | None:
        """The trial with its lease held; None where another worker has it, or has ended it."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(claimed(self.leases / str(number), patience=self.patience))
            except RunningElsewhere:
                return None
            trial = self._ask(trial_of)
            frozen = self._frozen(number)
            if frozen.state != TrialState.RUNNING:
                return None
            self._beat(trial)
            values = self._drawn(trial)
            scores = dict(frozen.intermediate_values)
            taken = Taken(trial=trial, values=values, runs=self.plan.runs(values), scores=scores, lease=stack.pop_all())
        self.mine[number] = taken
        return taken

    def _drawn(self, trial: Trial) -> dict[str, float]:
        values = {}
        for span in self.plan.study.space:
            low, high = span.bounds
            at = self._ask(lambda: trial.suggest_float(span.field, low, high, log=span.scale.log))  # noqa: B023 - now
            values[span.field] = self._value(span.field, at)
        return values

    def _value(self, name: str, coordinate: float) -> float:
        """What a field is set to: exactly the default where that was drawn."""
        span = next(span for span in self.plan.study.space if span.field == name)
        default = self.plan.defaults[name]
        return default if coordinate == span.scale.inner(default) else span.scale.outer(coordinate)

    def values_of(self, frozen: FrozenTrial) -> dict[str, float]:
        return {name: self._value(name, at) for name, at in frozen.params.items()}

    def _is_surplus(self, number: int) -> bool:
        """Several workers may ask at once: those with the highest numbers give way."""
        before = [t for t in self.trials() if t.state != TrialState.FAIL and t.number < number]
        return len(before) >= self.plan.trials

    def score(self, taken: Taken, place: int, accuracy: float) -> None:
        """Note one seed's accuracy."""
        taken.scores[place] = accuracy
        if place not in self._frozen(taken.number).intermediate_values:
            self._ask(lambda: self._report(taken.trial, accuracy, place))

    def settle(self, taken: Taken) -> bool:
        """End the trial if it is at its end: all seeds scored, one diverged, or too far behind the best."""
        scores = [taken.scores[place] for place in sorted(taken.scores)]
        value: float | None
        if 0.0 in scores:
            value, state = 0.0, TrialState.COMPLETE  # a setting that diverges is worse than any other
        elif taken.next_run is None:
            value, state = sum(scores) / len(scores), TrialState.COMPLETE
        elif self._is_behind(taken):
            value, state = None, TrialState.PRUNED
        else:
            return False
        self._ask(lambda: self._tell(taken.number, value, state))
        self.drop(taken)
        return True

    def _is_behind(self, taken: Taken) -> bool:
        return bool(taken.scores) and self._ask(taken.trial.should_prune)

    def fail(self, taken: Taken, why: str) -> None:
        """The trial has no value: its process died again and again, or its run met an error."""
        self._end(taken.trial, {FAILED: why})
        self.drop(taken)

    def drop(self, taken: Taken) -> None:
        """Leave the trial, finished or not, to others."""
        self.mine.pop(taken.number, None)
        taken.lease.close()

    def beat(self) -> None:
        for taken in self.mine.values():
            self._beat(taken.trial)

    def importances(self) -> Mapping[str, float] | None:
        """PED-ANOVA's shares, summing to 1: how much each field decides whether a trial is among the best. None where
        too few trials are finished."""
        complete = [t for t in self.trials() if t.state == TrialState.COMPLETE]
        if len(complete) < LEAST_FOR_IMPORTANCE:
            return None
        evaluator = PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, OF_THE_BEST / len(complete))))
        return self._ask(lambda: get_param_importances(self._study, evaluator=evaluator))

    def _frozen(self, number: int) -> FrozenTrial:
        return next(t for t in self._ask(lambda: self._study.get_trials(deepcopy=False)) if t.number == number)

    def _beat(self, trial: Trial) -> None:
        if self.place.beats:
            self._ask(lambda: self._storage.record_heartbeat(trial._trial_id))  # type: ignore[attr-defined]

    def _report(self, trial: Trial, accuracy: float, place: int) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):  # another worker took it for dead, and finished it
            trial.report(accuracy, place)

    def _tell(self, number: int, value: float | None, state: TrialState) -> None:
        with contextlib.suppress(UpdateFinishedTrialError):
            self._study.tell(number, value, state, skip_if_finished=True)

    def _end(self, trial: Trial, notes: Mapping[str, object]) -> None:
        def end() -> None:
            with contextlib.suppress(UpdateFinishedTrialError):
                for name, note in notes.items():
                    trial.set_user_attr(name, note)
                self._study.tell(trial.number, None, TrialState.FAIL, skip_if_finished=True)

        self._ask(end)


def best_of(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The finished trial with the highest mean; the first of equals (.93 + .98 and .94 + .97 are, but for rounding)."""
    complete = [
        (round(t.value, 9), -t.number, t) for t in trials if t.state == TrialState.COMPLETE and t.value is not None
    ]
    return max(complete, key=lambda entry: entry[:2])[2] if complete else None
