"""Where the trials of a study are stored: a journal file, or a database. Passwords of databases are shown nowhere."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import optuna
import sqlalchemy
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from benchmark.errors import CannotWrite, ConfigError

FORMS = "a journal's path, sqlite:///FILE or postgresql+psycopg://USER@HOST:PORT/DATABASE"


def checked_place(place: str) -> str:
    """A database's URL as it is, or a journal's absolute path. Raises ConfigError, which repeats no password."""
    if "://" not in place:
        if ":" in place or "@" in place:  # a misspelt URL, which may hold a password
            raise ConfigError(f"--storage: neither a path nor a URL; give {FORMS}")
        path = Path(place).absolute()
        if path.is_file() and path.open("rb").read(1) not in (b"", b"{"):
            raise ConfigError(f"--storage: {place} is not a journal; give {FORMS}")
        return str(path)
    try:
        sqlalchemy.create_engine(place)  # loads the driver, and does not connect
    except (sqlalchemy.exc.ArgumentError, ImportError, ValueError):
        raise ConfigError(
            f"--storage: no database can be reached by this URL; give {FORMS} (pip install 'fssl-bench[postgres]')"
        ) from None
    return place


def shown(place: str) -> str:
    """A storage's place for people, without a password."""
    if "://" not in place:
        return place
    return sqlalchemy.make_url(place).set(query={}).render_as_string(hide_password=True)


def open_storage(place: str) -> BaseStorage:
    if "://" not in place:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        return JournalStorage(JournalFileBackend(place, lock_obj=_MendingLock(place)))
    server = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 5}}
    return RDBStorage(place, engine_kwargs=server if place.startswith("postgresql") else {})


class _MendingLock(JournalFileSymlinkLock):
    """A journal's lock that cuts away the line which a crash broke off, before its holder writes the next."""

    def acquire(self) -> bool:
        acquired = super().acquire()
        with open(self._lock_target_file, "r+b") as journal:  # nobody is writing that line: the lock is ours
            content = journal.read()
            if not content.endswith(b"\n"):
                journal.truncate(content.rfind(b"\n") + 1)
        return acquired


@contextlib.contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Turn what a storage raises into one line, CannotWrite, without the password."""
    try:
        yield
    except (
        sqlalchemy.exc.SQLAlchemyError,
        optuna.exceptions.StorageInternalError,
        OSError,
        json.JSONDecodeError,
    ) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        if "://" in place and (password := sqlalchemy.make_url(place).password):
            reason = reason.replace(str(password), "***")
        raise CannotWrite(
            f"--storage: {shown(place)} takes no trial ({reason}); nothing is lost, the same command goes on"
        ) from None
