"""Studies on a real PostgreSQL: a password that is nowhere, a worker that dies, a server that goes and comes back."""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.trial import TrialState

from benchmark.cli.main import main
from benchmark.errors import CannotWrite
from sweeps.storage import storage_errors
from sweeps.tune import Worker, open_study, tune
from tests.sweeps.postgres import PASSWORD, Postgres
from tests.sweeps.test_tune import TOY, TOY_FILE, impatient

__all__ = ["impatient"]


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


def test_a_dead_worker_s_trial_is_taken_up(server, tmp_path, impatient):
    """By another worker, which shares nothing but the database with it. No other trial takes its place."""
    study = replace(TOY, trials=1, seeds=3)
    trials = open_study(study, server.url)
    trial = trials.ask()
    with get_heartbeat_thread(trial._trial_id, trials._storage):
        pass  # one beat
    values = study.suggested(trial)
    dead, again = tune(Worker(study=study, storage=server.url, results=tmp_path)).trials
    assert (dead.number, dead.state, again.state) == (trial.number, TrialState.FAIL, TrialState.COMPLETE)
    assert study.values(again.params) == values


def test_a_server_that_goes_away_is_one_line_and_comes_back(server, tmp_path):
    worker = Worker(study=replace(TOY, trials=1, seeds=4), storage=server.url, results=tmp_path)
    server.stop()
    try:
        started = time.monotonic()
        with pytest.raises(CannotWrite, match=r"ann:\*\*\*@127.0.0.1.*takes no trial.*nothing is lost") as down:
            tune(worker)
        assert time.monotonic() - started < 30 and down.value.exit_code == 73
        assert PASSWORD not in str(down.value) and "\n" not in str(down.value)
    finally:
        server.start()
    assert len(tune(worker).trials) == 1


def test_a_wrong_password_is_not_waited_for(server):
    url, started = server.url.replace("%20", "-"), time.monotonic()
    with pytest.raises(CannotWrite, match="password authentication failed") as refused, storage_errors(url):
        open_study(TOY, url)
    assert time.monotonic() - started < 10 and "correct-horse" not in str(refused.value)
