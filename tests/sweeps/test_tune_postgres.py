"""Studies on a real PostgreSQL: heartbeats of workers that share no folder, a server that goes away and comes back."""

import json
import tempfile
import time
from pathlib import Path

import pytest

from benchmark.cli.main import main
from benchmark.errors import CannotWrite, ConfigError
from sweeps.tune.book import Book
from sweeps.tune.storage import opened, place_of, quiet
from tests.sweeps.postgres import PASSWORD, running
from tests.sweeps.toy_study import toy_plan


@pytest.fixture(scope="module")
def server():
    # Not under pytest's own folder, which is closed to the server's user.
    with tempfile.TemporaryDirectory(prefix="fssl-pg-") as folder:
        Path(folder).chmod(0o755)
        yield from running(Path(folder) / "server")


def book(server, folder: Path, *, patience: float = 60, outage: float = 5, trials: int = 2, seeds: int = 2) -> Book:
    place = place_of(server.url, folder / "s.journal")
    return Book(plan=toy_plan(trials=trials, seeds=seeds), place=place, patience=patience, outage=outage)


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


def test_a_dead_trial_is_retried_by_heartbeat(server, tmp_path):
    """Two machines that share nothing but the database. While one's heart beats, its trial is its own; some time after
    it has stopped, the other gets a trial with the same values, and what the first tells late is not counted."""
    with quiet():
        here = book(server, tmp_path / "here", patience=3, seeds=3)
        there = book(server, tmp_path / "there", patience=3, seeds=3)
        first, second = here.take(), there.take()
        assert first is not None and second is not None and first.values != second.values
        for _ in range(4):  # longer than the patience
            time.sleep(1)
            here.beat()
            there.beat()
            assert there.take() is None
        until = time.monotonic() + 60
        while (taken := there.take()) is None:  # the heart here has stopped
            assert time.monotonic() < until
            there.beat()
            time.sleep(0.5)
        assert taken.values == first.values and taken.number == 2
        here.fail(first, "woken up too late")
        for trial in (second, taken):
            for place in range(3):
                there.score(trial, place, 0.5)
            assert there.settle(trial)
        assert there.counts().complete == 2 and there.counts().running == 0 and there.take() is None


def test_a_server_that_goes_away_and_comes_back(server, tmp_path):
    """Down: bounded, one line, exit 73, no password. Back: the same book goes on, and its trial is there."""
    with quiet():
        open_book = book(server, tmp_path, outage=1, trials=3, seeds=4)
        taken = open_book.take()
        assert taken is not None
        server.stop()
        try:
            started = time.monotonic()
            with pytest.raises(CannotWrite, match=r"ann:\*\*\*@127.0.0.1.*takes no trial.*nothing is lost") as down:
                open_book.score(taken, 0, 0.5)
            assert time.monotonic() - started < 15 and down.value.exit_code == 73
            assert PASSWORD not in str(down.value) and "\n" not in str(down.value)
        finally:
            server.start()
        open_book.score(taken, 0, 0.5)
        assert open_book.trials()[-1].intermediate_values == {0: 0.5}
        open_book.drop(taken)
        again = open_book.take()  # its lease is in this folder: no heartbeat has to be waited for
        assert again is not None and again.number == taken.number and again.scores == {0: 0.5}
        open_book.drop(again)


def test_a_wrong_password_is_not_waited_for(server, tmp_path):
    """It is refused at once (65), although the server answers with the error of one that is down."""
    url = server.url.replace("%20", "-")
    started = time.monotonic()
    with pytest.raises(ConfigError, match="refuses .*password authentication failed"):
        opened(place_of(url, tmp_path / "s.journal"))
    assert time.monotonic() - started < 10
