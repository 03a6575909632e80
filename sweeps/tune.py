"""Tuning what a paper does not report: Optuna studies on labels held out at the server, never on test data.

A trial is a setting, run on seeds from 1000 on, one after another; its value is the mean accuracy after the last round.
Its runs are ordinary records under the results: one that is there already is read, one that was broken off goes on. A
trial that falls behind the median of the others at the same round is given up. Any number of workers may be at a study:
processes of one command, or commands on any machines that share its storage. What is left of a study is a small JSON
file, `results/studies/NAME.json`.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import optuna
import pytorch_lightning as pl
import sqlalchemy
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState

from benchmark.config import choose, override
from benchmark.errors import CannotWrite, ConfigError, Diverged, FsslError, RunningElsewhere, Stopped
from benchmark.experiment import Evaluation, Experiment, from_json, to_json
from benchmark.federated.module import FederatedModule
from benchmark.federated.start import starting
from benchmark.records.claim import BEAT, PATIENCE, is_held
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.launcher import MOST_DEATHS, SECONDS_BETWEEN_LOOKS, sigterm_as_interrupt
from sweeps.processes import begin_worker

METRIC = "validation/accuracy"  # of the last round, on labels held out at the server
FIRST_SEED = 1000  # apart from a table's seeds
DIGITS = 3  # significant ones that a value is tried with: finer differences are noise
LOOKS = 5  # evaluations in a run, after each of which a trial may be given up
LEAST_FOR_IMPORTANCE = 10  # finished trials; of fewer, it says nothing
FOLDER = "studies"  # of the results
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned"}
SCALES = {"linear": "linear", "log": "logarithmic", "log below one": "logarithmic in 1 - value"}  # for people


@dataclass(frozen=True, kw_only=True)
class Span:
    """A field that is searched between two values, ends included."""

    field: str  # of the experiment, with dots: "method.ratio"
    low: float
    high: float
    reason: str  # why this range
    # "log below one": for an EMA ratio or a momentum, where 1 / (1 - value) counts; 1 - value is searched by its log.
    scale: Literal["linear", "log", "log below one"] = "linear"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"{self.field}: {self.low} to {self.high} is no range; give two finite ends in order")
        if self.scale != "linear" and min(self._inner(self.low), self._inner(self.high)) <= 0:
            raise ConfigError(f"{self.field}: {self.low} to {self.high} has no logarithm; move the end inside")

    def _inner(self, value: float) -> float:
        return 1 - value if self.scale == "log below one" else value

    def drawn(self, trial: Trial) -> float:
        """A value, to `DIGITS` significant digits."""
        low, high = sorted((self._inner(self.low), self._inner(self.high)))
        return self.value(trial.suggest_float(self.field, low, high, log=self.scale != "linear"))

    def value(self, coordinate: float) -> float:
        """The field's value at a coordinate of the storage."""
        return round(self._inner(float(f"{coordinate:.{DIGITS}g}")), 12)  # 1 - 0.077 has a 17th digit

    def coordinate(self, value: float) -> float:
        return round(self._inner(value), 12)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A question to which no paper prints the answer."""

    name: str  # "fedswitch/open"
    title: str
    reason: str  # what is not reported, with its source
    experiment: Callable[[str], Experiment]  # the defaults, for a profile; at module level, since workers load it
    profiles: tuple[str, ...]
    space: tuple[Span, ...]
    trials: int = 24
    seeds: int = 3  # a trial
    startup: int = 10  # trials at random (the first is the default) before TPE looks at what they gave


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A study at a profile, with the numbers that were asked for. Raises ConfigError."""

    study: Study
    profile: str
    trials: int
    seeds: int

    def __post_init__(self) -> None:
        if self.profile not in self.study.profiles:
            raise ConfigError(f"{self.study.name}: unknown profile {self.profile!r}; {choose(self.study.profiles)}")
        if not self.default.data.N_validation:
            raise ConfigError(
                f"{self.study.name}: data.N_validation is 0; a study chooses on labels held out at the server, and "
                "never on test data"
            )
        for span in self.study.space:
            if not span.low <= self.defaults[span.field] <= span.high:
                raise ConfigError(f"{self.study.name}: the default of {span.field} is outside its span; widen the span")

    @property
    def default(self) -> Experiment:
        return self.study.experiment(self.profile)

    @property
    def defaults(self) -> dict[str, float]:
        """Field -> the value that it has before the study."""
        default = self.default
        return {span.field: _field(default, span.field) for span in self.study.space}

    def runs(self, values: Mapping[str, float]) -> tuple[Experiment, ...]:
        """A trial's runs, one a seed. Raises ConfigError where no experiment takes these values."""
        plain = to_json(self.default)
        for name, value in values.items():
            override(plain, name, repr(value))
        experiment = from_json(plain)
        evaluation = Evaluation(every=max(1, experiment.federation.rounds // LOOKS), validation=True)
        experiment = replace(experiment, evaluation=evaluation)
        return tuple(experiment.with_seed(FIRST_SEED + place) for place in range(self.seeds))

    @property
    def key(self) -> str:
        """8 hexadecimal digits that name the question: another experiment, space or number of seeds is another study,
        whatever the storage holds. The number of trials is not in it: more of them go on with the same study."""
        told = {
            "default": self.runs(self.defaults)[0].cell_key,
            "space": [(s.field, s.low, s.high, s.scale) for s in self.study.space],
            "seeds": self.seeds,
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]

    @property
    def slug(self) -> str:
        """For file names: fedswitch-open-demo."""
        return f"{self.study.name.replace('/', '-')}-{self.profile}"

    def summary_file(self, results: Path) -> Path:
        return results / FOLDER / f"{self.slug}.json"


def _field(experiment: Experiment, path: str) -> float:
    try:
        value = attrgetter(path)(experiment)
    except AttributeError as error:
        raise ConfigError(f"{path}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: {value!r} is no number; a study searches numbers")
    return float(value)


def study_named(name: str, known: Mapping[str, Study]) -> Study:
    """A declared study, or the user's own, "my_module:MY_STUDY". Raises ConfigError."""
    if name in known:
        return known[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ConfigError(f"unknown study {name!r}; {choose(known)}, or my_module:MY_STUDY")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"study {name!r}: cannot be imported ({error})") from None
    if not isinstance(found, Study):
        raise ConfigError(f"study {name!r}: {attribute} is {type(found).__name__}, not a sweeps.tune.Study")
    return found


# Storage


def checked_storage(text: str | None, default: Path) -> str:
    """The storage that `--storage` names: a journal's path, `sqlite:///FILE` or `postgresql+psycopg://...`; None: the
    journal `default`. Raises ConfigError, which never repeats a server's URL."""
    if text is None:
        return str(default.absolute())
    scheme, is_url, rest = text.partition("://")
    if not is_url:
        if Path(text).suffix in (".db", ".sqlite", ".sqlite3"):
            raise ConfigError(f"--storage: {text!r} looks like a database; write sqlite:///{text}")
        if ":" in text or "@" in text:  # a URL with a typo, whose password is not to be seen
            raise ConfigError("--storage: neither a path nor a URL; write postgresql+psycopg://USER@HOST/DATABASE")
        return str(Path(text).absolute())
    if scheme == "sqlite" and rest.strip("/"):
        return text
    if scheme != "postgresql+psycopg":
        known = "a journal's path, sqlite:///FILE or postgresql+psycopg://USER@HOST/DATABASE"
        raise ConfigError(f"--storage: {scheme}://... is not understood; give {known}")
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigError("--storage: PostgreSQL needs psycopg; pip install 'fssl-bench[postgres]'")
    try:
        sqlalchemy.make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigError(
            "--storage: the URL cannot be read; write postgresql+psycopg://USER@HOST:PORT/DATABASE"
        ) from None
    return text


def shown(storage: str) -> str:
    """For people: without a password."""
    if "://" not in storage:
        return storage
    return sqlalchemy.make_url(storage).set(query={}).render_as_string(hide_password=True)


class _Turn(JournalFileSymlinkLock):
    """A writer's turn at a journal: bytes of a line that a crash broke off are cut away before it writes."""

    def __init__(self, journal: str) -> None:
        super().__init__(journal)
        self._journal = journal

    def acquire(self) -> bool:
        taken = super().acquire()
        with open(self._journal, "r+b") as file:  # nobody is still writing that line: it would be their turn
            text = file.read()
            if not text.endswith(b"\n"):
                file.truncate(text.rfind(b"\n") + 1)
        return taken


def _opened(storage: str, patience: float) -> BaseStorage:
    if "://" not in storage:
        Path(storage).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(storage, lock_obj=_Turn(storage)))
    server = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 5}}
    return RDBStorage(
        storage,
        engine_kwargs=server if storage.startswith("postgresql") else {},
        heartbeat_interval=int(BEAT),
        grace_period=int(patience),
        heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=MOST_DEATHS),
    )


@contextlib.contextmanager
def storage_named(storage: str) -> Iterator[None]:
    """What a storage raises as one line, CannotWrite, without its password."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            yield
    except (
        sqlalchemy.exc.SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
        OSError,
        json.JSONDecodeError,
    ) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        if "://" in storage and (secret := sqlalchemy.make_url(storage).password):
            reason = reason.replace(str(secret), "***")
        raise CannotWrite(
            f"--storage: {shown(storage)} takes no trial ({reason}); nothing is lost, the same command goes on"
        ) from None


def opened(plan: Plan, storage: str, patience: float = PATIENCE, *, worker: int = 0) -> optuna.Study:
    """The plan's study in the storage, made where it is not there. `worker`: of several, each of which draws anew."""
    optuna.logging.set_verbosity(logging.ERROR)  # else it has a word for each trial
    study = optuna.create_study(
        storage=_opened(storage, patience),
        study_name=f"{plan.slug} {plan.key}",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=plan.default.federation.rounds // 2),
    )
    drawn = len(study.get_trials(deepcopy=False))  # so that a study that goes on does not draw its first trials again
    seed = (int(plan.key, 16) + drawn + 1_000_003 * worker) % 2**32
    study.sampler = optuna.samplers.TPESampler(n_startup_trials=plan.study.startup, seed=seed)
    return study


# Trials


Watch = Callable[[optuna.Study], None]


@dataclass(frozen=True, kw_only=True)
class Worker:
    """What a process needs to take trials of a study."""

    plan: Plan
    storage: str
    results: Path
    data_root: Path | None
    patience: float
    timeout: float | None = None  # seconds after which no further trial begins

    def work(self, number: int = 0, watch: Watch = lambda study: None) -> None:
        """Take trials until as many as are wanted have ended, here or in other workers. Raises what `run` does."""
        study = opened(self.plan, self.storage, self.patience, worker=number)
        if finished(study) < self.plan.trials:
            enough = MaxTrialsCallback(self.plan.trials, states=FINISHED)
            study.optimize(self.trial, timeout=self.timeout, callbacks=[enough, lambda study, _: watch(study)])

    def trial(self, trial: Trial) -> float:
        """The mean accuracy over the seeds; 0 where a run diverges, which is worse than any other setting."""
        try:
            runs = self.plan.runs({span.field: span.drawn(trial) for span in self.plan.study.space})
            scores: list[float] = []
            for place, experiment in enumerate(runs):
                scores.append(self._score(experiment, trial, place * experiment.federation.rounds))
                trial.set_user_attr("scores", scores)
                if scores[-1] == 0.0:
                    return 0.0
            return sum(scores) / len(scores)
        except (Stopped, KeyboardInterrupt):
            trial.study.enqueue_trial(trial.params)  # the next worker goes on with these values, from the last save
            raise

    def _score(self, experiment: Experiment, trial: Trial, step: int) -> float:
        while True:
            with contextlib.suppress(RunningElsewhere):  # another trial, or a table, has the same run: looked at again
                callbacks = [GivesUp(trial, step)]
                try:
                    result = run(
                        experiment, self.results, data_root=self.data_root, callbacks=callbacks, patience=self.patience
                    )
                except Diverged:
                    return 0.0
                return float(result["last"][METRIC]) if result["status"] == "done" else 0.0
            time.sleep(SECONDS_BETWEEN_LOOKS)


class GivesUp(pl.Callback):
    """Reports a run's accuracies on held-out labels to its trial, and ends the run where the trial falls behind."""

    def __init__(self, trial: Trial, step: int) -> None:
        self._trial, self._step = trial, step  # of rounds in the seeds before

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        if METRIC in pl_module.metrics:
            self._trial.report(pl_module.metrics[METRIC], self._step + pl_module.rounds_done)
            if self._trial.should_prune():
                raise optuna.TrialPruned


def tune(worker: Worker, *, jobs: int, watch: Watch = lambda study: None) -> optuna.Study:
    """Work at the study in this process and in `jobs` - 1 others, and return it.

    Ctrl-C and SIGTERM stop runs at their last finished round; the same call goes on. Raises Stopped then, and where the
    timeout is over before as many trials have ended as are wanted; CannotWrite where the storage fails.
    """
    plan = worker.plan
    with storage_named(worker.storage), sigterm_as_interrupt():
        study = opened(plan, worker.storage, worker.patience)
        if not study.get_trials(deepcopy=False):
            first = {span.field: span.coordinate(plan.defaults[span.field]) for span in plan.study.space}
            study.enqueue_trial(first, skip_if_exists=True)
        if "://" not in worker.storage:
            requeue_dead(study, plan, worker.results, worker.patience)
        try:
            _side_by_side(worker, jobs, watch)
        except KeyboardInterrupt:
            raise Stopped("stopped; the same command goes on from the last saves") from None
        if finished(study) < plan.trials:
            raise Stopped(f"{finished(study)} of {plan.trials} trials have ended; the same command goes on")
        return study


def _side_by_side(worker: Worker, jobs: int, watch: Watch) -> None:
    """This process and `jobs` - 1 others; one that is killed leaves its trial to the next command."""
    with starting() as context:
        others = [context.Process(target=_work, args=(worker, number)) for number in range(1, jobs)]
        for other in others:
            other.start()
    try:
        worker.work(watch=watch)
    except BaseException:
        for other in others:
            other.terminate()
        raise
    finally:
        for other in others:
            other.join()


def _work(worker: Worker, number: int) -> None:
    begin_worker()
    with contextlib.suppress(FsslError), storage_named(worker.storage):  # the first process meets it, too
        worker.work(number)


def requeue_dead(study: optuna.Study, plan: Plan, results: Path, patience: float) -> None:
    """Queue the values of trials whose worker is gone once more; in a database heartbeats do that. A trial is alive
    while a process holds one of its runs, or began a moment ago."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        values = values_of(trial, plan)
        runs = plan.runs(values) if len(values) == len(plan.study.space) else ()
        begun = trial.datetime_start.timestamp() if trial.datetime_start else 0.0
        if time.time() - begun < BEAT or any(is_held(run_folder(results, run), patience) for run in runs):
            continue
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError, ValueError):  # another one was faster
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)


def finished(study: optuna.Study) -> int:
    return len(study.get_trials(deepcopy=False, states=FINISHED))


# Summary


def values_of(trial: FrozenTrial, plan: Plan) -> dict[str, float]:
    """Field -> value, of those that are drawn."""
    return {span.field: span.value(trial.params[span.field]) for span in plan.study.space if span.field in trial.params}


def summary_of(study: optuna.Study, plan: Plan) -> dict[str, Any]:
    """What the study asked, each trial that ended, and which setting was best: no clock, no host, no storage.
    Accuracies are fractions. Of equal trials the first is the best."""
    trials = study.get_trials(deepcopy=False, states=FINISHED)
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
    best = max(complete, key=lambda trial: (round(trial.value or 0.0, 9), -trial.number), default=None)
    default = next((trial for trial in complete if values_of(trial, plan) == plan.defaults), None)
    data, question = plan.default.data, plan.study
    return {
        "study": question.name,
        "title": question.title,
        "reason": question.reason,
        "profile": plan.profile,
        "key": plan.key,
        "metric": METRIC,
        "data": {"name": data.name, "N_s": data.N_s, "N_validation": data.N_validation},
        "seeds": [run.seed for run in plan.runs(plan.defaults)],
        "wanted": plan.trials,
        "startup": question.startup,
        "space": [
            {**vars(span), "scale": SCALES[span.scale], "default": plan.defaults[span.field]} for span in question.space
        ],
        "experiment": {key: value for key, value in to_json(plan.runs(plan.defaults)[0]).items() if key != "seed"},
        "trials": [
            {
                "number": trial.number,
                "state": STATES[trial.state],
                "values": values_of(trial, plan),
                "scores": trial.user_attrs.get("scores", []),
                "value": trial.value if trial.state == TrialState.COMPLETE else None,
                "cell_key": plan.runs(values_of(trial, plan))[0].cell_key,
            }
            for trial in trials
        ],
        "best": None if best is None else best.number,
        "default": None if default is None else default.number,
        "importance": _importances(study) if len(complete) >= LEAST_FOR_IMPORTANCE else None,
        "importance_method": "PED-ANOVA",
        "versions": {"optuna": optuna.__version__},
    }


def _importances(study: optuna.Study) -> dict[str, float]:
    """How much each field decides whether a trial is among the better half; the shares sum to 1."""
    evaluator = PedAnovaImportanceEvaluator(target_quantile=0.5)
    return {name: float(f"{share:.4g}") for name, share in get_param_importances(study, evaluator=evaluator).items()}
