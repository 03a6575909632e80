"""Studies on a real PostgreSQL: a password that is nowhere, heartbeats, a server that goes away and comes back."""

import json
import tempfile
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from benchmark.cli.main import main
from benchmark.errors import CannotWrite
from sweeps.tune import Worker, opened, storage_named, tune
from tests.sweeps.postgres import PASSWORD, running
from tests.sweeps.toy_study import TOY, toy_plan


@pytest.fixture(scope="module")
def server():
    # Not under pytest's own folder, which is closed to the server's user.
    with tempfile.TemporaryDirectory(prefix="fssl-pg-") as folder:
        Path(folder).chmod(0o755)
        yield from running(Path(folder) / "server")


def test_a_study_on_postgresql_whose_password_is_nowhere(server, tmp_path, capsys):
    """`fssl tune` from its command to its files: the password is in no file, on neither stream."""
    words = ["--storage", server.url, "--trials", "2", "--seeds", "1", "--jobs", "1", "--results", str(tmp_path)]
    assert main(["tune", "tests.sweeps.toy_study:TOY", *words]) == 0
    captured = capsys.readouterr()
    assert "2 trials (2 complete)" in captured.out and "ann:***@127.0.0.1" in captured.err
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (PASSWORD, PASSWORD.replace(" ", "%20")):
        assert secret not in captured.out + captured.err and secret.encode() not in written
    assert len(json.loads((tmp_path / "studies" / "toy-tiny-demo.json").read_text())["trials"]) == 2


def test_a_dead_trial_is_taken_up_by_heartbeat(server, tmp_path):
    """A worker is gone in the midst of its trial; another one, which shares nothing but the database with it, gets its
    values once its heart has been silent for two seconds."""
    plan = toy_plan(trials=1, seeds=3)
    gone = opened(plan, server.url, patience=2)
    trial = gone.ask()
    values = [span.drawn(trial) for span in TOY.space]
    gone._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]
    time.sleep(4)
    worker = Worker(plan=plan, storage=server.url, results=tmp_path, data_root=None, patience=2)
    study = tune(worker, jobs=1)
    ended = {t.number: t.state for t in study.trials}
    assert ended[trial.number] == TrialState.FAIL and list(ended.values()).count(TrialState.COMPLETE) == 1
    again = study.trials[-1]
    assert [span.value(again.params[span.field]) for span in TOY.space] == values


def test_a_server_that_goes_away_is_one_line_and_comes_back(server, tmp_path):
    plan = toy_plan(trials=1, seeds=4)
    worker = Worker(plan=plan, storage=server.url, results=tmp_path, data_root=None, patience=60)
    server.stop()
    try:
        started = time.monotonic()
        with pytest.raises(CannotWrite, match=r"ann:\*\*\*@127.0.0.1.*takes no trial.*nothing is lost") as down:
            tune(worker, jobs=1)
        assert time.monotonic() - started < 30 and down.value.exit_code == 73
        assert PASSWORD not in str(down.value) and "\n" not in str(down.value)
    finally:
        server.start()
    assert len(tune(worker, jobs=1).trials) == 1


def test_a_wrong_password_is_not_waited_for(server):
    url, started = server.url.replace("%20", "-"), time.monotonic()
    with pytest.raises(CannotWrite, match="password authentication failed") as refused, storage_named(url):
        opened(toy_plan(), url)
    assert time.monotonic() - started < 10 and "correct-horse" not in str(refused.value)
