"""Starts `fssl` so that Ctrl-C ends it with one line even while Python still imports the command."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STOPPED = 76  # equal to `errors.Stopped.exit_code`, which is slow to import
BAD_CONFIGURATION = 65  # `errors.ConfigError.exit_code`; that module is not imported on Windows


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process, since no work has begun."""
    os.write(2, b"fssl: stopped before anything was begun\n")
    os._exit(STOPPED)


def main() -> int:
    """Run one command. On Windows, print one line about WSL instead."""
    if sys.platform == "win32":
        print("fssl: Windows is not supported; install WSL2 and type the command in its Linux", file=sys.stderr)
        return BAD_CONFIGURATION
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # if not, a parent process ignores the signal
        signal.signal(signal.SIGINT, leave)
    from benchmark.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
