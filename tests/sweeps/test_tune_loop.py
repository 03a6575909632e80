"""Studies run for real: killed, shared among workers, and deaf to test data."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from benchmark.errors import Stopped
from benchmark.records.lease import PATIENCE
from benchmark.records.record import run_folder
from sweeps.crew import Crew
from sweeps.tune.book import Book
from sweeps.tune.loop import tune
from sweeps.tune.storage import Journal, SQLite, quiet
from sweeps.tune.study import Plan
from tests.conftest import ROOT, record_of
from tests.sweeps.toy_study import TOY, defaults, toy_plan


def told(book: Book) -> list[tuple]:
    """All that a study says of its trials."""
    return [(t.number, t.state.name, book.values_of(t), dict(t.intermediate_values), t.value) for t in book.trials()]


def tuned(plan: Plan, results: Path, **changes) -> Book:
    place = changes.pop("place", Journal(path=results / "tuning" / "s.journal"))
    crew = Crew(1, results, None, PATIENCE)
    return tune(plan, place, results, crew=crew, watch=lambda standing: None, **changes)


def command(results: Path, *words: str) -> subprocess.Popen:
    """`fssl tune` of the toy in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmark.cli.main", "tune", "tests.sweeps.toy_study:TOY", "--jobs", "1", "--json",
         "--results", str(results), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    """Results with the toy's study run in one go."""
    results = tmp_path_factory.mktemp("unbroken")
    tuned(toy_plan(), results)
    return results


def study_in(results: Path) -> Book:
    place = Journal(path=results / "tuning" / "s.journal")
    return Book(plan=toy_plan(), place=place, patience=60, outage=1)


def test_scores_are_the_records_and_values_their_means(unbroken):
    """Trial 0 is the default; a complete trial has a run a seed, a pruned one fewer, and what it says is what the
    record says."""
    book = study_in(unbroken)
    trials = book.trials()
    assert len(trials) == 4 and book.values_of(trials[0]) == book.plan.defaults
    for trial in trials:
        runs = book.plan.runs(book.values_of(trial))
        for place, score in trial.intermediate_values.items():
            record = record_of(run_folder(unbroken, runs[place]))
            assert record.last("validation/accuracy") == score and "test/accuracy" not in record.result["last"]
        assert trial.value == pytest.approx(np.mean(list(trial.intermediate_values.values())))
        assert len(trial.intermediate_values) == 2  # with two seeds, nothing is left to save when two are compared


def test_killed_in_the_middle_it_goes_on_where_it_was(unbroken, tmp_path):
    """kill -9 of `fssl tune` and its children once it is in its second trial; the same command then ends with the
    trials, numbers and scores of the unbroken study, and trains nothing twice that had been finished."""
    first = command(tmp_path)
    journal = tmp_path / "tuning" / "toy-tiny-demo.journal"
    _until(lambda: len(list(tmp_path.glob("runs/*/seed=*/result.json"))) >= 2, first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/seed=*/result.json")}
    with open(journal, "ab") as file:
        file.write(b'{"op_code":')  # what a kill within a write leaves
    second = command(tmp_path)
    out, err = second.communicate(timeout=500)
    assert second.returncode == 0, err
    plan = toy_plan()
    place = Journal(path=journal)
    assert told(Book(plan=plan, place=place, patience=60, outage=1)) == told(study_in(unbroken))
    assert {path: path.stat().st_mtime_ns for path in done} == done
    summary = json.loads(out)
    assert [trial["state"] for trial in summary["trials"]] == ["complete"] * 4 and summary["default"] == 0
    assert json.loads((tmp_path / "studies" / "toy-tiny-demo.json").read_text())["trials"] == summary["trials"]
    assert str(tmp_path) not in (tmp_path / "studies" / "toy-tiny-demo.json").read_text()


def _until(happened, process: subprocess.Popen, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.02)


def test_two_workers_share_a_study(tmp_path):
    """Two `fssl tune` at once on one SQLite file: the trials that were asked for, no more; each run by one attempt;
    and both print the same study."""
    storage = f"sqlite:///{tmp_path / 's.db'}"
    workers = [command(tmp_path, "--storage", storage, "--trials", "5") for _ in range(2)]
    printed = []
    for worker in workers:
        out, err = worker.communicate(timeout=500)
        assert worker.returncode == 0, err
        printed.append(json.loads(out))
    assert printed[0] == printed[1] and len(printed[0]["trials"]) == 5
    attempts = Counter(path.parent.parent for path in tmp_path.glob("runs/*/seed=*/leases/*"))
    assert attempts and set(attempts.values()) == {1}
    plan = toy_plan(trials=5)
    book = Book(plan=plan, place=SQLite(path=tmp_path / "s.db"), patience=60, outage=1)
    expected = {run_folder(tmp_path, run) for t in book.trials() for run in plan.runs(book.values_of(t))}
    assert set(attempts) == expected


def test_ctrl_c_is_exit_76_and_resumable(unbroken, tmp_path):
    """SIGINT to the whole group, as a terminal sends it; here before a run is finished."""
    process = command(tmp_path)
    _until(lambda: (tmp_path / "tuning" / "toy-tiny-demo.journal.trials").exists(), process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (76, "") and "goes on" in err and "Traceback" not in err, err


def test_a_timeout_stops_resumably(tmp_path):
    with pytest.raises(Stopped, match="--timeout"):
        tuned(toy_plan(), tmp_path, timeout=0.01)


def test_no_test_image_is_read(tmp_path):
    """Two data folders that differ in every test image (digits; noise of other labels) give the same study."""
    folder = tmp_path / "images"
    digits = load_digits()
    for place in range(300):
        part = "train" if place < 240 else "test"
        path = folder / part / str(digits.target[place]) / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * digits.images[place]).astype(np.uint8)).save(path)

    def on_the_folder(profile):
        default = defaults(profile)
        return replace(default, data=replace(default.data, name=f"folder:{folder}"))

    plan = toy_plan(replace(TOY, experiment=on_the_folder), trials=2, seeds=1)
    before = tuned(plan, tmp_path / "before")
    noise = np.random.default_rng(0)
    classes = sorted((folder / "test").iterdir())
    images = [path for of_class in classes for path in of_class.iterdir()]
    for path in images:
        Image.fromarray(noise.integers(0, 256, (8, 8), dtype=np.uint8)).save(path)
    shutil.move(images[0], classes[-1] / "moved.png")
    after = tuned(plan, tmp_path / "after")
    assert told(after) == told(before) and len(told(after)) == 2


def test_a_setting_that_diverges_is_worse_than_any_other(tmp_path):
    """Its value is 0 after the first seed, the study goes on, and its best is another."""
    wild = replace(TOY.space[0], low=0.01, high=1e30)
    plan = toy_plan(replace(TOY, space=(wild,), startup=3), trials=3)
    book = tuned(plan, tmp_path)
    by_value = {t.number: (t.value, len(t.intermediate_values)) for t in book.trials()}
    lost = [number for number, (value, _) in by_value.items() if value == 0.0]
    assert lost and 0 not in lost and all(by_value[number][1] == 1 for number in lost)


def test_the_dead_worker_s_trial_is_taken_over_under_its_number(tmp_path):
    """Without any run: the trial of a worker that has gone is handed out again at once, with its values; one whose
    worker is there is not; of what both tell, the first counts."""
    plan = toy_plan(trials=2)
    place = Journal(path=tmp_path / "s.journal")
    with quiet():
        gone, there = (Book(plan=plan, place=place, patience=60, outage=1) for _ in range(2))
        first, second = gone.take(), there.take()
        assert first is not None and second is not None and (first.number, second.number) == (0, 1)
        assert there.take() is None and there.counts().running == 2  # as many as are wanted, and all in hands
        gone.drop(first)
        taken = there.take()
        assert taken is not None and taken.number == 0 and taken.values == first.values
        there.score(taken, 0, 0.5)
        there.score(taken, 1, 0.7)
        assert there.settle(taken)
        gone.score(first, 0, 0.1)
        gone.score(first, 1, 0.1)
        assert gone.settle(first)
        assert there.trials()[0].value == pytest.approx(0.6) and there.counts().complete == 1
        there.drop(second)


def test_a_trial_that_loses_on_two_seeds_is_given_up(tmp_path):
    """Three seeds: the default has .9 .9 .9. .8 .8 loses twice (p = 1/4 < .26); .8 .95 does not (p = 3/4)."""
    plan = toy_plan(trials=3, seeds=3)
    with quiet():
        book = Book(plan=plan, place=Journal(path=tmp_path / "s.journal"), patience=60, outage=1)
        states = []
        for scores in ((0.9, 0.9, 0.9), (0.8, 0.8), (0.8, 0.95, 0.9)):
            taken = book.take()
            assert taken is not None
            for place, score in enumerate(scores):
                assert not book.settle(taken)
                book.score(taken, place, score)
            assert book.settle(taken)
            states.append(book.trials()[-1].state.name)
    assert states == ["COMPLETE", "PRUNED", "COMPLETE"]
