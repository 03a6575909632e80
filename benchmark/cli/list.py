"""`fssl list` lists tables and figures, methods, data sets and networks, and which of them are on this machine."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmark.data.datasets import DATASETS, locate
from benchmark.data.packed import Packed
from benchmark.methods.registry import METHODS
from benchmark.models.build import NETWORKS
from benchmark.papers.item import Item
from benchmark.papers.items import ITEMS, VARIANTS, base_of, items, profiles
from reports.methods import described
from reports.own_items import own_items
from sweeps.plan import Plan, plan, wanted

Row = dict[str, Any]
KINDS = ("items", "methods", "data", "networks")
WIDTH = 100  # columns if there is no terminal
YOURS = {
    "methods": "a custom method: --method my_module:MyMethod",
    "data": "your images, a folder per class: --data.name folder:PATH",
    "networks": "a custom network: --model.network my_module:MyNetwork",
}


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument("kind", nargs="?", choices=KINDS, metavar="KIND", help=f"{', '.join(KINDS)} (default: all)")
    command.add_argument(
        "--profile",
        default="laptop",
        help="the profile of the tables and figures: demo, laptop (default), gpu or paper",
    )
    command.add_argument("--json", action="store_true", help="print only one JSON object")


def run_command(options: argparse.Namespace) -> None:
    """List tables and figures, methods, data sets and networks, without downloading or training.

    The hours assume the mean time of a table's finished runs for each missing run; they are empty if no run is
    finished.
    """
    lists = {
        "items": lambda: all_items(options.results, options.profile),
        "methods": _methods,
        "data": data_sets,
        "networks": _networks,
    }
    chosen = {kind: lists[kind]() for kind in KINDS if options.kind in (None, kind)}
    if options.json:
        print(json.dumps({"profile": options.profile, **chosen}))
        return
    for kind, rows in chosen.items():
        show(kind, rows, f"profile {options.profile}" if kind == "items" else "")


def all_items(results: Path, profile: str) -> list[Row]:
    """List the tables and figures of this profile and the user's own, one per row.

    A damaged record counts as missing.
    """
    own = [replace(item, title=f"{item.title} ({item.typed}, {item.profile})") for item in own_items(results, [])]
    further = [name for name in VARIANTS if base_of(name) and profile in profiles(name)]
    planned = plan([*items([*ITEMS, *further], profile), *own], results, with_reference=profile != "demo", tell=False)
    return [_item(item, planned) for item in planned.items]


def _item(item: Item, planned: Plan) -> Row:
    runs = item.tried.union(wanted([item], records=planned.records))
    records = [planned.finished(run) for run in runs]
    finished = [record.result for record in records if record is not None]
    seconds = [result["wall_seconds"] for result in finished if "wall_seconds" in result]
    return {
        "item": item.name,
        "cells": len({run.cell_key for run in runs}) + len(item.choices),
        "runs": len(runs) + item.seeds * len(item.choices),
        "done": len(finished),
        "hours left": round((len(runs) - len(finished)) * fmean(seconds) / 3600, 2) if seconds else None,
        "title": item.title,
    }


def _methods() -> list[Row]:
    rows = []
    for kind, method in METHODS.items():
        labels = ", ".join(sorted(method().needs))
        what = "{name}: {what}".format(**described(kind))
        rows.append({"method": kind, "labels": labels, "what": what})
    return rows


def _networks() -> list[Row]:
    rows = []
    for name, network in NETWORKS.items():
        first_paragraph = (network.__doc__ or "").split("\n\n")[0]
        rows.append({"network": name, "what": " ".join(first_paragraph.split())})
    return rows


def data_sets() -> list[Row]:
    """List the known data sets, one per row, with their folders on this machine. Reads no images."""
    rows = []
    for name, known in DATASETS.items():
        source = locate(name)
        downloaded = bool(known.original) and not known.by_hand
        missing = "no; torchvision downloads it when it is used" if downloaded else "no; set FSSL_DATA"
        if name == "digits":
            here = "with scikit-learn"
        elif source:
            here = str(source.folder)
        else:
            here = missing
        packed = isinstance(source, Packed)
        rows.append(
            {
                "data set": name,
                "train": known.train,
                "test": known.test,
                "classes": known.num_classes,
                "image": "x".join(map(str, known.image_shape)),
                "here": here,
                "note": known.packed_note if packed else "",
            }
        )
    return rows


def show(kind: str, rows: list[Row], caption: str = "") -> None:
    """Print a table, as wide as the terminal or `WIDTH` columns. Long texts are wrapped; `--json` has them whole."""
    if caption:
        print(caption)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, (name, value) in enumerate(rows[0].items()):
        number = isinstance(value, int | float | None)
        table.add_column(name, justify="right" if number else "left", no_wrap=number or not place, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_text(value)) for value in row.values()))
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    with console.capture() as drawn:
        console.print(table)
    print(*(line.rstrip() for line in drawn.get().splitlines()), YOURS.get(kind, ""), "", sep="\n")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int | float) else str(value)
