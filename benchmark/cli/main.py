"""`fssl`: one command, its verbs, and the exit codes that scripts and sweep agents rely on."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmark.errors import ConfigError, FsslError, Stopped

ROOT = Path(__file__).resolve().parents[2]

EPILOG = """exit codes: 0 done, 65 bad configuration, 66 data missing or damaged, 70 diverged, 73 cannot write,
75 being run elsewhere, 76 stopped with a checkpoint"""


class Parser(argparse.ArgumentParser):
    """Errors as one line and exit code 65, like every other bad configuration."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `{self.prog} --help` says what would be right")


# Importing torch takes seconds: only the module of the command that was asked for is imported.
VERBS = {
    "run": ("run", "one experiment: --config FILE and --a.b=c"),
    "reproduce": ("reproduce", "run a table or figure and print it beside the published one"),
    "work": ("work", "one more worker at the missing runs of tables and figures"),
    "status": ("status", "how far everything is, from another shell"),
    "plan": ("plan", "what reproducing would run and cost"),
    "sweep": ("sweep", "write or check a W&B sweep file for an item or a grid of factors"),
    "tune": ("tune", "search what a paper does not report, on held-out labels"),
    "agent": ("agent", "run a W&B agent on a sweep, safely"),
    "wandb-rebuild": ("rebuild", "make the runs in W&B again from the records"),
    "report": ("report", "build the site from the records"),
    "bench": ("bench", "how fast the engines are on this machine, beside a plain loop"),
    "data": ("data", "data sets and partitions"),
    "doctor": ("doctor", "what is wrong with this machine"),
    "verify": ("check", "whether the records are whole"),
}


def parser(verb: str | None = None) -> Parser:
    """The command line; of the commands, only `verb` with its own options."""
    top = Parser(prog="fssl", description="Federated semi-supervised learning, reproduced.", epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (module, text) in VERBS.items():
        command = verbs.add_parser(name, help=text)
        if name == verb:
            importlib.import_module(f"benchmark.cli.{module}").add(name, command)
    return top


def add_places(command: argparse.ArgumentParser) -> None:
    """Where data and results are: the same for every command that needs them."""
    command.add_argument(
        "--results",
        type=Path,
        default=Path(os.environ.get("FSSL_RESULTS") or ROOT / "results"),
        help="folder of records (default: $FSSL_RESULTS, then results/)",
    )
    command.add_argument(
        "--data-root", type=Path, default=None, help="folder of data sets (default: $FSSL_DATA, then the cache)"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Errors a user can act on become one line and an exit code."""
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        options, rest = parser(words[0] if words else None).parse_known_args(words)
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
