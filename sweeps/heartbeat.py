"""Trials whose worker is gone, as heartbeats show it, without a common clock.

A worker writes its process into its trial and adds one to a beat every few seconds. Whoever sees no new beat for
`PATIENCE` seconds of its own monotonic clock takes the worker for dead, and queues the trial's values again; on the
worker's own machine it does so as soon as the process is gone. Optuna's own heartbeats exist for databases only, and
compare times of day: a clock that is put back by an hour keeps a dead worker alive for that hour.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState

from benchmark.records.processes import is_gone, this_process
from sweeps.launcher import MOST_DEATHS

BEAT = 10.0  # seconds between beats
PATIENCE = 120.0  # seconds without a new beat; longer than a network folder holds writes back
WORKER, DEATHS = "worker", "deaths"  # attributes of a trial: its process with the beat; workers that died before


@contextlib.contextmanager
def beating(trial: Trial) -> Iterator[None]:
    """Move the trial's beat while the body runs. A beat that the storage does not take is left out."""
    ended = threading.Event()

    def beat() -> None:
        for count in itertools.count():
            with contextlib.suppress(Exception):
                trial.set_user_attr(WORKER, {**this_process(), "beat": count})
            if ended.wait(BEAT):
                return

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class DeadTrials:
    """Finds trials of dead workers, from what it saw of their beats in earlier looks."""

    def __init__(self) -> None:
        self._first_seen: dict[tuple[int, int], float] = {}  # (trial, beat) -> by the monotonic clock

    def requeue(self, study: optuna.Study) -> None:
        """Fail the trials of dead workers and queue their values again, until `MOST_DEATHS` workers died of them."""
        now, seen_before, self._first_seen = time.monotonic(), self._first_seen, {}
        for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            worker = trial.user_attrs.get(WORKER, {})
            beat = (trial.number, worker.get("beat", -1))
            self._first_seen[beat] = seen_before.get(beat, now)
            if now - self._first_seen[beat] < PATIENCE and not is_gone(worker):
                continue
            with contextlib.suppress(UpdateFinishedTrialError, ValueError):  # another worker was faster
                study.tell(trial.number, state=TrialState.FAIL)
                deaths = trial.user_attrs.get(DEATHS, 0) + 1
                if deaths < MOST_DEATHS:
                    queue_again(study, trial, deaths)


def queue_again(study: optuna.Study, trial: Trial | FrozenTrial, deaths: int) -> None:
    """Queue the trial's values for the next worker. The process of the last one is left out: it may be dead."""
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs={DEATHS: deaths},
        )
    )
