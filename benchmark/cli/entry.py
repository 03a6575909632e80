"""The start of `fssl`: Ctrl-C while Python still loads the command ends it in one line."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STOPPED = 76  # `errors.Stopped.exit_code`: importing it would take a while
BAD_CONFIGURATION = 65  # `errors.ConfigError.exit_code`; the error's module is not loaded on Windows


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """End the process: nothing was begun."""
    os.write(2, b"fssl: stopped before anything was begun\n")
    os._exit(STOPPED)


def main() -> int:
    """Run one command. On Windows, say in one line what to use instead."""
    if sys.platform == "win32":
        print("fssl: Windows is not supported; install WSL2 and type the command in its Linux", file=sys.stderr)
        return BAD_CONFIGURATION
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else a parent ignores it
        signal.signal(signal.SIGINT, leave)
    from benchmark.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
