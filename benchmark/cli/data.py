"""`fssl data partition`: which client would hold which images of a data set."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmark.cli.main import add_places, number
from benchmark.data.datasets import load
from benchmark.data.describe import describe, plot
from benchmark.data.partition import RULES, ClassSkew, Dirichlet, FedMatchSkew, Iid, Partition, Shards
from benchmark.data.split import split
from benchmark.errors import ConfigError


def add(verb: str, command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    partition = actions.add_parser(
        "partition", help="which client would hold which images", description=act_partition.__doc__
    )
    partition.add_argument("--data", default="digits", help="a data set, or folder:PATH (default: digits)")
    partition.add_argument("--K", type=number(1), default=10, help="clients (default: 10)")
    kind = partition.add_mutually_exclusive_group()
    kind.add_argument("--R", type=float, help="class skew, SSFL appendix A.2 (default: 0.4)")
    kind.add_argument("--alpha", type=float, help="Dirichlet concentration")
    kind.add_argument("--iid", action="store_true", help="the same proportions everywhere")
    kind.add_argument("--shards", type=int, metavar="CLASSES", help="shards per client, each of another class")
    kind.add_argument("--fedmatch", action="store_true", help="FedMatch's ten types of clients, for ten classes")
    partition.add_argument("--rule", choices=sorted(RULES), help="which Dirichlet (default: plain)")
    partition.add_argument("--repeats", action="store_true", help="let --shards give a client one class twice")
    partition.add_argument("--N_s", "--data.N_s", type=int, help="labelled images at the server (default: 10 a class)")
    partition.add_argument("--N_validation", type=int, default=0, help="further ones held out there")
    partition.add_argument("--labels_per_client", type=int, default=0, help="labelled images of each class at a client")
    share = "of the rarest class: how many of each class are labelled, dealt out apart"
    partition.add_argument("--labelled_share", type=float, default=0, help=share)
    partition.add_argument("--images", type=int, default=0, help="training images used at most (default: 0, all)")
    partition.add_argument("--sizes", choices=["paper", "equal"], help="client sizes under class skew (default: paper)")
    partition.add_argument("--seed", type=int, default=0)
    partition.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    partition.add_argument("--plot", type=Path, metavar="FILE", help="draw it (.svg, .pdf or .png)")
    add_places(partition)
    partition.set_defaults(act=act_partition)


def _rule(options: argparse.Namespace) -> Partition:
    """The partition that the options name. Raises ConfigError for an option of another partition."""
    if options.rule and options.alpha is None:
        raise ConfigError(f"--rule: {options.rule!r} does nothing without --alpha; add --alpha 0.3, say")
    if options.repeats and options.shards is None:
        raise ConfigError("--repeats does nothing without --shards; add --shards 2, say")
    if options.sizes and (options.alpha is not None or options.shards is not None or options.iid or options.fedmatch):
        raise ConfigError("--sizes does nothing but with --R; leave it out")
    if options.alpha is not None:
        return Dirichlet(alpha=options.alpha, rule=options.rule or "plain")
    if options.shards is not None:
        return Shards(classes_per_client=options.shards, distinct=not options.repeats)
    if options.iid:
        return Iid()
    if options.fedmatch:
        return FedMatchSkew()
    return ClassSkew(R=0.4 if options.R is None else options.R, sizes=options.sizes or "paper")


def act_partition(options: argparse.Namespace) -> int:
    """Counts of every client and the server, the realised R (SSFL Eq. 2), and a hash of who holds what."""
    data = load(options.data, options.data_root)
    labels_N = data.train_labels_N.numpy()
    divided = split(
        labels_N,
        num_classes=data.num_classes,
        N_s=10 * data.num_classes if options.N_s is None else options.N_s,
        K=options.K,
        partition=_rule(options),
        seed=options.seed,
        N_validation=options.N_validation,
        labels_per_client=options.labels_per_client,
        images=options.images,
        labelled_share=options.labelled_share,
    )
    description = describe(divided, labels_N)
    if options.plot:
        plot(divided, labels_N, data.classes, options.plot)
    if options.json:
        print(json.dumps(description))
        return 0
    table = Table("holder", *data.classes, "all", title=f"{data.name}: R = {description['R_realised']:.4f} (realised)")
    for client, counts in enumerate(description["counts"]):
        table.add_row(f"client {client}", *map(str, counts), str(sum(counts)))
    for client, counts in enumerate(description.get("labelled_counts", ())):
        table.add_row(f"client {client}, labelled", *map(str, counts), str(sum(counts)))
    table.add_row("server", *map(str, description["server_counts"]), str(sum(description["server_counts"])))
    Console(width=10_000, soft_wrap=True).print(
        table
    )  # wide enough for any table: a cut number would be another number
    print(f"hash {description['hash']}")
    return 0
