"""Trials whose worker is gone, told by heartbeats that need no common clock.

A worker adds one to its trial's beat every few seconds. Whoever sees no new beat for `PATIENCE` seconds of its own
monotonic clock takes the worker for dead and queues the trial's values again. Optuna's own heartbeats exist for
databases only, and compare times of day: a clock that is put back by an hour keeps a dead worker alive for that hour.
"""

import contextlib
import threading
import time
from collections.abc import Iterator

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import Trial, TrialState

from sweeps.launcher import MOST_DEATHS

BEAT = 10.0  # seconds between beats
PATIENCE = 120.0  # seconds without a new beat; longer than a network folder holds writes back
ATTRIBUTE = "beat"  # of the trial, in the storage


@contextlib.contextmanager
def beating(trial: Trial) -> Iterator[None]:
    """Move the trial's beat while the body runs. A beat that the storage does not take is left out."""
    ended = threading.Event()

    def beat() -> None:
        count = 0
        while not ended.wait(BEAT):
            count += 1
            with contextlib.suppress(Exception):
                trial.set_user_attr(ATTRIBUTE, count)

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
        """Fail the trials whose worker is dead, and queue their values again, each at most `MOST_DEATHS` times."""
        now = time.monotonic()
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        beats = {trial.number: (trial.number, trial.user_attrs.get(ATTRIBUTE, 0)) for trial in running}
        self._first_seen = {beat: self._first_seen.get(beat, now) for beat in beats.values()}
        for trial in running:
            if now - self._first_seen[beats[trial.number]] < PATIENCE:
                continue
            with contextlib.suppress(UpdateFinishedTrialError, ValueError):  # another worker was faster
                study.tell(trial.number, state=TrialState.FAIL)
                RetryHeartbeatStaleTrialCallback(max_retry=MOST_DEATHS)(study, trial)
