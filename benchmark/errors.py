"""Errors that a user can correct, each with its exit code.

Scripts and sweep agents rely on the codes. Every message is one line that says what is wrong and what to do.
"""


class FsslError(Exception):
    """Base class: `fssl` prints the message and ends with `exit_code`."""

    exit_code = 1


class ConfigError(FsslError):
    """A key or value of an experiment that is wrong (exit 65)."""

    exit_code = 65


class DataError(FsslError):
    """A data set that is missing, damaged or too small (exit 66)."""

    exit_code = 66


class Diverged(FsslError):
    """Weights or loss became infinite or NaN (exit 70). It is recorded as a result and never tried again."""

    exit_code = 70


class CannotWrite(FsslError):
    """The results folder cannot be written to (exit 73)."""

    exit_code = 73


class DiskFull(CannotWrite):
    """The disk is full, or a quota is used up (exit 73). A launch waits and tries again."""


class RunningElsewhere(FsslError):
    """Another process is doing this run (exit 75)."""

    exit_code = 75


class Stopped(FsslError):
    """The run was asked to stop; its last finished round is saved (exit 76)."""

    exit_code = 76


def one_line(error: BaseException) -> str:
    """The error's message without line breaks; its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__
