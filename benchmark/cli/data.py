"""`fssl data partition`: which client of a run would hold which images. Shapes: K clients, d classes."""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmark.cli.run import resolve
from benchmark.data.split import Split, mean_total_variation
from benchmark.data.tables import IntArray
from benchmark.errors import CannotWrite, ConfigError
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


def describe(split: Split, labels_N: IntArray) -> dict[str, Any]:
    """The split as JSON values. K, R_nominal (None where a rule has none), R_realised (Eq. 2), counts (K x d),
    server_counts (the labelled images that the server trains on, without validation images), hash; and labelled_counts
    (K x d) where clients have labelled images of their own, which `counts` leaves out."""
    counts_Kd = split.counts(labels_N)
    described = {
        "K": len(split.clients),
        "R_nominal": split.partition.R_nominal,
        "R_realised": mean_total_variation(counts_Kd),
        "counts": counts_Kd.tolist(),
        "server_counts": split.counts(labels_N, [split.server_N])[0].tolist(),
        "hash": split.hash(),
    }
    if split.labelled:
        described["labelled_counts"] = split.counts(labels_N, split.labelled).tolist()
    return described


def plot(split: Split, labels_N: IntArray, classes: tuple[str, ...], path: Path) -> None:
    """Write an SVG, PDF or PNG with stacked bars of class counts. One bar for the server and one for each client; the
    same split gives the same bytes. Raises ConfigError for another suffix, CannotWrite where no file can be written."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": None}
    if path.suffix not in undated:
        raise ConfigError(f"plot {path}: suffix {path.suffix!r} must be .svg, .pdf or .png")
    counts_Kd, nominal = split.counts(labels_N), split.partition.R_nominal
    colours = colormaps["turbo"](np.linspace(0, 1, len(classes)))
    figure = Figure(figsize=(9, 4), layout="constrained")
    # Two scales: the server's few labels would be invisible next to the clients' images, or the other way round.
    server_axes, client_axes = figure.subplots(1, 2, width_ratios=[1, 10])
    for axes, held_Hd in ((server_axes, split.counts(labels_N, [split.server_N])), (client_axes, counts_Kd)):
        # Steps of one area a class: hundreds of clients by dozens of classes are drawn in a second.
        edges_H = np.arange(len(held_Hd) + 1) - 0.5
        axes.stackplot(edges_H, np.vstack([held_Hd, held_Hd[-1:]]).T, step="post", colors=colours)
        axes.margins(x=0)
    server_axes.set(xticks=[], xlabel="server", ylabel="labelled images")
    client_axes.set(xlabel="client", ylabel="images")
    title = f"K = {len(counts_Kd)}, realised R = {mean_total_variation(counts_Kd):.3f}"
    client_axes.set_title(title if nominal is None else f"{title} (nominal {nominal:g})")
    place: Any = {"loc": "outside right upper", "reverse": True, "ncols": 1 + len(classes) // 25}
    figure.legend(client_axes.collections, classes, title="class", fontsize="small", **place)
    try:
        # Without a fixed salt and date, matplotlib writes other bytes each time.
        with rc_context({"svg.hashsalt": "fssl", "svg.fonttype": "none"}):
            figure.savefig(path, dpi=120, metadata=undated[path.suffix])
    except OSError as error:
        raise CannotWrite(f"plot {path} cannot be written ({error.strerror}): name a folder that exists") from error
