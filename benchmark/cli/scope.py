"""Which runs a command is about: words that several commands share. Loads nothing that trains."""

import argparse

from benchmark.errors import ConfigError


def add_scope(
    command: argparse.ArgumentParser, items: str = "+", what: str = "ssfl/tab2, a paper (ssfl), or all"
) -> None:
    """Which runs. `items`: how many names there may be ("+": at least one, "*": also none)."""
    command.add_argument("items", nargs=items, metavar="ITEM", help=what)
    command.add_argument("--profile", default="laptop", help="demo, laptop (default), gpu or paper")
    command.add_argument("--seeds", type=int, help="runs a cell (default: the profile's)")
    command.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="METHOD",
        help="one more method in the arena, such as my_module:MyMethod; may be repeated",
    )


def add_quoted(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--also-quoted",
        action="store_true",
        help="train also the cells whose numbers the paper quotes from others' settings (else only shown)",
    )


def add_reference(command: argparse.ArgumentParser) -> None:
    reference = command.add_mutually_exclusive_group()
    reference.add_argument(
        "--with-reference", action="store_true", default=None, help="count committed records as done (default but demo)"
    )
    reference.add_argument("--no-reference", action="store_false", dest="with_reference", help="train them again here")


def uses_reference(options: argparse.Namespace) -> bool:
    return options.profile != "demo" if options.with_reference is None else bool(options.with_reference)


def checked_seeds(seeds: int | None) -> int | None:
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds: {seeds}; at least 1 would be right")
    return seeds
