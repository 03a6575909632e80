"""Describes failures in a user's code. The user's line is printed first, and frames of libraries are left out.

An exception in a method, a loss or a network passes through about seventy frames of Lightning and of this suite before
it reaches the command line. A `Failure` keeps the frames of the user's own files and the text of the whole traceback.
"""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

FULL = "FSSL_TRACEBACK"  # environment variable that --traceback sets: show whole tracebacks
_SUITE = Path(__file__).resolve().parent
_PYTHON = [os.path.realpath(path) for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "scripts"))]
_OURS = [str(_SUITE.parent / name) for name in ("benchmark", "sweeps", "reports")]
# Folders of the interpreter, of packages and of the suite, each with a slash at its end: no code of a user's is there.
_LIBRARIES = tuple(os.path.join(folder, "") for folder in [*_PYTHON, *_OURS])


@dataclass(frozen=True)
class Frame:
    """One call in a file of the user."""

    file: str  # absolute path
    number: int  # the line number
    function: str
    code: str  # the text of the line; empty if the file cannot be read

    def place(self) -> str:
        """Return "my_method.py:15, in loss"; files outside the working folder have their whole path."""
        return f"{_relative(self.file)}:{self.number}, in {self.function}"


@dataclass(frozen=True)
class Failure:
    """An exception that passed through the user's own files."""

    error: str  # "ValueError: my bug"
    frames: tuple[Frame, ...]  # in files of the user, the innermost first; at least one
    left_out: int  # the number of all other frames
    trace: str  # the whole traceback

    @property
    def at(self) -> str:
        """Return the innermost line of the user as "my_method.py:15"."""
        return f"{os.path.basename(self.frames[0].file)}:{self.frames[0].number}"

    def line(self) -> str:
        """Return the failure in one line: "ValueError: my bug (my_method.py:15)"."""
        return f"{self.error} ({self.at})"

    def text(self) -> str:
        """Return readable lines: the user's line first, then its callers, or the whole traceback with --traceback."""
        if os.environ.get(FULL):
            return self.trace.rstrip()
        innermost, *callers = self.frames
        lines = [f"{innermost.place()}: {self.error}", f"    {innermost.code}"]
        for caller in callers:
            lines += [f"  called from {caller.place()}", f"    {caller.code}"]
        return "\n".join([*lines, f"  {self.left_out} frames of libraries are left out; --traceback shows them"])


class FailedInWorker(RuntimeError):
    """An exception of a job in a worker process. The process that asked for the job may not know its class."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


def failure_of(error: BaseException) -> Failure | None:
    """Describe the exception as a Failure, or return None if no file of the user raised or called it.

    An exception that carries its `failure` from a worker process is not examined again. If only the cause of the
    exception passed through the user's files, the failure is located at the cause.
    """
    if isinstance(error, FailedInWorker):
        whole = "".join(traceback.format_exception(error))  # its message contains the worker's traceback
        return None if error.failure is None else replace(error.failure, trace=whole)
    for cause in _causes(error):
        summary = traceback.extract_tb(cause.__traceback__)
        of_user = [frame for frame in summary if _is_users(frame.filename)]
        if of_user:
            frames = tuple(
                Frame(os.path.abspath(frame.filename), frame.lineno or 0, frame.name, frame.line or "")
                for frame in reversed(of_user)
            )
            trace = "".join(traceback.format_exception(error))
            return Failure(_in_one_line(error), frames, len(summary) - len(of_user), trace)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _is_users(file: str) -> bool:
    """Return whether the file belongs neither to this suite nor to a library nor to Python."""
    return not file.startswith("<") and not os.path.realpath(file).startswith(_LIBRARIES)


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _relative(file: str) -> str:
    """Return the path as seen from the working folder if the file is in it."""
    here = os.path.join(os.getcwd(), "")
    return file.removeprefix(here)
