"""Where a study is kept: a journal file, SQLite on one host, or PostgreSQL; found by URL, opened with bounded waits.

A storage that does not answer is `CannotWrite` (exit 73): what a trial gave has nowhere to go. Not `RunningElsewhere`
(75), which agents take for a run in good hands and pass over. Passwords are in no message, record or file name.
"""

import contextlib
import hashlib
import importlib.util
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.storages.journal._file import get_lock_file

from benchmark.errors import CannotWrite, ConfigError, DataError, FsslError
from benchmark.records.lease import BEAT, PATIENCE
from sweeps.local import MOST_DEATHS
from sweeps.tune.hosts import check_one_host

T = TypeVar("T")
LOCK_GRACE = 30  # seconds without a write after which a journal's lock counts as left by a process that died
OUTAGE = 60.0  # seconds for which a storage that fails is asked again
AT_THE_START = 10.0  # the same when it is opened: somebody is waiting, and nothing has been done yet
CONNECT = 5  # seconds for one attempt to connect
# What libpq says when waiting may help, although it is fatal for the attempt.
PASSING = ("starting up", "shutting down", "too many", "recovery mode", "terminating connection")


class Place(Protocol):
    """Where a study is kept."""

    @property
    def shown(self) -> str:
        """For people: without a password."""

    beats: ClassVar[bool]  # whether workers may share nothing but this storage, so that it holds their heartbeats

    @property
    def leases(self) -> Path:
        """The folder in which workers claim trials."""

    def open(self, patience: float) -> BaseStorage:
        """`patience`: seconds without a heartbeat after which a trial counts as left. Raises what storages raise."""


@dataclass(frozen=True, kw_only=True)
class Journal:
    """A file that grows line by line; any number of workers on any hosts that share its folder."""

    path: Path  # absolute: Optuna's lock is a link to it, and waits forever on one that leads nowhere
    lock_grace: int = LOCK_GRACE
    beats: ClassVar[bool] = False

    @property
    def shown(self) -> str:
        return str(self.path)

    @property
    def leases(self) -> Path:
        return self.path.with_name(f"{self.path.name}.trials")

    def open(self, patience: float) -> BaseStorage:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = JournalFileSymlinkLock(str(self.path), grace_period=self.lock_grace)
        with get_lock_file(lock):
            mend(self.path)
        return JournalStorage(JournalFileBackend(str(self.path), lock_obj=lock))


@dataclass(frozen=True, kw_only=True)
class SQLite:
    """A database file, for workers on one host."""

    path: Path
    beats: ClassVar[bool] = False

    @property
    def shown(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def leases(self) -> Path:
        return self.path.with_name(f"{self.path.name}.trials")

    def open(self, patience: float) -> BaseStorage:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        check_one_host(self.path)
        return RDBStorage(self.shown, engine_kwargs={"connect_args": {"timeout": CONNECT}})


@dataclass(frozen=True, kw_only=True)
class Server:
    """A database server, for workers on many hosts that may share no folder."""

    url: str = field(repr=False)  # with its password
    folder: Path  # of leases for the workers that share this folder
    beats: ClassVar[bool] = True

    @property
    def shown(self) -> str:
        return sqlalchemy.make_url(self.url).set(query={}).render_as_string(hide_password=True)

    @property
    def leases(self) -> Path:
        name = hashlib.sha256(self.shown.encode()).hexdigest()[:8]
        return self.folder / f"server-{name}.trials"

    def open(self, patience: float) -> BaseStorage:
        return RDBStorage(
            self.url,
            engine_kwargs={
                "pool_pre_ping": True,  # a server that was started anew in the meantime
                "connect_args": {"connect_timeout": CONNECT, "tcp_user_timeout": 1000 * CONNECT},
            },
            heartbeat_interval=int(BEAT),
            grace_period=int(patience),
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=MOST_DEATHS),
        )


def place_of(storage: str | None, default: Path) -> Place:
    """The place that `--storage` names: a journal's path, `sqlite:///FILE` or `postgresql+psycopg://...`; None: the
    journal `default`. Raises ConfigError, which never repeats a server's URL."""
    if storage is None:
        return Journal(path=default.absolute())
    scheme, found, rest = storage.partition("://")
    if not found:
        path = Path(storage.removeprefix("journal:"))
        if path.suffix in (".db", ".sqlite", ".sqlite3"):
            raise ConfigError(f"--storage: {storage!r} looks like a database; sqlite:///{path} would be right")
        return Journal(path=path.absolute())
    if scheme == "sqlite":
        if not rest.removeprefix("/"):
            raise ConfigError(f"--storage: {storage!r} names no file; sqlite:///FILE would be right")
        return SQLite(path=Path(rest.removeprefix("/")).absolute())
    if scheme != "postgresql+psycopg":
        raise ConfigError(
            f"--storage: {scheme + '://...'!r} is not right; a journal's path, sqlite:///FILE or "
            "postgresql+psycopg://USER@HOST/DATABASE would be"
        )
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigError("--storage: PostgreSQL needs psycopg; `pip install fssl-bench[postgres]` brings it")
    try:
        sqlalchemy.make_url(storage)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise ConfigError(
            "--storage: the URL cannot be taken apart; postgresql+psycopg://USER@HOST:PORT/DATABASE would be right"
        ) from None
    return Server(url=storage, folder=default.parent)


def mend(journal: Path) -> None:
    """Cut a last line that a killed process or a lost flush left broken, and keep it beside the journal: the next line
    would be appended to it, and nobody could read either. The journal has to be locked.

    Raises DataError for a broken line before the last.
    """
    content = journal.read_bytes() if journal.exists() else b""
    lines = content.splitlines(keepends=True)
    broken = [place for place, line in enumerate(lines) if not _is_whole(line)]
    if not broken:
        return
    if broken[0] < len(lines) - 1:
        raise DataError(
            f"{journal}: line {broken[0] + 1} of {len(lines)} is broken; with the file moved away, a new study takes "
            "its runs from the records"
        )
    with open(journal.with_name(f"{journal.name}.broken"), "ab") as kept:
        kept.write(lines[-1].rstrip(b"\n") + b"\n")
    with open(journal, "r+b") as file:
        file.truncate(len(content) - len(lines[-1]))


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


@dataclass(frozen=True, kw_only=True)
class Patient:
    """Calls on a storage, each asked again while it fails, for `outage` seconds at most."""

    place: Place
    outage: float = OUTAGE

    def __call__(self, call: Callable[[], T]) -> T:
        """Raises CannotWrite where the storage does not answer in time, ConfigError where it refuses, DataError where
        it is broken; each is one line without a password."""
        until, pause = time.monotonic() + self.outage, 0.2
        while True:
            try:
                return call()
            except FsslError:
                raise
            except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                text = reason(error)
                if "FATAL" in text and not any(word in text for word in PASSING):
                    raise ConfigError(f"--storage: {self.place.shown} refuses ({self.hidden(text)})") from None
                if time.monotonic() + pause > until:
                    raise self._down(self.hidden(text)) from None
            except json.JSONDecodeError as error:
                raise DataError(f"{self.place.shown}: is damaged ({error})") from None
            except OSError as error:
                if interrupted(error):  # between taking a journal's lock and noting it: the release then finds none
                    raise KeyboardInterrupt from None
                raise self._down(error.strerror or type(error).__name__) from None
            time.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _down(self, why: str) -> CannotWrite:
        return CannotWrite(
            f"--storage: {self.place.shown} takes no trial ({why}); nothing is lost, the same command goes on"
        )

    def hidden(self, text: str) -> str:
        """The text without the storage's password."""
        if isinstance(self.place, Server):
            url = sqlalchemy.make_url(self.place.url)
            queried = url.query.get("password")
            for secret in (url.password, *([queried] if isinstance(queried, str) else queried or ())):
                text = text.replace(str(secret), "***") if secret else text
        return text


def interrupted(error: BaseException) -> bool:
    """Whether the error came of clearing up after Ctrl-C."""
    found = error.__context__
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__context__
    return found is not None


def reason(error: BaseException) -> str:
    """The first cause's first line: Optuna's and SQLAlchemy's own words name neither server nor file."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Optuna's word for each trial, and its notes that heartbeats are experimental."""
    optuna.logging.set_verbosity(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="Heartbeat of storage")
        yield


def opened(place: Place, patience: float = PATIENCE, *, outage: float = OUTAGE) -> tuple[BaseStorage, Patient]:
    """The storage, and what every call on it goes through. Raises as `Patient` does."""
    first = Patient(place=place, outage=min(outage, AT_THE_START))
    with quiet():
        return first(lambda: place.open(patience)), Patient(place=place, outage=outage)
