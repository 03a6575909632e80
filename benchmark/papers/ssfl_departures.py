"""What SSFL's departures do to its numbers: each switch of `reports/ssfl/departures.md` as one pair of cells.

A question of ours, no table of the paper: both cells of a pair have all else in common, and the pairs rest on cells of
Table 2 (or, with batch norms, of Figure 2), so that under a profile the defaults are mostly trained already.
"""

from functools import partial

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.optim.sgd import Cosine
from benchmark.papers.item import Item
from benchmark.papers.scale import REDUCED, with_field
from benchmark.papers.ssfl import EPOCHS, PAPER, STAND_INS, released_c, tab2
from benchmark.papers.switches import Switch, departures_of
from benchmark.papers.table import item

WARMUP_EPOCHS, RELEASED_EPOCHS = 5, 1024  # of CIFAR-10's schedule: Table A.1, and as released (`optimizer` says why)


def schedule(base: Experiment, *, literal: bool) -> Experiment:
    """CIFAR-10's schedule over the base's local steps: Eq. 11 and Table A.1 as printed (c = 2.3, E = 300: the rate
    falls to the floor and comes back), or as released, stretched to 1024 epochs (it falls once, and stays)."""
    epoch = base.federation.T * base.federation.rounds / EPOCHS["cifar10"]  # of CIFAR-10, in local steps here
    return with_field(
        base,
        "optimizer.schedule",
        Cosine(
            c=2.3 if literal else released_c(WARMUP_EPOCHS * 1024),
            warmup_steps=round(WARMUP_EPOCHS * epoch),
            steps=round((EPOCHS["cifar10"] if literal else RELEASED_EPOCHS) * epoch),
            floor=1e-4 if literal else 1e-5,
        ),
    )


def _in_group(base: Experiment) -> Experiment:
    """FedAvg with the server's weight inside a group of Table 2's grouping cell: its control."""
    return tab2(base.profile).cell("Control/full").experiment


GROUPING, FEDAVG = "Grouping/full of Table 2", "FedAvg/full of Table 2"
BATCH_NORM, AT_CLIENTS = "FedAvg/full of Table 2 with BN", "Grouping/R=0.4 of Table H.1"


def bases(profile: str) -> dict[str, Experiment]:
    table_2 = tab2(profile)
    fedavg = table_2.cell("FedAvg/full").experiment
    return {
        GROUPING: table_2.cell("Grouping/full").experiment,
        FEDAVG: fedavg,
        BATCH_NORM: with_field(fedavg, "model.norm", "bn"),
        AT_CLIENTS: item(PAPER, "tabh1", profile).cell("Grouping/R=0.4").experiment,
    }


SWITCHES = (
    Switch(
        name="schedule",
        entry=10,
        what="CIFAR-10's learning-rate schedule",
        words=("as released, falls once", "Eq. 11 literal, falls and comes back"),
        base=GROUPING,
        default=partial(schedule, literal=False),
        other=partial(schedule, literal=True),
    ),
    Switch(
        name="server-models",
        entry=1,
        what="server models",
        words=("one", "a replica a group"),
        base=GROUPING,
        other={"method.server_models": "released_code"},
    ),
    Switch(
        name="bn-statistics",
        entry=8,
        what="batch-norm statistics",
        words=("the server's own", "averaged"),
        base=BATCH_NORM,
        other={"method.bn_statistics": "averaged"},
    ),
    Switch(
        name="momentum",
        entry=5,
        what="momentum",
        words=("reset every round", "kept with the slot"),
        base=GROUPING,
        other={"method.momentum": "released_code"},
    ),
    Switch(
        name="start-average",
        entry=2,
        what="clients start from",
        words=("the mean of their group", "the average"),
        base=GROUPING,
        other={"method.client_start": "average"},
    ),
    Switch(
        name="norm",
        entry=9,
        what="group normalisation in the network",
        words=("with", "without"),
        base=GROUPING,
        default={"model.norm": "gn"},
        other={"model.norm": "none"},
    ),
    Switch(
        name="start-last-group",
        entry=2,
        what="clients start from",
        words=("the mean of their group", "the mean of their last round's group"),
        base=GROUPING,
        other={"method.client_start": "paper"},
    ),
    Switch(
        name="server-weight",
        entry=15,
        what="the server's weight in FedAvg",
        words=("1/(C + 1)", "1/(C/S + 1), as in a group"),
        base=FEDAVG,
        other=_in_group,
    ),
    Switch(
        name="flips",
        entry=12,
        what="images mirrored",
        words=("never", "half of them, as released"),
        base=GROUPING,
        default={"data.augmentation.weak.flip": 0.0},
        other={"data.augmentation.weak.flip": 0.5},
    ),
    Switch(
        name="warm-start",
        entry=14,
        what="rounds of the server alone at the start",
        words=("the profile's", "none, as in the paper"),
        base=GROUPING,
        other={"method.warm_start_rounds": 0},
    ),
    Switch(
        name="pseudo-label-mode",
        entry=6,
        what="pseudo-labels of a network with BN",
        words=("in training mode", "in evaluation mode"),
        base=BATCH_NORM,
        other={"method.objective.pseudo_label_mode": "eval"},
    ),
    Switch(
        name="views",
        entry=7,
        what="weak and strong view of a network with BN",
        words=("two forward passes", "one"),
        base=BATCH_NORM,
        other={"method.objective.views": "one_forward"},
    ),
    Switch(
        name="client-labels",
        entry=21,
        what="labels at the clients",
        words=("Eq. 3 beside CRL", "two-view self-training, as released"),
        base=AT_CLIENTS,
        other={"method.client_labels": "released_code"},
    ),
)


def departures(profile: str) -> Item:
    """Every switch as a row. Raises ConfigError."""
    return departures_of(
        "ssfl",
        SWITCHES,
        bases(profile),
        profile,
        STAND_INS[profile].title if profile in REDUCED else "",
        "The schedules are CIFAR-10's, over the local steps of this run; the base's own rate and data are kept.",
    )


def switch_named(name: str) -> Switch:
    """Raises ConfigError."""
    found = {switch.name: switch for switch in SWITCHES}
    if name not in found:
        raise ConfigError(f"departures: {name!r} is unknown; choose from {', '.join(found)}")
    return found[name]
