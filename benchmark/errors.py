"""Define the errors that a user can correct, each with its exit code.

Scripts and sweep agents rely on the codes. Every message is one line that explains the fault and what to do.
"""


class FsslError(Exception):
    """The base class of the suite's errors. `fssl` prints the message and exits with `exit_code`."""

    exit_code = 1


class ConfigError(FsslError):
    """A wrong key or value in the configuration of an experiment (exit 65)."""

    exit_code = 65


class DataError(FsslError):
    """A data set or file that is missing, damaged or too small (exit 66)."""

    exit_code = 66


class Diverged(FsslError):
    """Weights or loss became infinite or NaN (exit 70). This outcome is recorded, and the run is not repeated."""

    exit_code = 70


class CannotWrite(FsslError):
    """The results folder cannot be written to (exit 73)."""

    exit_code = 73


class DiskFull(CannotWrite):
    """The disk is full, or a quota is exceeded (exit 73). A launch waits and tries again."""


class RunningElsewhere(FsslError):
    """A different process is computing this run (exit 75)."""

    exit_code = 75


class Stopped(FsslError):
    """The run was asked to stop, and its last finished round is saved (exit 76)."""

    exit_code = 76


def one_line(error: BaseException) -> str:
    """Return the error's message without line breaks, or the name of its type if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__
