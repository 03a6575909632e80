"""Store the trials of a study in a journal file or a database, and never show the password of a database.

The trial of a worker has a heartbeat. In databases Optuna implements heartbeats; for a journal they are files next to
it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState

from benchmark.config import quoted
from benchmark.errors import CannotWrite, ConfigError, DataError
from sweeps.launcher import MOST_DEATHS

FORMS = "a journal's path, sqlite:///FILE or postgresql+psycopg://USER@HOST:PORT/DATABASE"
BEAT = 10  # seconds between heartbeats
PATIENCE = 120  # seconds without a heartbeat after which a trial is queued again


def checked_place(place: str) -> str:
    """Return a database's URL unchanged, or a journal's absolute path. Raise ConfigError, which shows no password."""
    if "://" not in place:
        path = Path(place)
        if not path.is_absolute() and (":" in place or "@" in place):  # a misspelt URL, which may contain a password
            raise ConfigError(f"--storage is neither a path nor a URL; give {FORMS}")
        try:
            if path.exists() and path.open("rb").read(1) not in (b"", b"{"):
                raise ConfigError(f"--storage {place} is not a journal; give {FORMS}")
        except OSError as error:
            raise ConfigError(f"--storage {place} cannot be read ({error.strerror}); give {FORMS}") from None
        return str(path.absolute())
    try:
        sqlalchemy.create_engine(place)  # loads the driver without connecting
    except (sqlalchemy.exc.ArgumentError, ImportError, ValueError):
        driver = "pip install 'fssl[postgres]'"
        raise ConfigError(f"--storage is a URL that no database driver accepts; give {FORMS} ({driver})") from None
    return place


def shown(place: str) -> str:
    """Return the address of a storage without its password."""
    if "://" not in place:
        return place
    return sqlalchemy.make_url(place).set(query={}).render_as_string(hide_password=True)


def open_storage(place: str) -> BaseStorage:
    if "://" not in place:
        return _Journal(Path(place))
    server = {"pool_pre_ping": True, "connect_args": {"connect_timeout": 5}}
    return _Database(
        place,
        engine_kwargs=server if place.startswith("postgresql") else {},
        heartbeat_interval=BEAT,
        grace_period=PATIENCE,
        heartbeat_stale_trial_callback=queue_again(),
    )


def queue_again() -> RetryHeartbeatStaleTrialCallback:
    """Return the callback that queues the trial of a dead worker again."""
    return RetryHeartbeatStaleTrialCallback(max_retry=MOST_DEATHS - 1)


class _Database(RDBStorage):
    """A database storage that ignores a heartbeat that the server refuses, because the next one may succeed."""

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            super().record_heartbeat(trial_id)


class _Journal(JournalStorage, BaseHeartbeat):
    """A journal of trials with heartbeats: the times of files next to it, all by the clock of their disk."""

    def __init__(self, path: Path) -> None:
        self._beats = path.with_name(f"{path.name}.beats")
        self._beats.mkdir(parents=True, exist_ok=True)
        check_journal(path)
        super().__init__(JournalFileBackend(str(path), lock_obj=_MendingLock(str(path))))

    def record_heartbeat(self, trial_id: int | str) -> None:
        with contextlib.suppress(OSError):
            (self._beats / f"{trial_id}").touch()

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        self.record_heartbeat("now")
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        latest = self._time("now") - PATIENCE
        return [trial._trial_id for trial in running if self._time(f"{trial._trial_id}") < latest]

    def _time(self, name: str) -> float:
        """Return the time of the last heartbeat, or the present time if there is none, as the worker may have died."""
        if not (self._beats / name).exists():
            self.record_heartbeat(name)
        return (self._beats / name).stat().st_mtime

    def get_heartbeat_interval(self) -> int:
        return BEAT

    def get_heartbeat_stale_trial_callback(self) -> RetryHeartbeatStaleTrialCallback:
        return queue_again()


def check_journal(path: Path) -> None:
    """Raise DataError if a line of a journal is damaged. `_MendingLock` removes an incomplete last line."""
    content = path.read_bytes() if path.is_file() else b""
    for number, line in enumerate(content.split(b"\n")[:-1], 1):
        try:
            whole = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            whole = False
        if not whole:
            raise DataError(
                f"--storage {path}: line {number} is damaged ({quoted(line.decode(errors='replace')[:40])}); "
                "write one JSON object per line, or remove the line and its trial, or move the file away, so that "
                "the study begins again and reads the finished runs"
            )


class _MendingLock(JournalFileSymlinkLock):
    """A journal's lock that removes a line that a crash left incomplete, before the next line is written."""

    def acquire(self) -> bool:
        acquired = super().acquire()
        with open(
            self._lock_target_file, "r+b"
        ) as journal:  # no process is writing that line, since this one has the lock
            content = journal.read()
            if not content.endswith(b"\n"):
                journal.truncate(content.rfind(b"\n") + 1)
        return acquired


@contextlib.contextmanager
def storage_errors(place: str) -> Iterator[None]:
    """Convert the errors of a storage to CannotWrite, in one line without the password."""
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError, OSError, json.JSONDecodeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
        if "://" in place and (password := sqlalchemy.make_url(place).password):
            reason = reason.replace(str(password), "***")
        if isinstance(error, json.JSONDecodeError) and "://" not in place:
            check_journal(Path(place))  # raises an error that names the damaged line
        text = f"--storage {shown(place)} cannot be written ({reason})"
        raise CannotWrite(f"{text}; nothing is lost, and the same command resumes") from None
