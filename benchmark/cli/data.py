"""`fssl data partition`: which client of a run would hold which images."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmark.cli.run import resolve
from benchmark.data.describe import describe, plot
from benchmark.experiment import Experiment
from benchmark.federated.environment import prepare
from benchmark.papers.catalogue import cell_named


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "action", choices=("partition",), metavar="ACTION", help="partition: which client would hold which images"
    )
    command.add_argument("--cell", metavar="ITEM:LABEL", help='start from a paper\'s cell: "ssfl/tab2:FedAvg/full"')
    command.add_argument("--profile", default="demo", help="profile of --cell (default: demo)")
    command.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    command.add_argument("--plot", type=Path, metavar="FILE", help="draw it (.svg, .pdf or .png)")
    command.set_defaults(fields_of=Experiment)


def act(options: argparse.Namespace) -> None:
    """Counts images of every client and the server.

    Also the realised R (SSFL Eq. 2), and a hash of who holds what, for the fields that `fssl run` takes: --data cifar10
    --partition.R=0.8 --federation.K=20, or --partition=dirichlet.
    """
    start = cell_named(options.cell, options.profile) if options.cell else None
    environment = prepare(resolve(None, options.rest, start=start))
    data, divided = environment.data, environment.split
    labels_N = data.train_labels_N.numpy()
    description = describe(divided, labels_N)
    if options.plot:
        plot(divided, labels_N, data.classes, options.plot)
    if options.json:
        print(json.dumps(description))
        return
    table = Table("holder", *data.classes, "all", title=f"{data.name}: R = {description['R_realised']:.4f} (realised)")
    for client, counts in enumerate(description["counts"]):
        table.add_row(f"client {client}", *map(str, counts), str(sum(counts)))
    for client, counts in enumerate(description.get("labelled_counts", ())):
        table.add_row(f"client {client}, labelled", *map(str, counts), str(sum(counts)))
    table.add_row("server", *map(str, description["server_counts"]), str(sum(description["server_counts"])))
    # Wide enough for any table: a cut number would be another number.
    Console(width=10_000, soft_wrap=True).print(table)
    print(f"hash {description['hash']}")
