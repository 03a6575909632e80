"""A PostgreSQL server of the tests' own: on loopback, its data in a temporary folder, never run as root."""

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PLACES = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/pgsql/bin"))
PASSWORD = "correct horse"  # with a character that a URL has to escape


def programs() -> Path:
    """The folder of initdb and pg_ctl; skips the test where there is none."""
    found = [place for place in PLACES if (place / "initdb").exists() and (place / "pg_ctl").exists()]
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        pytest.skip("no PostgreSQL here: `apt-get install postgresql` brings initdb and pg_ctl")
    return found[0] if found else Path(str(on_path)).parent


def unprivileged() -> tuple[int, int] | None:
    """PostgreSQL refuses to run as root: another user's and group's number; None where this is no root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    pytest.skip("PostgreSQL does not run as root, and there is no other user here")


class Postgres:
    """A server on a free port, with the user `ann`."""

    def __init__(self, folder: Path) -> None:
        self._bin, self._as, self._folder = programs(), unprivileged(), folder
        folder.mkdir(mode=0o755)
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if self._as:
            for path in (folder, secret):
                os.chown(path, *self._as)
        self._run("initdb", "-D", str(folder / "data"), "-U", "ann", "--auth=scram-sha-256", "--no-sync", "-E", "UTF8",
                  "--locale=C", f"--pwfile={secret}")  # fmt: skip
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
        """At once, as if its machine had lost its power."""
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *words: str) -> None:
        user, group = self._as or (None, None)
        command = [str(self._bin / program), *words]
        subprocess.run(command, cwd="/", check=True, stdout=subprocess.DEVNULL, user=user, group=group)


def running(folder: Path) -> Iterator[Postgres]:
    """For a fixture: a server that is stopped in the end."""
    server = Postgres(folder)
    try:
        yield server
    finally:
        server.stop()
