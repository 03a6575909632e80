"""Tuning: spans and their scales, studies run for real, what is refused. On PostgreSQL: test_tune_postgres.py."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from signal import SIGINT, SIGKILL

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from benchmark.cli.main import main
from benchmark.errors import ConfigError
from benchmark.experiment import from_json
from benchmark.records.claim import PATIENCE
from benchmark.records.record import read_rounds, run_folder
from sweeps.studies import FEDSWITCH, STUDIES, fedswitch
from sweeps.tune import METRIC, GivesUp, Plan, Span, Worker, opened, requeue_dead, study_named, summary_of, tune
from tests.conftest import ROOT, record_of
from tests.sweeps.toy_study import TOY, defaults, toy_plan

NAME = "tests.sweeps.toy_study:TOY"


def worker(results: Path, plan: Plan, storage: str = "") -> Worker:
    place = storage or str(results / "tuning" / "s.journal")
    return Worker(plan=plan, storage=place, results=results, data_root=None, patience=PATIENCE)


@given(st.floats(0.0, 1.0), st.sampled_from([span for span in TOY.space]))
def test_a_value_is_inside_its_span_and_comes_back_from_its_coordinate(share, span):
    ends = sorted((span.coordinate(span.low), span.coordinate(span.high)))
    value = span.value(ends[0] + share * (ends[1] - ends[0]))
    assert span.low * 0.99 <= value <= span.high * 1.01
    assert span.value(span.coordinate(value)) == pytest.approx(value, abs=1e-12)


def test_what_matters_of_a_momentum_is_its_distance_from_one():
    span = Span(field="m", low=0.5, high=0.99, scale="log below one", reason="")
    assert span.value(0.1) == 0.9 and span.coordinate(0.95) == 0.05 and span.value(0.0123456) == 0.9877


def test_a_study_runs_its_default_first_on_labels_held_out_and_on_seeds_of_its_own(tmp_path):
    """Values are the means of the records' accuracies on held-out labels; nothing was measured on test data; a second
    call trains nothing, and more trials go on with the same study."""
    plan = toy_plan()
    found = summary_of(tune(worker(tmp_path, plan), jobs=1), plan)
    assert found["trials"][0]["values"] == plan.defaults and found["default"] == 0 and found["seeds"] == [1000, 1001]
    assert len(found["trials"]) == 3 and json.loads(json.dumps(found)) == found
    for trial in found["trials"]:
        runs = plan.runs(trial["values"])[: len(trial["scores"])]
        records = [record_of(run_folder(tmp_path, run)) for run in runs]
        assert trial["scores"] == [record.last(METRIC) for record in records]
        assert not any(name.startswith("test/") for record in records for line in record.rounds for name in line)
        if trial["state"] == "complete":
            assert trial["value"] == pytest.approx(sum(trial["scores"]) / 2) and trial["value"] > 0
    best = max(trial["value"] or 0.0 for trial in found["trials"])
    assert found["trials"][found["best"]]["value"] == best
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*/result.json")}
    assert summary_of(tune(worker(tmp_path, plan), jobs=1), plan) == found
    more = toy_plan(trials=4)
    assert more.key == plan.key
    assert summary_of(tune(worker(tmp_path, more), jobs=1), more)["trials"][:3] == found["trials"]
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())


def test_a_setting_that_diverges_is_worse_than_any(tmp_path):
    def wild(profile: str):
        return replace(defaults(profile), optimizer=replace(defaults(profile).optimizer, lr=1e30))

    study = replace(TOY, experiment=wild, space=TOY.space[2:])
    plan = Plan(study=study, profile="demo", trials=1, seeds=2)
    (trial,) = summary_of(tune(worker(tmp_path, plan), jobs=1), plan)["trials"]
    assert (trial["value"], trial["scores"]) == (0.0, [0.0])


@pytest.mark.parametrize("accuracy", [0.9, 0.1])
def test_a_trial_behind_the_median_is_given_up_in_the_midst_of_a_run(accuracy):
    """Three trials had .5 after round 4; the fourth one ends there if it has less."""
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3))
    for _ in range(3):
        trial = study.ask()
        trial.report(0.5, 4)
        study.tell(trial, 0.5)
    pruning = GivesUp(study.ask(), 1)
    module = Rounds({METRIC: accuracy}, 3)
    if accuracy < 0.5:
        with pytest.raises(optuna.TrialPruned):
            pruning.on_train_batch_end(None, module)  # type: ignore[arg-type]
    else:
        pruning.on_train_batch_end(None, module)  # type: ignore[arg-type]


def Rounds(metrics, rounds_done):
    from benchmark.federated.module import FederatedModule

    module = FederatedModule.__new__(FederatedModule)
    vars(module).update(metrics=metrics, rounds_done=rounds_done)
    return module


def command(results: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmark.cli.main", "tune", NAME, "--json", "--results", str(results), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(results: Path) -> list[Path]:
    return [path for path in results.glob("runs/*/*") if read_rounds(path)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGINT, SIGKILL])
def test_stopped_or_killed_in_the_middle_it_goes_on_with_the_same_values(number, tmp_path):
    """After the first run has begun. The default, trial 0, is in the study once in the end, and so is each value."""
    with command(tmp_path, "--jobs", "1") as first:
        until = time.monotonic() + 120
        while not begun(tmp_path):
            assert time.monotonic() < until and first.poll() is None, first.communicate()
            time.sleep(0.02)
        first.send_signal(number)
        _, said = first.communicate(timeout=120)
        assert first.returncode == (76 if number == SIGINT else -SIGKILL), said
    plan = toy_plan()
    if number == SIGKILL:  # a trial that began this moment might still be about to claim its run
        time.sleep(10.5)
    with command(tmp_path, "--jobs", "2") as second:
        out, said = second.communicate(timeout=300)
    assert second.returncode == 0, said
    trials = json.loads(out)["trials"]
    assert sum(trial["values"] == plan.defaults for trial in trials) == 1 and len(trials) >= 3
    assert json.loads((tmp_path / "studies" / "toy-tiny-demo.json").read_text())["trials"] == trials


def test_a_dead_trial_s_values_are_queued_again_once(tmp_path):
    plan, place = toy_plan(), str(tmp_path / "s.journal")
    study = opened(plan, place)
    trial = study.ask()
    for span in TOY.space:
        span.drawn(trial)
    requeue_dead(study, plan, tmp_path, PATIENCE)  # it began a moment ago
    assert study.trials[0].state == TrialState.RUNNING
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sweeps.tune.BEAT", 0.0)
        for _ in range(2):
            requeue_dead(study, plan, tmp_path, PATIENCE)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.WAITING]
    assert study.ask().user_attrs == {} and opened(plan, place).sampler is not study.sampler


def test_a_study_survives_a_crash_at_any_byte_of_its_journal(tmp_path):
    """A write that was broken off (a killed machine, a full disk) at each byte of the lines of a trial: all whole lines
    count, and what is written after them is read by the next worker."""
    plan, whole, cut = toy_plan(), tmp_path / "whole", tmp_path / "cut"
    study = opened(plan, str(whole))
    trial = study.ask()
    TOY.space[0].drawn(trial)
    study.tell(trial, 0.25)
    raw = whole.read_bytes()
    ends = [0] + [place + 1 for place, byte in enumerate(raw) if byte == ord("\n")]
    known = {}
    for end in ends:
        whole.write_bytes(raw[:end])
        known[end] = [trial.value for trial in opened(plan, str(whole)).trials]
    assert known[0] == [] and known[len(raw)] == [0.25]
    for size in range(len(raw) + 1):
        cut.write_bytes(raw[:size])
        opened(plan, str(cut)).ask()
        assert [trial.value for trial in opened(plan, str(cut)).trials] == [
            *known[max(filter(size.__ge__, ends))],
            None,
        ]


def test_the_question_is_the_key():
    plan = toy_plan()
    assert plan.key == toy_plan(trials=9).key != toy_plan(seeds=3).key
    wider = replace(TOY, space=(replace(TOY.space[0], high=0.6), *TOY.space[1:]))
    assert Plan(study=wider, profile="demo", trials=3, seeds=2).key != plan.key
    assert [run.seed for run in plan.runs(plan.defaults)] == [1000, 1001]


def test_the_committed_study_is_of_declared_fields_and_its_default():
    """The summary is of experiments that can be read; its best is the first of the best."""
    for name, study in STUDIES.items():
        for profile in study.profiles:
            plan = Plan(study=study, profile=profile, trials=1, seeds=1)
            assert study_named(name, STUDIES) is study and plan.defaults
            assert from_json(summary_of(optuna.create_study(), plan)["experiment"]).evaluation.validation
    assert FEDSWITCH.keys() == set(STUDIES["fedswitch/open"].profiles) and fedswitch("demo").data.N_validation


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["fedswitch/opne"], 65, "unknown study 'fedswitch/opne'; choose fedswitch/open, or my_module:MY_STUDY"),
        (["nowhere:STUDY"], 65, "cannot be imported (No module named 'nowhere')"),
        (["tests.sweeps.toy_study:NONE"], 65, "cannot be imported"),
        (["tests.sweeps.toy_study:defaults"], 65, "is function, not a sweeps.tune.Study"),
        ([], 65, "STUDY is missing; fedswitch/open"),
        ([NAME, "--profile", "laptop"], 65, "unknown profile 'laptop'; choose demo"),
        ([NAME, "--trials", "0"], 65, "--trials: 0"),
        ([NAME, "--jobs", "0"], 65, "--jobs: 0"),
        ([NAME, "--timeout", "0"], 65, "--timeout: 0"),
        ([NAME, "--storage", "study.db"], 65, "write sqlite:///study.db"),
        ([NAME, "--storage", "postgres:hunter2@h/d"], 65, "postgresql+psycopg://USER@HOST"),
        ([NAME, "--storage", "postgresql://ann:hunter2@h/d"], 65, "postgresql+psycopg://USER@HOST"),
        ([NAME, "--storage", "postgresql+psycopg://ann:hunter2@127.0.0.1:1/d"], 73, "ann:***@127.0.0.1"),
        ([NAME, "--storige", "x"], 65, "--storige"),
        (["fedswitch/open", "--profile", "laptop"], 66, "mnist"),
    ],
)
def test_wrong_words(capsys, tmp_path, monkeypatch, words, code, says):
    """One line, the code, no password; and nothing is left behind."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmark.data.sources.DOWNLOAD_TIMEOUT", 0.1)
    assert main(["tune", *words, "--results", str(tmp_path / "results")]) == code
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if line.startswith("fssl: ")]
    assert says in line and "hunter2" not in captured.err + captured.out and captured.out == ""
    assert "Traceback" not in captured.err and not (tmp_path / "results" / "studies").exists()


@pytest.mark.parametrize("low, high, scale", [(1.0, 1.0, "linear"), (0.0, 1.0, "log"), (0.5, 1.0, "log below one")])
def test_a_span_that_is_none(low, high, scale):
    with pytest.raises(ConfigError, match="m: "):
        Span(field="m", low=low, high=high, scale=scale, reason="")


def test_a_study_without_held_out_labels_is_refused():
    bare = replace(
        TOY, experiment=lambda profile: replace(defaults(profile), data=replace(defaults("").data, N_validation=0))
    )
    with pytest.raises(ConfigError, match="held out at the server, and never on test data"):
        Plan(study=bare, profile="demo", trials=1, seeds=1)


def test_the_list_tells_every_range(capsys):
    assert main(["tune", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {name: len(spans) for name, spans in listed.items()} == {n: len(s.space) for n, s in STUDIES.items()}
