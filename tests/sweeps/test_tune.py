"""Tuning: scales, whole studies, workers that race, die and wake, what is refused; test_tune_postgres.py has more."""

import contextlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.storages import fail_stale_trials
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import TrialState

from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.experiment import from_json
from benchmark.federated.module import FederatedModule
from benchmark.papers.own import DEFAULT
from benchmark.records.record import run_folder
from sweeps.studies import DECLARED, Study, read_study, study_of_words
from sweeps.tune import METRIC, Pruning, Worker, open_study, summary_of, tune
from tests.conftest import ROOT, record_of
from tests.sweeps.gates import wait_for_a_round

TOY_FILE = str(Path(__file__).with_name("toy.toml"))
TOY = read_study(TOY_FILE, "demo")


def worker(results: Path, study: Study = TOY, storage: str = "") -> Worker:
    return Worker(study=study, storage=storage or str(results / "s.journal"), results=results)


def tuned(results: Path, study: Study = TOY) -> dict:
    return summary_of(study, tune(worker(results, study)))


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("sweeps.storage.BEAT", 0.05)
    monkeypatch.setattr("sweeps.storage.PATIENCE", 1)
    monkeypatch.setattr("sweeps.tune.SECONDS_BETWEEN_LOOKS", 0.1)


@given(st.floats(0.0, 1.0), st.sampled_from(TOY.space))
def test_a_value_is_in_its_range_and_comes_back_from_its_coordinate(share, parameter):
    low, high = parameter.coordinates
    value = parameter.value(low + share * (high - low))
    assert parameter.low * 0.99 <= value <= parameter.high * 1.01
    assert parameter.value(parameter.coordinate(value)) == pytest.approx(value, abs=1e-12)


def test_a_study_runs_its_default_first_on_labels_held_out_and_on_seeds_of_its_own(tmp_path):
    """Values are the means of the records' accuracies on held-out labels; nothing was measured on test data; a second
    call trains nothing, and more trials go on with the same study."""
    summary = tuned(tmp_path)
    trials = summary["trials"]
    assert trials[0]["values"] == TOY.defaults and summary["default"] == 0 and summary["seeds"] == [1000, 1001]
    assert len(trials) == 3 and json.loads(json.dumps(summary)) == summary
    for trial in trials:
        runs = TOY.runs(trial["values"])[: len(trial["scores"])]
        records = [record_of(run_folder(tmp_path, run)) for run in runs]
        assert trial["scores"] == [record.last(METRIC) for record in records]
        assert not any(name.startswith("test/") for record in records for line in record.rounds for name in line)
        if trial["state"] == "complete":
            assert trial["value"] == pytest.approx(sum(trial["scores"]) / 2) and trial["value"] > 0
    assert trials[summary["best"]]["value"] == max(trial["value"] or 0.0 for trial in trials)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/result.json")}
    assert tuned(tmp_path) == summary
    assert tuned(tmp_path, replace(TOY, trials=4))["trials"][:3] == trials
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())


@pytest.mark.parametrize("accuracy", [0.9, 0.1])
def test_a_trial_behind_the_median_is_pruned_in_the_middle_of_a_run(accuracy):
    """Three trials had .5 after round 4; the fourth one ends there if it has less."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    for _ in range(3):
        trial = study.ask()
        trial.report(0.5, 4)
        study.tell(trial, 0.5)
    module = FederatedModule.__new__(FederatedModule)
    vars(module).update(metrics={METRIC: accuracy}, rounds_done=3)
    with pytest.raises(optuna.TrialPruned) if accuracy < 0.5 else contextlib.nullcontext():
        Pruning(study.ask(), rounds_before=1).on_train_batch_end(None, module)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGINT, SIGKILL])
def test_stopped_or_killed_in_the_middle_it_goes_on_with_the_same_values(number, tmp_path, impatient):
    """After the first run has begun. The default, trial 0, is in the study once in the end."""
    words = ["tune", TOY_FILE, "--jobs", "1", "--results", str(tmp_path), "--storage", str(tmp_path / "s.journal")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmark.cli.main", *words]
    with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as first:
        wait_for_a_round(run_folder(tmp_path, TOY.runs(TOY.defaults)[0]), first)
        first.send_signal(number)
        _, errors = first.communicate(timeout=120)
        assert first.returncode == (76 if number == SIGINT else -SIGKILL), errors
    trials = summary_of(TOY, tune(worker(tmp_path), jobs=2))["trials"]  # the second process is patient
    assert [trial["values"] for trial in trials].count(TOY.defaults) == 1 and len(trials) == 3


@pytest.mark.parametrize("wanted", [1, 5])
def test_workers_that_race_end_exactly_as_many_trials_as_are_wanted(wanted, tmp_path, monkeypatch, impatient):
    """Six at once, each of which knows the others by the journal alone."""
    monkeypatch.setattr(Worker, "_mean_accuracy", lambda self, values, trial: values["optimizer.lr"])
    ours = worker(tmp_path, replace(TOY, trials=wanted))
    with ThreadPoolExecutor(6) as workers:
        for _ in range(6):
            workers.submit(ours.work)
    states = [trial.state for trial in open_study(ours.study, ours.storage).trials]
    assert states.count(TrialState.COMPLETE) == wanted and set(states) <= {TrialState.COMPLETE, TrialState.FAIL}


@pytest.mark.parametrize("scheme", ["", "sqlite:///"])
def test_a_dead_worker_s_values_are_queued_again_once(scheme, tmp_path, impatient):
    """Trial 0's worker beats, trial 1's no more. Two observers see it."""
    storage = f"{scheme}{tmp_path / 's'}"
    study = open_study(TOY, storage)
    living, dead = study.ask(), study.ask()
    values = TOY.suggested(dead)
    with get_heartbeat_thread(dead._trial_id, study._storage):
        pass  # one beat
    observers = [open_study(TOY, storage) for _ in range(2)]
    with get_heartbeat_thread(living._trial_id, study._storage):
        fail_stale_trials(observers[0])
        time.sleep(2.5)  # SQLite's clock has whole seconds
        for trials in observers:
            fail_stale_trials(trials)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING, TrialState.FAIL, TrialState.WAITING]
    assert TOY.values(study.trials[2].params) == values


def test_a_trial_of_which_three_workers_died_is_left_alone(tmp_path, monkeypatch):
    """Also where a worker died before its first beat."""
    monkeypatch.setattr("sweeps.storage.PATIENCE", -1)
    study = open_study(TOY, str(tmp_path / "s"))
    for deaths in (1, 2, 3):
        TOY.suggested(study.ask())
        fail_stale_trials(study)
        queued = [TrialState.WAITING] if deaths < 3 else []
        assert [each.state for each in study.trials] == [*[TrialState.FAIL] * deaths, *queued]
    assert len({tuple(each.params.values()) for each in study.trials}) == 1


def test_a_worker_that_was_held_for_dead_and_wakes_leaves_its_trial_to_another(tmp_path, monkeypatch, impatient):
    """Its trial was queued again while it stood still: it takes that one, and the study has one trial."""
    ours = worker(tmp_path, replace(TOY, trials=1))
    calls = []

    def slept(self: Worker, values: dict, trial: optuna.Trial) -> float:
        calls.append(trial.number)
        if len(calls) == 1:
            others = open_study(ours.study, ours.storage)
            others.tell(trial.number, state=TrialState.FAIL)
            others.enqueue_trial({})
        trial.report(0.5, 1)
        return 0.5

    monkeypatch.setattr(Worker, "_mean_accuracy", slept)
    ours.work()
    states = [trial.state for trial in open_study(ours.study, ours.storage).trials]
    assert calls == [0, 1] and states == [TrialState.FAIL, TrialState.COMPLETE]


def test_a_study_survives_a_crash_at_any_byte_of_its_journal(tmp_path, monkeypatch):
    """A write that was broken off (a killed machine, a full disk) at each byte of the lines of a trial: all whole lines
    count, and what is written after them is read by the next worker."""
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no machine fails here
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    study = open_study(TOY, str(whole))
    trial = study.ask()
    TOY.space[0].suggested(trial)
    study.tell(trial, 0.25)
    raw = whole.read_bytes()
    ends = [0] + [index + 1 for index, byte in enumerate(raw) if byte == ord("\n")]
    known = {}
    for end in ends:
        whole.write_bytes(raw[:end])
        known[end] = [trial.value for trial in open_study(TOY, str(whole)).trials]
    assert known[0] == [] and known[len(raw)] == [0.25]
    for size in range(len(raw) + 1):
        cut.write_bytes(raw[:size])
        open_study(TOY, str(cut)).ask()
        values = [trial.value for trial in open_study(TOY, str(cut)).trials]
        assert values == [*known[max(filter(size.__ge__, ends))], None], size


def test_whole_numbers_and_choices_are_tried_as_such(tmp_path, monkeypatch):
    """A search by words alone, of the method's and the network's fields; the first trial is what `fssl run` takes."""
    words = [
        "federation.T=2..30:log",
        "method.batch_size=16,25,64",
        "model.norm=gn,bn",
        "optimizer.nesterov=true,false",
    ]
    study = study_of_words(words, DEFAULT, typed="a test", trials=8)
    monkeypatch.setattr(Worker, "_mean_accuracy", lambda self, values, trial: values["federation.T"] / 30)
    trials = summary_of(study, tune(worker(tmp_path, study)))["trials"]
    tried = [trial["values"] for trial in trials]
    assert tried[0] == study.defaults
    assert all(type(each["federation.T"]) is int and 2 <= each["federation.T"] <= 30 for each in tried)
    for each in tried:
        run = study.runs(each)[0]
        assert (run.federation.T, run.method.batch_size, run.model.norm) == tuple(each.values())[:3]
        assert run.optimizer.nesterov is each["optimizer.nesterov"] and run.data.N_validation == 100
    assert study.key != study_of_words(words[:-1], DEFAULT, typed="a test").key


def test_the_declared_study_has_the_key_that_it_always_had():
    """Storages name it by that. Its summary is of experiments that can be read."""
    (name,) = DECLARED
    studies = [read_study(name, profile) for profile in ("demo", "laptop")]
    assert [study.key for study in studies] == ["4b3aa5bd", "fb015a7d"]
    assert from_json(summary_of(studies[0], optuna.create_study())["experiment"]).evaluation.validation


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["fedswitch/opne"], 65, "unknown study 'fedswitch/opne'; did you mean 'fedswitch/open'?"),
        (["nowhere.toml"], 65, "nowhere.toml: "),
        ([], 65, "STUDY is missing; choose fedswitch/open"),
        ([TOY_FILE, "--profile", "laptop"], 65, "unknown profile 'laptop'; choose demo"),
        ([TOY_FILE, "--trials", "0"], 65, "--trials: 0"),
        ([TOY_FILE, "--storage", TOY_FILE], 65, "toy.toml is not a journal"),
        ([TOY_FILE, "--storage", "postgres:hunter2@h/d"], 65, "postgresql+psycopg://USER@HOST"),
        ([TOY_FILE, "--storage", "nosuchdb://ann:hunter2@h/d"], 65, "postgresql+psycopg://USER@HOST"),
        ([TOY_FILE, "--storage", "postgresql+psycopg://ann:hunter2@127.0.0.1:1/d"], 73, "ann:***@127.0.0.1"),
        ([TOY_FILE, "--search", "optimizer.lr=0.1..1"], 65, "not understood"),
        (["--search", "optimizer.lr"], 65, "write optimizer.lr=0.01..0.1, optimizer.lr=0.01..0.1:log"),
        (["--search", "optimizer.lr=0.01..0.02"], 65, "optimizer.lr: its default 0.03 is not among what is searched"),
        (["--search", "method.batch_size=0..64"], 65, "batch_size: 0; choose 1 or more"),
        (["--search", "model.norm=0..1"], 65, "is not a number; give values in place of a range"),
        (["fedswitch/open", "--profile", "laptop"], 66, "mnist"),
    ],
)
def test_wrong_words(capsys, tmp_path, monkeypatch, words, code, message):
    """One line, the code, no password; and nothing is left behind."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmark.data.sources.DOWNLOAD_TIMEOUT", 0.1)
    assert main(["tune", *words, "--results", str(tmp_path / "results")]) == code
    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1] and "hunter2" not in captured.err + captured.out
    assert captured.out == "" and "Traceback" not in captured.err and not (tmp_path / "results" / "studies").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("low = 0.01", "low = 0.5", "optimizer.lr: 0.5 to 0.5 is not a range"),
        ("low = 0.01", "low = 0.0", "optimizer.lr: 0.0 to 0.5 has no logarithm"),
        ("high = 0.95", "high = 1.0", "optimizer.momentum: 0.5 to 1.0 has no logarithm"),
        ('field = "partition.R"', 'field = "partition.r"', "has no attribute 'r'"),
        ('scale = "log"\n', 'scale = "logarithmic"\n', "choose linear, log or log below one"),
        ("trials = 3", "trails = 3", "did you mean 'trials'"),
        ('"data.N_validation" = 40', '"data.N_validation" = 0', "labels held out at the server"),
        ("cells = {demo", "cell = {demo", "unknown profile 'demo'"),
        ("trials = 3", "trials = ", "Invalid value"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_and_what_is_wrong(old, new, message, tmp_path):
    text = Path(TOY_FILE).read_text()
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match="mine.toml: ") as error:
        read_study(str(tmp_path / "mine.toml"), "demo")
    assert message in str(error.value)
