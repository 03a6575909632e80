"""`fssl data`: the partition of a run's images among clients, and archives of the committed records.

Shapes: K clients, d classes.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pandas import DataFrame
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmark.cli.run import resolve
from benchmark.data.split import Split, mean_total_variation
from benchmark.data.tables import IntArray
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import prepare
from benchmark.files import write_atomically
from benchmark.papers.items import cell_named
from benchmark.plain import expanded
from benchmark.records.archive import unpack_archive, write_archive
from reports.item_figures import class_counts


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "action",
        choices=("partition", "records"),
        metavar="ACTION",
        help="partition: show which images each client would have; records: unpack or write an archive of the "
        "committed records, which a pip package does not contain",
    )
    command.add_argument("--get", type=expanded, metavar="FILE", help="unpack the archive into the folder of results")
    command.add_argument("--write", type=expanded, metavar="FILE", help="write the archive, such as records.tar")
    command.add_argument(
        "--cell", metavar="ITEM:LABEL", help='start from a cell of a paper, such as "ssfl/tab2:FedAvg/full"'
    )
    command.add_argument("--profile", default="demo", help="the profile of --cell (default: demo)")
    command.add_argument("--json", action="store_true", help="print only one JSON object")
    command.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the partition into this file (.svg, .pdf or .png)"
    )
    command.set_defaults(fields_of=Experiment)


def run_command(options: argparse.Namespace) -> None:
    """Count the images of every client and of the server.

    The command also prints the realised R (SSFL Eq. 2) and a hash of the partition. It accepts the same fields as
    `fssl run`, such as --data cifar10 --partition.R=0.8 --federation.K=20, or --partition=dirichlet.
    """
    if options.action == "records":
        return records(options)
    if options.get or options.write:
        raise ConfigError("--get and --write belong to records; type `fssl data records --get FILE`")
    start = cell_named(options.cell, options.profile) if options.cell else None
    environment = prepare(resolve(None, options.rest, start=start))
    data, divided = environment.data, environment.split
    labels_N = data.train_labels_N.numpy()
    description = describe(divided, labels_N)
    if options.plot:
        plot(description, (*data.classes, *data.unknown), options.plot)
    if options.json:
        print(json.dumps(description))
        return
    title = f"{data.name}: R = {description['R_realised']:.4f} (realised)"
    table = Table("participant", *map(escape, (*data.classes, *data.unknown)), "all", title=escape(title))
    held = {f"client {n}": counts for n, counts in enumerate(description["counts"])}
    held |= {f"client {n}, labelled": counts for n, counts in enumerate(description.get("labelled_counts", ()))}
    for participant, counts in {**held, "server": description["server_counts"]}.items():
        table.add_row(participant, *map(str, counts), str(sum(counts)))
    # The console is wide enough for any table, because a number that is cut off would read as a different number.
    Console(width=10_000, soft_wrap=True).print(table)
    print(f"hash {description['hash']}")


def records(options: argparse.Namespace) -> None:
    """Unpack or write an archive of the committed records. Raise ConfigError unless exactly one of the two is asked."""
    if (options.get is None) == (options.write is None) or options.rest:
        raise ConfigError("`fssl data records` needs either --get FILE or --write FILE, and no other option")
    if options.get is not None:
        number = unpack_archive(options.get, options.results)
        print(f"{number} records unpacked into {options.results / 'reference'}")
    else:
        number = write_archive(options.results, options.write)
        print(f"{number} records written to {options.write} ({options.write.stat().st_size / 1e6:.1f} MB)")


def describe(split: Split, labels_N: IntArray) -> dict[str, Any]:
    """Return the split as JSON values.

    The keys are K, R_nominal (None if the partition rule has none), R_realised (SSFL Eq. 2), counts (K x d),
    server_counts (labelled images for training at the server, without validation images) and hash. If clients have
    labelled images of their own, labelled_counts (K x d) counts them; `counts` does not include them.
    """
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


def plot(described: Mapping[str, Any], classes: Sequence[str], path: Path) -> None:
    """Draw the split as SVG, PDF or PNG, with one panel for the server, which has few labels, and one for the clients.

    The same split gives the same bytes. Raise ConfigError for any other suffix and CannotWrite if the file cannot be
    written.
    """
    if path.suffix not in (".svg", ".pdf", ".png"):
        raise ConfigError(f"plot {path}: suffix {path.suffix!r} must be .svg, .pdf or .png")
    nominal = "" if described["R_nominal"] is None else f" (nominal {described['R_nominal']:g})"
    title = f"{described['K']} clients, realised R = {described['R_realised']:.3f}{nominal}"
    held = {"server, labelled": [described["server_counts"]], title: described["counts"]}
    if "labelled_counts" in described:
        held["clients, labelled"] = described["labelled_counts"]
    picture = class_counts({name: DataFrame(counts, columns=list(classes)) for name, counts in held.items()})
    write_atomically(path, picture.saved(path.suffix[1:], dpi=200))
