"""Errors a user can act on, each with the exit code that scripts and sweep agents rely on.

Every message is one line that says what is wrong and what to do.
"""


class FsslError(Exception):
    """Base of the errors that `fssl` turns into one line on standard error and an exit code."""

    exit_code = 1


class ConfigError(FsslError):
    """A key or value of an experiment that cannot be right (exit 65)."""

    exit_code = 65


class DataError(FsslError):
    """A data set that is absent, damaged or too small for the setting (exit 66)."""

    exit_code = 66


class Diverged(FsslError):
    """Weights or loss became infinite or NaN; recorded as a result, never retried (exit 70)."""

    exit_code = 70


class CannotWrite(FsslError):
    """The results folder does not take a record (exit 73)."""

    exit_code = 73


class RunningElsewhere(FsslError):
    """Another process holds this run (exit 75)."""

    exit_code = 75


class Stopped(FsslError):
    """The run was asked to stop; its last finished round is saved (exit 76)."""

    exit_code = 76
