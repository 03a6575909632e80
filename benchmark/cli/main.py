"""`fssl`: one command, its verbs, and the exit codes that scripts and sweep agents rely on."""

import argparse
import dataclasses
import difflib
import gc
import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmark import __version__
from benchmark.config import nearest
from benchmark.errors import ConfigError, FsslError, Stopped

ROOT = Path(__file__).resolve().parents[2]  # the checkout; of an installed package, the folder that it lies in
HOME = ROOT if (ROOT / "pyproject.toml").is_file() else Path()  # where records and pages go: else the working folder
DEFAULT_SITE = HOME / "reports" / "site"

EPILOG = """exit codes: 0 done, 65 bad configuration, 66 data missing or damaged, 70 diverged, 73 cannot write,
75 being run elsewhere, 76 stopped with a checkpoint"""


class Parser(argparse.ArgumentParser):
    """Errors in one line with exit code 65, and no shortened options. Subcommands are made of it, too."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "allow_abbrev": False})
        self.more: Callable[[], str] | None = None  # makes what stands below the help, where that takes time
        self.set_defaults(parser=self)  # of the innermost command, once the words are read

    def format_help(self) -> str:
        return super().format_help() + ("" if self.more is None else f"\n{self.more()}\n")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Choices: commands, and options that list theirs."""
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[-1].lstrip("-") if action.option_strings else str(action.metavar).lower()
            raise ConfigError(f"unknown {name} {value!r}; {nearest(value, map(str, action.choices))}")

    def refuse(self, words: Sequence[str], fields: Sequence[str] = ()) -> None:
        """Raise ConfigError for the first word that is not understood. `fields`: further names that may be set."""
        for word in words:
            if not word.startswith("-"):
                raise ConfigError(f"{word!r} is not understood; see `{self.prog} --help`")
            option = word.partition("=")[0]
            known = [*self._option_string_actions, *(f"--{name}" for name in fields)]
            close = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"see `{self.prog} --help`"
            raise ConfigError(f"unknown option {option!r}; {hint}")


# Importing torch takes seconds: only the module of the command that was asked for is imported.
VERBS = {
    "run": ("run", "one experiment: --config FILE and --a.b=c"),
    "reproduce": ("reproduce", "run a table or figure and print it beside the published one"),
    "work": ("reproduce", "one more worker at the missing runs of tables and figures"),
    "status": ("status", "how far everything is, from another shell"),
    "plan": ("plan", "what reproducing would run and cost"),
    "sweep": ("sweep", "write or check a W&B sweep file for an item or a grid of factors"),
    "tune": ("tune", "search what a paper does not report, on held-out labels"),
    "agent": ("agent", "run a W&B agent on a sweep, safely"),
    "wandb-rebuild": ("wandb_rebuild", "make the runs in W&B again from the records"),
    "report": ("report", "build the site from the records"),
    "list": ("list", "items, methods, data sets and networks: what there is and what is here"),
    "data": ("data", "partitions of a data set among clients (`fssl list data`: the data sets)"),
    "doctor": ("doctor", "whether versions, device, data and the results folder are as runs need them"),
    "verify": ("verify", "whether the records are whole"),
}

# Commands and options that are no more, as they are typed, and what to type instead.
WITHDRAWN = {
    "bench": "`python -m tests.performance.engines`, in a checkout, times the engines",
    "migrate": "`fssl reproduce ITEM` trains again what an older version recorded under another key",
    "plan --budget": "`timeout -s INT 2h fssl reproduce ITEM` runs what fits into a time",
    "report --pictures": "`fssl report --readme` draws them",
    "report --serve": "the site opens from a file: reports/site/index.html",
    "reproduce --budget": "`timeout -s INT 2h fssl reproduce ITEM` stops in time, and the same command goes on",
    "run --dense": "`--engine reference` passes images below the threshold, too",
    "tune --list": "`fssl tune` names the studies; their ranges and reasons are in sweeps/*.toml and on their pages",
    "tune --takeover-after": "leave it out: the trial of a worker that is silent for two minutes is queued again",
    "tune --timeout": "`timeout -s INT 2h fssl tune STUDY` stops in time, and the same command goes on",
    "verify --replay": "`fssl verify --retrain N` trains N runs again",
    "work --no-wait": "leave it out: what others are at is waited for",
}


def parser(verb: str | None = None) -> Parser:
    """The command line; of the commands, only `verb` with its own options."""
    top = Parser(prog="fssl", description="Federated semi-supervised learning, reproduced.", epilog=EPILOG)
    top.add_argument("--version", action="version", version=f"fssl {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (module, text) in VERBS.items():
        command = verbs.add_parser(name, help=text)
        if name == verb:
            gc.disable()  # all that is imported stays: to look through it for garbage takes a seventh of the time
            imported = importlib.import_module(f"benchmark.cli.{module}")
            gc.enable()
            imported.add(name, command)
    return top


def add_places(command: argparse.ArgumentParser) -> None:
    """Where data and results are: the same for every command that needs them."""
    command.add_argument(
        "--results",
        type=Path,
        default=Path(os.environ.get("FSSL_RESULTS") or HOME / "results"),
        help="folder of records (default: $FSSL_RESULTS, then results/)",
    )
    command.add_argument(
        "--data-root", type=Path, default=None, help="folder of data sets (default: $FSSL_DATA, then the cache)"
    )


def number(least: float, most: float = math.inf, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """The type of an option that takes a number, both ends included."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}") from None
        if not least <= value <= most:
            wanted = f"at least {least:g} is needed" if most == math.inf else f"choose {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text}; {wanted}")
        return value

    return read


def clash() -> str | None:
    """What is imported in the place of a package of ours, and what to type; None: nothing. W&B has a `sweeps`, too."""
    for name in ("sweeps", "reports"):
        spec = importlib.util.find_spec(name)
        place = spec.origin if spec is not None else None
        if place is None or Path(place).resolve() != ROOT / name / "__init__.py":
            return f"{place} hides our {name}: `pip uninstall {name}`"
    return None


def add_methods(command: argparse.ArgumentParser) -> None:
    """Methods of a user's own that records may name: reading a record runs no other file."""
    command.add_argument(
        "--method", dest="methods", action="append", default=[], metavar="MODULE:CLASS", help="a method that you trust"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Errors a user can act on become one line and an exit code."""
    if os.getcwd() not in sys.path:  # a user's own module:Class lies there; behind all else, so that it hides nothing
        sys.path.append(os.getcwd())
    try:
        words = list(sys.argv[1:] if arguments is None else arguments)
        if (trouble := clash()) is not None:
            raise ConfigError(trouble)
        if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
            raise ConfigError(
                f"unknown option {words[0].partition('=')[0]!r}; options follow a command, see `fssl --help`"
            )
        _refuse_what_is_withdrawn(words)
        options, rest = parser(words[0] if words else None).parse_known_args(words)
        options.rest = rest
        if getattr(options, "takes_overrides", False):
            _refuse_what_is_no_field(options)
        else:
            options.parser.refuse(options.rest)
        if methods := getattr(options, "methods", None):
            from benchmark.methods.catalogue import method_class

            for name in methods:
                method_class(name)
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


def _refuse_what_is_withdrawn(words: Sequence[str]) -> None:
    """Raise ConfigError with the successor of a withdrawn command, or of one of its options."""
    verb, *rest = words or [""]
    for typed in (verb, *(f"{verb} {word.partition('=')[0]}" for word in rest)):
        if typed in WITHDRAWN:
            raise ConfigError(f"`fssl {typed}` is withdrawn; {WITHDRAWN[typed]}")


def _refuse_what_is_no_field(options: argparse.Namespace) -> None:
    """Of the words that set fields of an experiment, --a.b=c, those that begin with no field: misspelt options."""
    from benchmark.experiment import Experiment

    fields = [field.name for field in dataclasses.fields(Experiment)]
    for word in options.rest:
        head = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and "." not in head and head not in (*fields, "_wandb"):
            options.parser.refuse([word], fields)


if __name__ == "__main__":
    sys.exit(main())
