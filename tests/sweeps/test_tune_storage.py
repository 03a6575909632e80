"""Where studies are kept: URLs, hosts that share a file, journals that were broken, a server that is not there."""

import json
import os
import time
from pathlib import Path

import optuna
import pytest

from benchmark.errors import CannotWrite, ConfigError, DataError
from sweeps.tune.hosts import check_one_host, network_file_system
from sweeps.tune.storage import Journal, Patient, Server, SQLite, mend, opened, place_of, quiet

MOUNTS = """\
/dev/sda1 / ext4 rw,relatime 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/ann/scratch xfs rw 0 0
//nas/my\\040files /mnt/my\\040files cifs rw 0 0
server:/old /data nfs rw 0 0
/dev/sdc1 /data ext4 rw 0 0
"""
SERVER = "postgresql+psycopg://ann:hunter2@127.0.0.1:1/studies?password=hunter3"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/ann/study.db", "nfs4"),
        ("/home/ann/scratch/study.db", None),  # a disk of this machine, mounted below the network's folder
        ("/home/ann/scratchy/study.db", "nfs4"),  # whose name merely begins alike
        ("/mnt/my files/study.db", "cifs"),
        ("/data/study.db", None),  # mounted over the network's folder
        ("/var/study.db", None),
    ],
)
def test_the_file_system_of_the_deepest_mount_counts(path, kind):
    assert network_file_system(Path(path), MOUNTS) == kind


def test_mounts_that_are_no_table():
    assert network_file_system(Path("/a"), "") is None and network_file_system(Path("/a"), "what\n\n") is None


def test_sqlite_on_a_network_file_system_is_for_one_host(tmp_path):
    """Fault 39: the first host has it, again and again; another one is refused, and told what would be right."""
    mounts = f"server:/x {tmp_path} nfs4 rw 0 0\n"
    database = tmp_path / "study.db"
    for _ in range(2):
        check_one_host(database, mounts, "host one")
    with pytest.raises(ConfigError, match=r"nfs4.*another host.*journal.*postgresql") as refused:
        check_one_host(database, mounts, "host two")
    assert "\n" not in str(refused.value) and (tmp_path / "study.db.host").read_text() == "host one"


def test_sqlite_on_a_local_file_system_asks_nobody(tmp_path):
    database = tmp_path / "study.db"
    for host in ("host one", "host two"):  # a machine that was renamed
        check_one_host(database, f"/dev/sda1 {tmp_path} ext4 rw 0 0\n", host)
    assert not (tmp_path / "study.db.host").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://ann:hunter2@h/d", r"'postgresql://\.\.\.' is not right; .*postgresql\+psycopg://USER@HOST"),
        ("mysql://ann:hunter2@h/d", "'mysql://"),
        ("sqlite://", "names no file"),
        ("study.db", "sqlite:///study.db would be right"),
        ("postgresql+psycopg://ann:hunter2@h:port/d", "cannot be taken apart"),
    ],
)
def test_urls_that_are_refused_without_their_password(url, says, tmp_path):
    with pytest.raises(ConfigError, match=says) as refused:
        place_of(url, tmp_path / "default.journal")
    assert "hunter2" not in str(refused.value)


def test_urls(tmp_path):
    default = tmp_path / "tuning" / "s.journal"
    assert place_of(None, default) == Journal(path=default)
    assert place_of("journal:/a/b.journal", default) == Journal(path=Path("/a/b.journal"))
    assert place_of("b.log", default) == Journal(path=Path.cwd() / "b.log")  # never a relative path: see Journal.path
    assert place_of("sqlite:////a/b.db", default) == SQLite(path=Path("/a/b.db"))
    assert place_of("sqlite:///b.db", default) == SQLite(path=Path.cwd() / "b.db")
    server = place_of(SERVER, default)
    assert isinstance(server, Server) and server.shown == "postgresql+psycopg://ann:***@127.0.0.1:1/studies"
    assert "hunter" not in repr(server) + str(server.leases) and server.leases.parent == default.parent


def test_a_server_that_is_not_there(tmp_path):
    """Bounded, one line, exit 73, no password: nothing listens on port 1."""
    started = time.monotonic()
    with pytest.raises(CannotWrite, match=r"ann:\*\*\*@127.0.0.1.*takes no trial.*goes on") as down:
        opened(place_of(SERVER, tmp_path / "s.journal"), outage=1.0)
    assert time.monotonic() - started < 10 and "hunter" not in str(down.value) and "\n" not in str(down.value)
    assert down.value.exit_code == 73


def test_passwords_are_hidden_in_what_a_server_says(tmp_path):
    hidden = Patient(place=place_of(SERVER, tmp_path / "s.journal")).hidden
    assert hidden("no hunter2 and no hunter3 for ann") == "no *** and no *** for ann"


@pytest.fixture
def journal(tmp_path):
    """A journal with a study of two finished trials."""
    path = tmp_path / "s.journal"
    _study(path, 2)
    return path


def _study(path: Path, trials: int, **changes: int) -> optuna.Study:
    with quiet():
        storage = Journal(path=path, **changes).open(60)
        study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=trials)
    return study


@pytest.mark.parametrize("tail", [b'{"op_code":5,"worker', b"\0" * 20, b"\0" * 20 + b"\n", b'{"op_code":5}'])
def test_a_journal_with_a_broken_last_line_goes_on(journal, tail):
    """Fault 40: cut, kept beside, and the trials that were whole are there, with one more. Optuna alone cannot read
    what comes after such a line (a line without its end is whole only with it)."""
    with open(journal, "ab") as file:
        file.write(tail)
    assert len(_study(journal, 1).trials) == 3
    assert journal.with_name("s.journal.broken").read_bytes() == tail.rstrip(b"\n") + b"\n"
    assert len(_study(journal, 0).trials) == 3
    for line in journal.read_text().splitlines():
        json.loads(line)


def test_a_journal_that_is_whole_is_left_alone(journal):
    before = journal.read_bytes()
    mend(journal)
    assert journal.read_bytes() == before and not journal.with_name("s.journal.broken").exists()


def test_a_journal_with_a_broken_line_within_says_which(journal):
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([lines[0], b"{torn\n", *lines[1:]]))
    with pytest.raises(DataError, match=rf"line 2 of {len(lines) + 1} is broken.*takes its runs from the records"):
        opened(Journal(path=journal))


def test_a_stale_lock_is_waited_for_and_taken(journal):
    """Fault 40: the lock of a worker that was killed is nobody's after the grace (here 3 s), and no endless wait."""
    os.symlink(journal, f"{journal}.lock")
    started = time.monotonic()
    assert len(_study(journal, 1, lock_grace=3).trials) == 3
    assert 3 <= time.monotonic() - started < 30


def test_a_journal_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="takes no trial"):
        opened(Journal(path=tmp_path / "file" / "s.journal"))


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "s.db").write_text("no database, but long enough to be read as the header of one " * 20)
    with pytest.raises(CannotWrite, match="file is not a database"):
        opened(SQLite(path=tmp_path / "s.db"), outage=0.0)


def test_ctrl_c_within_a_call_is_ctrl_c(tmp_path):
    """Also where giving back the journal's lock, on the way out, finds none."""

    def cleared_up_after():
        try:
            raise KeyboardInterrupt
        finally:
            (tmp_path / "lock").unlink()

    with pytest.raises(KeyboardInterrupt):
        Patient(place=Journal(path=tmp_path / "s.journal"))(cleared_up_after)
