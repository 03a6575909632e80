"""`fssl`: one command, its verbs, and the exit codes that scripts and sweep agents rely on."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmark.errors import ConfigError, FsslError, Stopped
from benchmark.tracking.provenance import ROOT

EPILOG = """exit codes: 0 done, 65 bad configuration, 66 data missing or damaged, 70 diverged, 73 cannot write,
75 being run elsewhere, 76 stopped with a checkpoint"""


class Parser(argparse.ArgumentParser):
    """Errors as one line and exit code 65, like every other bad configuration."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` says what would be right")


def parser() -> Parser:
    from benchmark.cli import check, data, plan, report, reproduce, run

    top = Parser(prog="fssl", description="Federated semi-supervised learning, reproduced.", epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for module in (run, reproduce, plan, report, data, check):
        module.add(verbs)
    return top


def add_places(command: argparse.ArgumentParser) -> None:
    """Where data and results are: the same for every command that needs them."""
    command.add_argument("--results", type=Path, default=ROOT / "results", help="folder of records (default: results/)")
    command.add_argument(
        "--data-root", type=Path, default=None, help="folder of data sets (default: $FSSL_DATA, then the cache)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Errors a user can act on become one line and an exit code."""
    try:
        options, rest = parser().parse_known_args(arguments)
        if rest and not getattr(options, "takes_overrides", False):
            raise ConfigError(f"{rest[0]!r} is not understood; `fssl {options.verb} --help` says what would be right")
        options.rest = rest
        return int(options.act(options) or 0)
    except FsslError as error:
        print(f"fssl: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("fssl: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return Stopped.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader (head, less) has seen enough
        return 0


if __name__ == "__main__":
    sys.exit(main())
