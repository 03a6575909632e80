"""`fssl`: its commands, and the exit codes that scripts and sweep agents rely on."""

import argparse
import dataclasses
import difflib
import errno
import gc
import importlib
import importlib.util
import io
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmark import __version__
from benchmark.cli.entry import leave
from benchmark.cli.withdrawn import WITHDRAWN
from benchmark.config import full_name, nearest
from benchmark.errors import ConfigError, DataError, DiskFull, FsslError, Stopped, one_line
from benchmark.failures import FULL, failure_of
from benchmark.plain import expanded

ROOT = Path(__file__).resolve().parents[2]  # the checkout; for an installed package, the folder that contains it
HOME = ROOT if (ROOT / "pyproject.toml").is_file() else Path()  # has records and pages; else the working folder
DEFAULT_RESULTS, DEFAULT_SITE = HOME / "results", HOME / "reports" / "site"

EPILOG = """exit codes: 0 done, 1 other failure, 65 bad configuration, 66 data missing or damaged, or refused by verify,
69 nothing could be checked here, 70 diverged, 73 cannot write, 75 being run elsewhere, 76 stopped and saved"""


class Parser(argparse.ArgumentParser):
    """A parser without abbreviations of options. Its errors are one line, with exit code 65.

    Subcommands also have this class.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "allow_abbrev": False})
        self.more: Callable[[], str] | None = None  # computes the text below the help if that is slow
        self.set_defaults(parser=self)  # after parsing, this is the innermost command's parser

    def format_help(self) -> str:
        return super().format_help() + ("" if self.more is None else f"\n{self.more()}\n")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise ConfigError for unknown commands, and for unknown values of options that list their choices."""
        if action.choices is not None and value not in action.choices:
            name = action.option_strings[-1].lstrip("-") if action.option_strings else str(action.metavar).lower()
            raise ConfigError(f"unknown {name} {value!r}; {nearest(value, map(str, action.choices))}")

    def refuse(self, words: Sequence[str], experiment: Any = None) -> None:
        """Raise ConfigError for the first unknown word. `experiment`: the class whose fields --a.b=c may set."""
        fields = [] if experiment is None else [field.name for field in dataclasses.fields(experiment)]
        for word in words:
            option = word.partition("=")[0]
            name = option.removeprefix("--")
            if fields and (not word.startswith("--") or "." in name or name in (*fields, "_wandb")):
                continue  # the command reads it
            if not word.startswith("-"):
                raise ConfigError(f"{word!r} is not understood; see `{self.prog} --help`")
            known = [*self._option_string_actions, *(f"--{field}" for field in fields)]
            close = difflib.get_close_matches(option, known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"see `{self.prog} --help`"
            full = full_name(name, experiment, "--") if fields else ""
            raise ConfigError(f"unknown option {option!r}; {full or hint}")


# Importing torch takes seconds, so only the module of the command in use is imported.
VERBS = {
    "run": ("run", "train one experiment, given by --config FILE and --a.b=c"),
    "reproduce": ("reproduce", "run a table or figure and print it next to the published one"),
    "work": ("reproduce", "train missing runs of tables and figures, as one of any number of workers"),
    "status": ("status", "show the progress of runs from any shell"),
    "plan": ("plan", "show the runs and the cost of `fssl reproduce`"),
    "sweep": ("sweep", "write or check a W&B sweep file for a table, a figure or a grid of factors"),
    "tune": ("tune", "search for settings that a paper does not report, on held-out labels"),
    "agent": ("agent", "run a W&B agent on a sweep; its exit code depends on the records"),
    "wandb-rebuild": ("wandb_rebuild", "restore the runs in W&B from the run records"),
    "report": ("report", "build the site from the run records"),
    "list": ("list", "list tables and figures, methods, data sets and networks, and which are on this machine"),
    "data": ("data", "show how a data set is divided among clients (`fssl list data` names the data sets)"),
    "doctor": ("doctor", "check versions, device, data and the results folder"),
    "verify": ("verify", "check that the run records are complete and unchanged, or check a submission"),
    "submit": ("submit", "write a submission of run records for others to verify"),
}

READING = ("status", "verify", "submit", "wandb-rebuild")  # commands that need an existing results folder
SHOWING = ("list", "plan", "report")  # commands that also work without a results folder


def parser(verb: str | None = None) -> Parser:
    """Build the command line. Only the command `verb` gets its options."""
    top = Parser(prog="fssl", description="Federated semi-supervised learning, reproduced.", epilog=EPILOG)
    top.add_argument("--version", action="version", version=f"fssl {__version__}")
    says = "complete commands and options in bash and zsh by the Tab key"
    top.add_argument("--install-completion", action="store_true", help=says)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="COMMAND", parser_class=Parser)
    for name, (module, text) in VERBS.items():
        command = verbs.add_parser(name, help=text)
        if name == verb:
            gc.disable()  # imported modules stay, so that a search for garbage only costs a seventh of the time
            imported = importlib.import_module(f"benchmark.cli.{module}")
            gc.enable()
            # A module with two commands sets `run_command` itself, in `add_arguments`.
            command.set_defaults(run_command=getattr(imported, "run_command", None))
            imported.add_arguments(name, command)
            command.description = command.get_default("run_command").__doc__
            if name != "sweep":  # it reads no folder; in `--results=~/x` no shell has replaced the `~`
                folder = os.environ.get("FSSL_RESULTS") or str(DEFAULT_RESULTS)
                says = "the folder of run records (default: $FSSL_RESULTS, or results/ if it is not set)"
                command.add_argument("--results", type=expanded, default=folder, help=says)
                says = "the folder of data sets (default: $FSSL_DATA, or the cache if it is not set)"
                command.add_argument("--data-root", type=expanded, help=says)
            says = "show the whole traceback of an error, including the frames of libraries"
            command.add_argument("--traceback", action="store_true", help=says)
    return top


def add_site(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--site",
        type=expanded,
        help="the folder of the site (default: reports/site, or site/ in --results if that is a different folder)",
    )


def site_of(options: argparse.Namespace) -> Path:
    """Return the folder of the report. Pages of a different results folder do not overwrite the usual pages."""
    if getattr(options, "site", None) is not None:  # not every command has --site
        return Path(options.site)
    usual = options.results.resolve() == DEFAULT_RESULTS.resolve()
    return DEFAULT_SITE if usual else Path(options.results) / "site"


def number(least: float, most: float = math.inf, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """Return the type of an option for a number between two bounds, both included."""

    def read(text: str) -> float:
        try:
            value = kind(text)
            if not math.isfinite(value):
                raise ValueError
        except ValueError:
            what = "whole number" if kind is int else "number"
            raise argparse.ArgumentTypeError(f"{text!r} is not a {what}") from None
        if not least <= value <= most:
            wanted = f"at least {least:g} is needed" if most == math.inf else f"choose {least:g} to {most:g}"
            raise argparse.ArgumentTypeError(f"{text}; {wanted}")
        return value

    return read


def check_packages() -> None:
    """Raise ConfigError if a different package would be imported in place of ours: W&B also has a package `sweeps`."""
    for name in ("sweeps", "reports"):
        spec = importlib.util.find_spec(name)
        path = spec.origin if spec is not None else None
        if path is None or Path(path).resolve() != ROOT / name / "__init__.py":
            raise ConfigError(f"{path} hides our {name}: `pip uninstall {name}`")


def add_methods(command: argparse.ArgumentParser) -> None:
    """Add options for custom methods and networks that records may name: no other file is run to read a record."""
    for kind in ("method", "network"):
        says = f"allow run records to load this custom {kind}; its file is executed, so you must trust it"
        command.add_argument(
            f"--{kind}", dest=f"{kind}s", action="append", default=[], metavar="MODULE:CLASS", help=says
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Errors a user can act on become one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of classes may not be in the terminal's alphabet
    if os.getcwd() not in sys.path:  # for a user's module:Class; last, so that it hides no package
        sys.path.append(os.getcwd())
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except (Exception, KeyboardInterrupt) as error:
        code = _report(error)
        if code is None:  # a bug of this suite: whoever reports it needs the traceback
            raise
        return code


def _run(words: Sequence[str]) -> int:
    check_packages()
    if words == ["--install-completion"]:
        from benchmark.cli.completion import install

        install()
        return 0
    options = _command_line(words)
    _check_folders(options)
    _import_custom(options)
    _settle_paths(options)
    if signal.getsignal(signal.SIGINT) is leave:  # all is loaded
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = int(options.run_command(options) or 0)
    sys.stdout.flush()
    return code


def _command_line(words: Sequence[str]) -> argparse.Namespace:
    """Read the command and its options. Raise ConfigError for the first word that is not understood."""
    if words and words[0].startswith("-") and words[0] not in ("-h", "--help", "--version"):
        option = words[0].partition("=")[0]
        raise ConfigError(f"unknown option {option!r}; options follow a command, see `fssl --help`")
    _check_withdrawn(words)
    options, rest = parser(words[0] if words else None).parse_known_args(words)
    options.rest = rest
    if options.traceback:
        os.environ[FULL] = "1"  # read by whoever shows a failure, in other processes, too
    options.parser.refuse(rest, getattr(options, "fields_of", None))
    return options


def _check_folders(options: argparse.Namespace) -> None:
    """Raise DataError if the command needs a results folder that does not exist."""
    if options.verb not in (*READING, *SHOWING) or options.results.is_dir() or options.results == DEFAULT_RESULTS:
        return
    if options.results.exists():
        raise DataError(f"--results: {options.results} is not a folder; name a folder")
    if options.verb in READING:
        raise DataError(f"--results: {options.results} does not exist; check its name, or create the folder first")
    print(f"fssl: {options.results} does not exist yet, so no run in it counts", file=sys.stderr)


def _import_custom(options: argparse.Namespace) -> None:
    """Import the custom methods and networks of the options; from then on, records that name them can be read."""
    for name in getattr(options, "methods", ()):
        from benchmark.methods.registry import method_class

        method_class(name)
    for name in getattr(options, "networks", ()):
        from benchmark.models.build import network_class

        network_class(name)


def _settle_paths(options: argparse.Namespace) -> None:
    """Make the folders of the options absolute, because a user's module may change the working folder."""
    if root := getattr(options, "data_root", None):  # counts wherever data are looked for, in other processes, too
        os.environ["FSSL_DATA"] = str(root.absolute())
    for name in ("results", "site"):
        if getattr(options, name, None) is not None:
            setattr(options, name, getattr(options, name).absolute())


def _report(error: Exception | KeyboardInterrupt) -> int | None:
    """Print the error in one line, or nothing if the reader of the output is gone, and return the exit code.

    Return None for a bug of this suite.
    """
    if isinstance(error, FsslError):
        if os.environ.get(FULL):
            traceback.print_exc()
        print(f"fssl: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        print("fssl: stopped; the same command resumes from the last save", file=sys.stderr)
        return Stopped.exit_code
    if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # because Python would write there once more
        if error.errno == errno.EPIPE:  # the reader (head, less) has closed it
            return 0
        print(f"fssl: cannot write: {error.strerror}; make room, and type the same again", file=sys.stderr)
        return DiskFull.exit_code
    failure = failure_of(error)
    if failure is None:
        return None
    print(f"fssl: {failure.text()}", file=sys.stderr)
    return FsslError.exit_code


def _check_withdrawn(words: Sequence[str]) -> None:
    """Raise ConfigError for a withdrawn command or option, with its successor."""
    verb, *rest = words or [""]
    for typed in (verb, *(f"{verb} {word.partition('=')[0]}" for word in rest)):
        if typed in WITHDRAWN:
            raise ConfigError(f"`fssl {typed}` is withdrawn; {WITHDRAWN[typed]}")


if __name__ == "__main__":
    sys.exit(main())
