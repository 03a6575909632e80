"""Starts `fssl` so that Ctrl-C ends it with one line even while Python still imports the command."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STOPPED = 76  # equal to `errors.Stopped.exit_code`, which would take time to import


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process, since no work has begun."""
    os.write(2, b"fssl: stopped before anything was begun\n")
    os._exit(STOPPED)


def main() -> int:
    """Run one command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # otherwise, a parent process ignores the signal
        signal.signal(signal.SIGINT, leave)
    from benchmark.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
