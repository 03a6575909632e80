"""SSFL (arXiv:2008.11364): the experiments of its tables, every number with its section, table or released line."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from benchmark.data.partition import ClassSkew
from benchmark.experiment import Experiment
from benchmark.methods.averaging import FedAvg, Grouping
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.server_only import ServerOnly
from benchmark.papers import ssfl_items
from benchmark.papers.item import ACCURACY, Cell, Item, Printed
from benchmark.papers.profiles import LAPTOP_WARM_START, profile_named
from benchmark.papers.published import claims_of, read_published, value_of
from benchmark.papers.ssfl_scales import SCALES
from benchmark.papers.ssfl_settings import STEPS_PER_EPOCH as STEPS_PER_EPOCH
from benchmark.papers.ssfl_settings import averaged, control_of, emnist
from benchmark.papers.ssfl_settings import optimizer as optimizer

# S by C: Table A.2 prints it for C = 47 only (row 21); the others are the released code's (utils_v2.py:1498-1567).
GROUPS = {10: 2, 20: 2, 30: 3, 47: 5}

SIZES = {10: "small", 30: "middle", 47: "full"}  # the cohort sizes of Table 2


def tab2(profile: str) -> Item:
    """Table 2: accuracy against the cohort size, FedAvg and grouping, and the control that the paper lacks."""
    published = read_published("ssfl/tab2")
    cells = [cell for C in SIZES for cell in _tab2_row(C, profile, published)]
    cells += ladder(profile_named(profile)(emnist(C=47)), every_rung=profile != "demo")
    return Item(
        name="ssfl/tab2",
        title=published["title"] + STAND_INS.get(profile, ""),
        profile=profile,
        cells=tuple(cells),
        claims=claims_of(published),
        seeds={"demo": 3, "laptop": 5}.get(profile, published["seeds"]),
        notes=NOTES.get(profile, ()),
        margin=published.get("margin"),
    )


def _tab2_row(C: int, profile: str, published: dict) -> list[Cell]:
    sizes: Literal["released_code"] = "released_code"  # 10, 10, 10, 10, 7 at C = 47
    grouping = profile_named(profile)(averaged(emnist(C=C), Grouping(S=GROUPS[C], sizes=sizes)))
    cohort = grouping.federation.C
    fedavg = averaged(grouping, FedAvg())
    control = control_of(grouping)
    size = SIZES[C]
    return [
        Cell(
            label=f"FedAvg/{size}",
            setting={"method": "FedAvg", "cohort": size, "C": cohort},
            experiment=fedavg,
            published={ACCURACY: Printed(value=value_of(published, method="FedAvg", C=C))},
        ),
        Cell(
            label=f"Grouping/{size}",
            setting={"method": "Grouping", "cohort": size, "C": cohort},
            experiment=grouping,
            published={ACCURACY: Printed(value=value_of(published, method="Grouping", C=C))},
        ),
        Cell(
            label=f"Control/{size}",
            setting={"method": "Control", "cohort": size, "C": cohort},
            experiment=control,
            role="control",
        ),
    ]


# Training on the server's labels alone gets the learning rate that is best for it: the best mean accuracy of three
# seeds on 1,000 labels held out at the server, of 0.005, 0.01, 0.02 and 0.05 (laptop: .918 .919 .916 .913).
SERVER_ONLY_LR = {"laptop": 0.01}


def ladder(full: Experiment, *, every_rung: bool) -> list[Cell]:
    """What each step from the server's labels alone to the federated setting does, on the table's own setting."""
    batch = full.method.batch_size
    warm = full.method.warm_start_rounds
    one_step = replace(full.federation, T=1, rounds=full.federation.rounds * full.federation.T)
    iid = replace(full, partition=ClassSkew(R=0.0))
    lr = SERVER_ONLY_LR.get(full.profile, full.optimizer.lr)
    server_only = replace(full, method=ServerOnly(batch_size=batch), optimizer=replace(full.optimizer, lr=lr))
    central = replace(full, method=FixMatch(batch_size=batch, unlabelled_ratio=1, warm_start_rounds=warm))
    iid_T1 = replace(
        iid,
        federation=one_step,
        method=replace(full.method, warm_start_rounds=warm * full.federation.T),
        evaluation=replace(full.evaluation, every=full.evaluation.every * full.federation.T),
    )
    K, T = full.federation.K, full.federation.T
    between = [(f"K = {K}, i.i.d., T = 1", iid_T1), (f"K = {K}, i.i.d., T = {T}", iid)]
    rungs = [
        ("Server only", server_only),
        ("Central FixMatch", central),
        *(between if every_rung else ()),
        (f"K = {K}, R = {full.partition.R_nominal:g}, T = {T}", full),
    ]
    return [
        Cell(label=label, setting={"rung": label}, experiment=experiment, role="ladder") for label, experiment in rungs
    ]


STAND_INS = {"demo": " (stand-in: 8x8 digits)", "laptop": " (stand-in: MNIST)"}

NOTES = {
    "laptop": (
        "MNIST with 100 labels stands in for EMNIST, which cannot be had here whole and does not learn in the time; "
        f"10 clients, 100 rounds of which the server is alone in the first {LAPTOP_WARM_START}.",
        "Cohorts keep their share of the clients: 2, 6 and 10 of 10 stand for 10, 30 and 47 of 47; groups: 2.",
        "Selection: the last round's model. Test data chose nothing; settings were chosen on labels held out.",
    ),
    "demo": (
        "scikit-learn's 8x8 handwritten digits with 50 labels stand in for EMNIST; 6 clients, 100 rounds.",
        "Selection: the last round's model.",
    ),
}


def cohorts(name: str, profile: str) -> Item:
    """Figures 6 and D.1 to D.4: the runs of Table 2, with the exact gradients measured where the figure shows them."""
    published = read_published(f"ssfl/{name}")
    cells = [cell for cell in tab2(profile).cells if cell.role != "ladder"]
    if published.get("measured", False):
        cells = [replace(cell, experiment=_measured(cell.experiment)) for cell in cells]
    return Item(
        name=f"ssfl/{name}",
        title=published["title"] + STAND_INS.get(profile, ""),
        profile=profile,
        cells=tuple(cells),
        claims=claims_of(published),
        seeds={"demo": 3, "laptop": 5}.get(profile, published["seeds"]),
        notes=NOTES.get(profile, tuple(published["notes"])),
        margin=published.get("margin"),
    )


def _measured(experiment: Experiment) -> Experiment:
    """With gradient diversity ten times a run, as released (epoch_interval = E / 10), or as the profile has it."""
    every = experiment.evaluation.gradient_diversity_every
    if not every:
        scale = SCALES.get(experiment.profile)
        every = scale.measured_every if scale else experiment.federation.rounds // 10
    return replace(experiment, evaluation=replace(experiment.evaluation, gradient_diversity_every=every))


ITEMS: Mapping[str, Callable[[str], Item]] = {
    "tab2": tab2,
    **ssfl_items.items(),
    **{name: partial(cohorts, name) for name in ("fig6", "figd1", "figd2", "figd3", "figd4")},
}
