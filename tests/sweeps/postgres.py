"""A PostgreSQL server of the tests' own: on loopback, its data in a temporary folder, never run as root."""

import os
import pwd
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

PLACES = (*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), "/usr/local/pgsql/bin", os.environ["PATH"])
PASSWORD = "correct horse"  # with a character that a URL has to escape


def programs() -> Path:
    """The folder of initdb and pg_ctl; skips the test where there is none."""
    initdb = shutil.which("initdb", path=os.pathsep.join(map(str, PLACES)))
    if initdb is None:
        pytest.skip("no PostgreSQL here: `apt-get install postgresql` brings initdb and pg_ctl")
    return Path(initdb).parent


def unprivileged() -> tuple[int, int] | None:
    """PostgreSQL refuses to run as root: another user's and group's number; None where this is no root."""
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
