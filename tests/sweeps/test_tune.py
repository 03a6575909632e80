"""Tuning: scales, whole studies, workers that race, die and wake, what is refused; and all that on PostgreSQL.

Its server is the tests' own: on loopback, its data in a temporary folder, never run as root.
"""

import contextlib
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
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
from benchmark.cli.run import resolve
from benchmark.errors import CannotWrite, ConfigError, DataError
from benchmark.experiment import from_json
from benchmark.federated.module import FederatedModule
from benchmark.papers.own import DEFAULT
from benchmark.records.record import run_folder
from benchmark.records.sources import source_hash
from sweeps.storage import checked_place, storage_errors
from sweeps.studies import DECLARED, Study, read_study, study_of_words
from sweeps.tune import METRIC, Pruning, TuneWorker, open_study, summary_of, tune
from tests.conftest import record_of, tiny_experiment
from tests.sweeps.agents import FSSL, signalled

TOY_FILE = str(Path(__file__).with_name("toy.toml"))
TOY = read_study(TOY_FILE, "demo")


def worker(results: Path, study: Study = TOY, storage: str = "") -> TuneWorker:
    return TuneWorker(study=study, storage=storage or str(results / "s.journal"), results=results)


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
    words = [*FSSL, "tune", TOY_FILE, "--jobs", "1", "--storage", tmp_path / "s.journal"]
    code, _, errors = signalled(words, number, tmp_path, TOY.runs(TOY.defaults)[0])
    assert code == (76 if number == SIGINT else -SIGKILL), errors
    trials = summary_of(TOY, tune(worker(tmp_path), jobs=2))["trials"]  # the second process is patient
    assert [trial["values"] for trial in trials].count(TOY.defaults) == 1 and len(trials) == 3


def test_workers_that_race_end_exactly_as_many_trials_as_are_wanted(tmp_path, monkeypatch, impatient):
    """Six at once, each of which knows the others by the journal alone."""
    monkeypatch.setattr(TuneWorker, "_mean_accuracy", lambda self, values, trial: values["optimizer.lr"])
    ours = worker(tmp_path, replace(TOY, trials=3))
    with ThreadPoolExecutor(6) as workers:
        for _ in range(6):
            workers.submit(ours.work)
    states = [trial.state for trial in open_study(ours.study, ours.storage).trials]
    assert states.count(TrialState.COMPLETE) == 3 and set(states) <= {TrialState.COMPLETE, TrialState.FAIL}


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

    def slept(self: TuneWorker, values: dict, trial: optuna.Trial) -> float:
        calls.append(trial.number)
        if len(calls) == 1:
            others = open_study(ours.study, ours.storage)
            others.tell(trial.number, state=TrialState.FAIL)
            others.enqueue_trial({})
        trial.report(0.5, 1)
        return 0.5

    monkeypatch.setattr(TuneWorker, "_mean_accuracy", slept)
    ours.work()
    states = [trial.state for trial in open_study(ours.study, ours.storage).trials]
    assert calls == [0, 1] and states == [TrialState.FAIL, TrialState.COMPLETE]


def test_a_study_survives_a_crash_at_any_byte_of_its_journal(tmp_path, monkeypatch):
    """A write that was broken off (a killed machine, a full disk) within the lines of a trial and at their ends: all
    whole lines count, and what is written after them is read by the next worker."""
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
    for size in sorted({*range(0, len(raw), 3), *ends, *(max(0, end - 1) for end in ends)}):
        cut.write_bytes(raw[:size])
        open_study(TOY, str(cut)).ask()
        values = [trial.value for trial in open_study(TOY, str(cut)).trials]
        assert values == [*known[max(filter(size.__ge__, ends))], None], size


def test_a_path_may_have_the_signs_of_a_url(tmp_path):
    """A path from the root, such as /home/ann@corp.example/results, is never taken for a misspelt URL."""
    place = str(tmp_path / "ann@corp:x" / "a.journal")
    assert checked_place(place) == place
    with pytest.raises(ConfigError, match="a journal's path"):
        checked_place("ann@corp:x/a.journal")
    with pytest.raises(ConfigError, match=f"--storage {tmp_path} "):
        checked_place(str(tmp_path))


def test_whole_numbers_and_choices_are_tried_as_such(tmp_path, monkeypatch):
    """A search by words alone, of the method's and the network's fields; the first trial is what `fssl run` takes."""
    words = [
        "federation.T=2..30:log",
        "method.batch_size=16,25,64",
        "model.norm=gn,bn",
        "optimizer.nesterov=true,false",
    ]
    study = study_of_words(words, DEFAULT, typed="a test", trials=8)
    monkeypatch.setattr(TuneWorker, "_mean_accuracy", lambda self, values, trial: values["federation.T"] / 30)
    trials = summary_of(study, tune(worker(tmp_path, study)))["trials"]
    tried = [trial["values"] for trial in trials]
    assert tried[0] == study.defaults
    assert all(type(each["federation.T"]) is int and 2 <= each["federation.T"] <= 30 for each in tried)
    for each in tried:
        run = study.runs(each)[0]
        assert (run.federation.T, run.method.batch_size, run.model.norm) == tuple(each.values())[:3]
        assert run.optimizer.nesterov is each["optimizer.nesterov"] and run.data.N_validation == 100
    assert study.key != study_of_words(words[:-1], DEFAULT, typed="a test").key


def test_a_study_of_other_code_or_images_of_one_s_own_is_another(tmp_path, monkeypatch):
    keys = []
    code = "from benchmark.methods.ssfl import SSFL\n\nclass Mine(SSFL):\n    pass\n"
    monkeypatch.syspath_prepend(tmp_path)
    for text, images in ((code, "a"), (f"{code}# edited\n", "a"), (code, "b"), (code, "a")):
        (tmp_path / "own_tuned.py").write_text(text)
        source_hash.cache_clear()
        monkeypatch.setattr("benchmark.data.content.content_hash", lambda name, images=images: images)
        own = resolve(None, ["--method", "own_tuned:Mine", f"--data.name=folder:{tmp_path}", "--data.N_s=50"])
        keys.append(study_of_words(["optimizer.lr=0.01..0.1"], own, typed="a test").key)
    assert len(set(keys)) == 3 and keys[0] == keys[3]


def test_the_declared_study_has_the_key_that_it_always_had():
    """Storages name it by that. Its summary is of experiments that can be read."""
    (name,) = DECLARED
    studies = [read_study(name, profile) for profile in ("demo", "laptop")]
    assert [study.key for study in studies] == ["4b3aa5bd", "fb015a7d"]
    assert from_json(summary_of(studies[0], optuna.create_study())["experiment"]).evaluation.validation


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("low = 0.01", "low = 0.5", "optimizer.lr: 0.5 to 0.5 is not a range"),
        ("low = 0.01", "low = 0.0", "optimizer.lr: a logarithmic range must lie above 0"),
        ('scale = "log"\n', 'scale = "logarithmic"\n', "choose linear, log or log below one"),
        ("trials = 3", "trails = 3", "did you mean 'trials'"),
        ('"data.N_validation" = 40', '"data.N_validation" = 0', "labels held out at the server"),
        ("cells = {demo", "cell = {demo", "unknown profile 'demo'"),
        ("cells = {demo", "cells = {demo = 3} #", "cells.demo: 3 is not a text"),
        ("cells = {demo", "cells = 'a demo' #", "cells: 'a demo' is not a table"),
        ("[fields]", "fields = 'x'\n[x]", "fields: 'x' is not a table"),
        ("seeds = 2", "seeds = 0", "seeds is 0"),
        ("startup = 2", "startup = -1", "startup is -1"),
        (Path(TOY_FILE).read_text().partition("startup = 2")[2], "\nspace = []", "space is empty"),
    ],
)
def test_a_wrong_file_is_refused_by_its_name_and_what_is_wrong(old, new, message, tmp_path):
    text = Path(TOY_FILE).read_text()
    assert old in text
    (tmp_path / "mine.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match="mine.toml: ") as error:
        read_study(str(tmp_path / "mine.toml"), "demo")
    assert message in str(error.value)


PLACES = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), "/usr/local/pgsql/bin", os.environ["PATH"])
PASSWORD = "correct horse"  # with a character that a URL has to escape


def programs() -> Path:
    """Return the folder of initdb and pg_ctl; skip the test without it."""
    initdb = shutil.which("initdb", path=os.pathsep.join(map(str, PLACES)))
    if initdb is None:
        pytest.skip("no PostgreSQL here: `apt-get install postgresql` brings initdb and pg_ctl")
    return Path(initdb).parent


def unprivileged() -> tuple[int, int] | None:
    """Return the user and group to run PostgreSQL as, since it refuses root, or None if this user is not root."""
    if os.geteuid() != 0:
        return None
    users = {entry.pw_name: (entry.pw_uid, entry.pw_gid) for entry in pwd.getpwall()}
    return users.get("postgres") or users["nobody"]


class Postgres:
    """A server on a free port, with the user `ann`."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._as, self._folder = programs(), unprivileged(), folder
        folder.mkdir(mode=0o755)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        for path in (folder, secret) if self._as else ():
            shutil.chown(path, *self._as)  # type: ignore[misc]
        options = ["-U", "ann", "--auth=scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C", f"--pwfile={secret}"]
        self._run("initdb", "-D", str(folder / "data"), *options)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://ann:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-t", "120", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop at once, as if the machine had lost its power."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *words: str) -> None:
        user, group = self._as or (None, None)
        command = [str(self._bin / program), *words]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, user=user, group=group)


@pytest.fixture(scope="module")
def server():
    # Not under pytest's own folder, which is closed to the server's user.
    with tempfile.TemporaryDirectory(prefix="fssl-pg-") as folder:
        Path(folder).chmod(0o755)
        server = Postgres(Path(folder) / "server")
        yield server
        server.stop()


def test_a_study_on_postgresql_whose_password_is_nowhere(server, tmp_path, capfd):
    """`fssl tune` with two workers: the password is in no file, and on neither stream of any process."""
    words = ["--storage", server.url, "--trials", "2", "--seeds", "1", "--jobs", "2", "--results", str(tmp_path)]
    assert main(["tune", TOY_FILE, *words]) == 0
    captured = capfd.readouterr()
    assert "2 complete" in captured.out and "ann:***@127.0.0.1" in captured.err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PASSWORD, PASSWORD.replace(" ", "%20")):
        assert secret not in captured.out + captured.err and secret.encode() not in written
    assert len(json.loads((tmp_path / "studies" / "toy-tiny-demo.json").read_text())["trials"]) == 2


def test_a_server_that_goes_away_is_one_line_and_comes_back(server, tmp_path):
    worker = TuneWorker(study=replace(TOY, trials=1, seeds=4), storage=server.url, results=tmp_path)
    server.stop()
    try:
        started = time.monotonic()
        with pytest.raises(CannotWrite, match=r"ann:\*\*\*@127.0.0.1") as down:
            tune(worker)
        assert time.monotonic() - started < 30 and down.value.exit_code == 73
        assert PASSWORD not in str(down.value) and "\n" not in str(down.value)
    finally:
        server.start()
    assert len(tune(worker).trials) == 1


def test_a_wrong_password_is_not_waited_for(server):
    url = server.url.replace("%20", "-")
    started = time.monotonic()
    with pytest.raises(CannotWrite, match="password authentication failed") as refused, storage_errors(url):
        open_study(TOY, url)
    assert time.monotonic() - started < 10 and "correct-horse" not in str(refused.value)


@pytest.mark.parametrize(
    "span",
    ["optimizer.schedule=constant,cosine", "model.norm=bn,none", "optimizer.clip=1,2", "partition=iid,dirichlet"],
)
def test_a_search_over_what_is_no_single_value_is_refused_in_one_line(fssl, tmp_path, span):
    code, _, said = fssl("tune", "--search", span, "--results", tmp_path)
    assert code == 65 and said.count("\n") == 1 and span.partition("=")[0] in said


def damaged(lines: list[bytes], how: str) -> tuple[list[bytes], int]:
    """Return a journal with one fault in its middle, and the number of the faulty line."""
    middle = len(lines) // 2
    first, last = lines[:middle], lines[middle:]
    if how == "a blank line":
        return [*first, b"\n", *last], middle + 1
    if how == "two lines joined":
        return [*first, last[0].rstrip(b"\n") + last[1], *last[2:]], middle + 1
    if how == "not an object":
        return [*first, b"3\n", *last], middle + 1
    return [*first, b"\0" * 512 + last[0], *last[1:]], middle + 1


@pytest.mark.parametrize("how", ["a blank line", "two lines joined", "512 NUL bytes", "not an object"])
def test_a_journal_that_is_damaged_in_its_middle_is_named_with_its_line(how, tmp_path):
    ours = worker(tmp_path)
    study = open_study(TOY, ours.storage)
    study.tell(study.ask(), 0.25)
    journal = Path(ours.storage)
    lines, number = damaged(journal.read_bytes().splitlines(keepends=True), how)
    journal.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=f"{re.escape(str(journal))}: line {number} "):
        tune(ours)
    if how == "a blank line":  # what the message says to do
        journal.write_bytes(b"".join(lines[: number - 1] + lines[number:]))
        assert [trial.value for trial in open_study(TOY, ours.storage).trials] == [0.25]


def test_a_value_is_searched_once():
    with pytest.raises(ConfigError, match="16"):
        study_of_words(["method.batch_size=8,16,16"], tiny_experiment(), typed="")
