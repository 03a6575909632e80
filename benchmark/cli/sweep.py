"""`fssl sweep` writes or checks a W&B sweep file for a table, a figure or a grid of factors."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.cli.main import ROOT
from benchmark.cli.shared_options import add_seeds
from benchmark.errors import ConfigError
from benchmark.files import write_atomically
from benchmark.papers.item import CONFIRMING, Item
from benchmark.papers.items import items
from sweeps.factors import DEFAULT_PROFILE
from sweeps.grid import Grid, checked, grid_of_words
from sweeps.sweep_file import chosen_by_wandb, read, written

COMMITTED = ROOT / "sweeps" / "wandb"


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "items", nargs="*", metavar="ITEM", help="a table or figure (ssfl/tab2), a paper (ssfl), or all"
    )
    command.add_argument("--grid", metavar="WORDS", help="factors and their values, in place of ITEM")
    command.add_argument(
        "--profile", default=DEFAULT_PROFILE, help="the profile of the runs: demo, laptop (default), gpu or paper"
    )
    add_seeds(command, "the table's number of pilot runs, or seed 0 for a grid")
    command.add_argument("--yes", action="store_true", help="accept more than 10,000 runs")
    command.add_argument("--check", type=Path, metavar="FILE", help="only check this sweep file")
    command.add_argument("--write", type=Path, metavar="FOLDER", help="write one file per ITEM instead of printing")


def run_command(options: argparse.Namespace) -> None:
    """Print a W&B sweep file, or check one.

    Examples: `fssl sweep ssfl/tab2 > sweep.yaml`,
    `fssl sweep --grid 'R=0,0.4 T=2,8 method=crl,grouping seed=0,1'`.
    Every combination is built before anything is printed. Factors: R, T, N_s, K, C, S, alpha, method, data, seed,
    profile, a cell, and any field by its dotted name, such as optimizer.lr. A value with blanks or commas needs
    double quotes: 'cell="ssfl/tab2:Labels alone" seed=0'.
    """
    seeds = [*range(options.pilots or 0), *CONFIRMING[: options.seeds or 0]]
    if sum([bool(options.items), options.grid is not None, options.check is not None]) != 1:
        raise ConfigError("give one of ITEM, --grid and --check; see `fssl sweep --help`")
    if options.check is not None:
        if method := chosen_by_wandb(options.check):
            print(f"{options.check}: {method}: W&B chooses the runs, no error")
            return
        runs = checked(read(options.check), many=options.yes)
        print(f"{options.check}: {len(runs)} runs of {len({run.cell_key for run in runs})} cells, no error")
    elif options.grid is not None:
        print(file_of_grid(options, seeds), end="")
    else:
        _write_items(options, seeds)


def file_of_grid(options: argparse.Namespace, seeds: Sequence[int]) -> str:
    """Return the text of the sweep file for --grid."""
    if options.write is not None:
        raise ConfigError("--write: a grid is one sweep and is printed; type fssl sweep --grid ... > grid.yaml")
    words = " ".join(options.grid.split())
    grid = grid_of_words(words)
    grid.setdefault("profile", [options.profile])
    if seeds and "seed" in grid:
        raise ConfigError("--seeds, --pilots: the grid names its seeds already; leave out one of the two")
    grid.setdefault("seed", list(seeds or [0]))
    checked(grid, many=options.yes)
    quoted = shlex.quote(words) if '"' in words else f'"{words}"'
    made_by = f"fssl sweep --grid {quoted} --profile {options.profile}{_seed_words(options)}"
    return written(grid, name=words, made_by=made_by)


def _seed_words(options: argparse.Namespace) -> str:
    """Return the seeds as options of the command, with a leading blank."""
    numbers = {"seeds": options.seeds, "pilots": options.pilots}
    return "".join(f" --{name} {number}" for name, number in numbers.items() if number is not None)


def file_of_item(item: Item, seeds: Sequence[int] = (), words: str = "", *, many: bool = False) -> str:
    """Return the text of a table's sweep file, with its cells and these seeds (default: its pilot runs).

    `words` are the command's options for the seeds.
    """
    grid: Grid = {
        # Cells that wait for the settings of trials are left out.
        "cell": [f"{item.word}:{cell.label}" for cell in item.trained],
        "profile": [item.profile],
        "seed": list(seeds or range(item.seeds)),
    }
    checked(grid, many=many)
    made_by = f"fssl sweep {item.word} --profile {item.profile}{words}"
    return written(grid, name=f"{item.name} {item.profile}", made_by=made_by)


def _write_items(options: argparse.Namespace, seeds: Sequence[int]) -> None:
    chosen = [item for item in items(options.items, options.profile) if item.trained]
    if not chosen:
        raise ConfigError(
            f"{', '.join(options.items)} has nothing to train; name a different table or figure (`fssl list items`)"
        )
    if len(chosen) > 1 and options.write is None:
        number = len(chosen)
        raise ConfigError(f"{number} tables or figures need {number} sweep files; type --write FOLDER, or name one")
    for item in chosen:
        text = file_of_item(item, seeds, _seed_words(options), many=options.yes)
        if item.choices:
            waiting = f"{len(item.choices)} cells wait for their trials, which `fssl reproduce` and `fssl work` run"
            print(f"fssl: {item.name}: {waiting}", file=sys.stderr)
        if options.write is None:
            print(text, end="")
        else:
            path = options.write / f"{item.name}.yaml"
            write_atomically(path, text.encode())
            print(path)
