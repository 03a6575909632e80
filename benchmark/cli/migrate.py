"""`fssl migrate`: records of an older version moved to where this one looks for them."""

import argparse

from benchmark.cli.main import add_methods, add_places
from benchmark.errors import DataError
from benchmark.records.migrate import migrate


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Moves finished runs and committed copies to the cell key that this version gives their experiment, and says "
        "so for each. Of two records of one run the one that measured more stays, after their numbers were found "
        "equal. Trains nothing; exit 66 if a record had to stay where it was."
    )
    add_methods(command)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    moves = []
    for line, moved in migrate(options.results):
        print(line)
        moves.append(moved)
    print(f"{sum(moves)} moved, {moves.count(False)} stay where they are")
    return 0 if all(moves) else DataError.exit_code
