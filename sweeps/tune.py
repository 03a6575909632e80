"""Tune values that a paper does not report, by Optuna studies on labels held out at the server, never on test data.

A trial runs one setting on seeds from 1000 on, in sequence. Its value is the mean accuracy after the last round.
Its runs have ordinary run records: a finished run is read, and an interrupted run resumes. A trial is pruned if it is
below the median of the other trials at the same round. Any number of workers may take part in a study: processes of one
command, or commands on any machines that share its storage. The summary of a study is `results/studies/NAME.json`.
"""

import contextlib
import math
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import pytorch_lightning as pl
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import Trial, TrialState

from benchmark.errors import Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Experiment, to_json
from benchmark.federated.module import FederatedModule
from benchmark.federated.processes import end_with_parent, process_context, sigterm_as_interrupt
from benchmark.records.run import run
from sweeps.launcher import SECONDS_BETWEEN_LOOKS
from sweeps.storage import open_storage, storage_errors
from sweeps.studies import Study, Value
from sweeps.workers import SECONDS_TO_SAVE

METRIC = "validation/accuracy"  # after the last round, on labels held out at the server
FULL_TRIALS = 5  # first trials that are never pruned, so that there is a median
LEAST_FOR_IMPORTANCE = 10  # complete trials that are needed to estimate which field matters
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def open_study(study: Study, storage: str) -> optuna.Study:
    """Open the study's trials in the storage. Create the storage if it does not exist."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would print a line for each trial
    warnings.simplefilter("ignore", ExperimentalWarning)
    return optuna.create_study(
        storage=open_storage(storage),
        study_name=f"{study.slug} {study.key}",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(FULL_TRIALS, n_warmup_steps=study.experiment.federation.rounds // 2),
    )


def ended(trials: optuna.Study) -> int:
    return len(trials.get_trials(deepcopy=False, states=ENDED))


@dataclass(frozen=True, kw_only=True)
class TuneWorker:
    """The values that a process needs to work at a study."""

    study: Study
    storage: str  # a journal's path, or a URL
    results: Path

    def work(self) -> None:
        """Run trials until enough have ended in all workers together. Raise the errors of `run`."""
        trials = open_study(self.study, self.storage)
        while ended(trials) < self.study.trials:
            optuna.storages.fail_stale_trials(trials)
            states = [trial.state for trial in trials.get_trials(deepcopy=False)]
            if TrialState.WAITING in states or len(states) - states.count(TrialState.FAIL) < self.study.trials:
                try:
                    trials.optimize(self._value, n_trials=1)
                except ValueError as error:
                    if "Cannot tell" not in f"{error}":  # this process was suspended and lost the trial to another
                        raise
                print(f"fssl: {self.study.name}: {ended(trials)} of {self.study.trials} trials", file=sys.stderr)
            else:  # other workers run the last trials, and may die
                time.sleep(SECONDS_BETWEEN_LOOKS)

    def _value(self, trial: Trial) -> float:
        """Return the trial's value, or NaN, which fails it, if several workers began the last trial at once."""
        others = trial.study.get_trials(deepcopy=False)
        earlier = [other for other in others if other.number < trial.number and other.state != TrialState.FAIL]
        if len(earlier) >= self.study.trials:
            return math.nan
        trial.study.sampler = self._sampler(trial.number, is_first=not earlier)
        values = self.study.suggested(trial)
        try:
            return self._mean_accuracy(values, trial)
        except (Stopped, KeyboardInterrupt):
            trial.study.enqueue_trial(trial.params)  # its runs resume from their last saves
            raise

    def _sampler(self, number: int, *, is_first: bool) -> optuna.samplers.BaseSampler:
        """Return a TPE sampler that depends only on study and trial number; the first trial is the default."""
        seed = (int(self.study.key, 16) + number) % 2**32
        sampler = optuna.samplers.TPESampler(n_startup_trials=self.study.startup, seed=seed)
        return optuna.samplers.PartialFixedSampler(self.study.coordinates, sampler) if is_first else sampler

    def _mean_accuracy(self, values: Mapping[str, Value], trial: Trial) -> float:
        """Return the mean accuracy over the seeds, or 0, the worst value, if a run diverges."""
        scores: list[float] = []
        for experiment in self.study.runs(values):
            scores.append(self._accuracy(experiment, Pruning(trial, len(scores) * experiment.federation.rounds)))
            trial.set_user_attr("scores", scores)
            if scores[-1] == 0.0:
                return 0.0
        return fmean(scores)

    def _accuracy(self, experiment: Experiment, pruning: "Pruning") -> float:
        while True:
            with contextlib.suppress(RunningElsewhere):  # a different trial or a table trains the same run
                try:
                    result = run(experiment, self.results, callbacks=[pruning])
                except Diverged:
                    return 0.0
                return float(result["last"][METRIC]) if result["status"] == "done" else 0.0
            time.sleep(SECONDS_BETWEEN_LOOKS)


class Pruning(pl.Callback):
    """Reports a run's accuracies on held-out labels to its trial, and ends the run if the trial is pruned."""

    def __init__(self, trial: Trial, rounds_before: int) -> None:
        """Create the callback; `rounds_before` is the number of rounds of the earlier seeds."""
        self._trial, self._rounds_before = trial, rounds_before

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        if METRIC in pl_module.metrics:
            self._trial.report(pl_module.metrics[METRIC], self._rounds_before + pl_module.rounds_done)
            if self._trial.should_prune():
                raise optuna.TrialPruned


def tune(worker: TuneWorker, *, jobs: int = 1) -> optuna.Study:
    """Run the study's trials in this process and in `jobs` - 1 others, and return all trials.

    Ctrl-C and SIGTERM stop runs at their last finished round and raise Stopped. Raise CannotWrite if the storage fails.
    After both errors, the same call resumes.
    """
    with storage_errors(worker.storage), sigterm_as_interrupt():
        try:
            others: list[BaseProcess] = []
            try:
                with process_context() as context:  # a signal in the meantime is handled at its end
                    for _ in range(jobs - 1):
                        others.append(context.Process(target=_work, args=(worker,)))
                        others[-1].start()
                worker.work()
            except BaseException:
                _end([other for other in others if other.pid is not None])
                raise
            for other in others:
                other.join()
        except KeyboardInterrupt:
            raise Stopped("stopped; the same command resumes from the last finished rounds") from None
        return open_study(worker.study, worker.storage)


def _end(others: Sequence[BaseProcess]) -> None:
    """Stop these processes, and kill them if they have not ended within `SECONDS_TO_SAVE`."""
    for other in others:
        other.terminate()
    until = time.monotonic() + SECONDS_TO_SAVE
    for other in others:
        other.join(max(0.0, until - time.monotonic()))
        if other.is_alive():
            other.kill()
            other.join()


def _work(worker: TuneWorker) -> None:
    """Run trials in an additional process. Ignore errors, because the first process meets the same ones."""
    end_with_parent(signal.SIGTERM)  # stops its run
    with contextlib.suppress(FsslError), storage_errors(worker.storage):
        worker.work()


# Summary


def summary_of(study: Study, trials: optuna.Study) -> dict[str, Any]:
    """Summarise the study's question, each trial that ended, and the best setting, without times, hosts and storage.

    Accuracies are fractions. If several trials are equally good, the first one is the best.
    """
    frozen = trials.get_trials(deepcopy=False, states=ENDED)
    complete = [trial for trial in frozen if trial.state == TrialState.COMPLETE and trial.value is not None]
    best = max(complete, key=lambda trial: (round(trial.value or 0.0, 9), -trial.number), default=None)
    default = next((trial for trial in complete if study.values(trial.params) == study.defaults), None)
    data = study.experiment.data
    runs = study.runs(study.defaults)
    space = [{**span.to_json(), "default": study.defaults[span.field]} for span in study.space]
    experiment = {name: value for name, value in to_json(runs[0]).items() if name != "seed"}
    tried = []
    for trial in frozen:
        values = study.values(trial.params)
        tried.append(
            {
                "number": trial.number,
                "state": trial.state.name.lower(),  # complete or pruned
                "values": values,
                "scores": trial.user_attrs.get("scores", []),
                "value": trial.value if trial.state == TrialState.COMPLETE else None,
                "cell_key": study.runs(values)[0].cell_key,
            }
        )
    return {
        "study": study.name,
        "title": study.title,
        "reason": study.reason,
        "profile": study.profile,
        **({"typed": study.typed} if study.typed else {}),
        "key": study.key,
        "metric": METRIC,
        "data": {"name": data.name, "N_s": data.N_s, "N_validation": data.N_validation},
        "seeds": [run.seed for run in runs],
        "wanted": study.trials,
        "startup": study.startup,
        "space": space,
        "experiment": experiment,
        "trials": tried,
        "best": None if best is None else best.number,
        "default": None if default is None else default.number,
        "importance": _importances(trials) if len(complete) >= LEAST_FOR_IMPORTANCE else None,
        "importance_method": "PED-ANOVA",
        "versions": {"optuna": optuna.__version__},
    }


def _importances(trials: optuna.Study) -> dict[str, float]:
    """Return the share of each field in deciding whether a trial is in the better half. The shares sum to 1."""
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)
    return {name: float(f"{share:.4g}") for name, share in get_param_importances(trials, evaluator=evaluator).items()}
