"""Build the experiments of SSFL (arXiv:2008.11364) from the lines of its Table A.2, with the source of each number.

A number that Table A.2 does not give is from the released code, with its line.
`results/published/ssfl/` contains the rows. Every pair of grouping and FedAvg gets the control that
the paper lacks.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal

from benchmark.data.datasets import entry_of
from benchmark.data.partition import ClassSkew
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.central import FixMatch
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import FedAvg, Grouping, SelfTraining
from benchmark.optimizer import Cosine
from benchmark.papers.item import Cell
from benchmark.papers.paper import BY_THE_PAPER, Factor, Paper, Rule, Variant, on_cifar10
from benchmark.papers.scale import FULL_SIZE, REDUCED, Scale, experiment_of, reduced_settings
from benchmark.papers.table import items

BATCH_SIZE = 64  # B of Table A.1
STEPS_PER_EPOCH = 65536 // BATCH_SIZE  # M / B of Table A.1
# Table 3: 1000 images per epoch (--k_img 1000, run_cifar10_res9.sh); an incomplete batch is left out.
RESNET9_STEPS_PER_EPOCH = 1000 // BATCH_SIZE

# E of Table A.1. It has no row for STL-10, which gets CIFAR-10's.
EPOCHS = {"cifar10": 300, "svhn": 40, "emnist_balanced": 100, "stl10": 300}
REPORTING_STEPS = 16


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One cell of a table: the columns of Table A.2, and the values that determine its network and length."""

    data: Literal["cifar10", "svhn", "emnist_balanced", "stl10"]
    method: str
    labels: Literal["server", "everywhere", "every_client", "share"] = "server"
    R: float  # nominal heterogeneity
    T: int
    N_s: int
    K: int
    C: int
    S: int | None = None  # groups, or None without grouping
    network: Literal["emnist_cnn", "resnet9", "resnet18", "vgg11"]
    norm: Literal["gn", "bn", "none"]
    E: int  # epochs of M / B local steps
    cohort: str | None = None  # its name in Table 2, which has separate reduced settings
    measured: bool = False  # whether exact gradient diversities are measured


def as_published(setting: Setting) -> Setting:
    """Return the setting with the values of Table A.2 and section 3.4, where these differ from the released code.

    Table 3 has T = 100 over CIFAR-10's length (row 50). EMNIST's network has GN, since both arms of
    section 4 are "CRL + GN".
    """
    if setting.network == "resnet9":
        return replace(setting, T=100, E=EPOCHS["cifar10"])
    return replace(setting, norm="gn") if setting.network == "emnist_cnn" else setting


@cache
def experiment(setting: Setting, rule: Rule = "released_code") -> Experiment:
    """Return the setting's experiment at the paper's scale. Raise ConfigError if grouping has no number of groups.

    `rule` decides whether the paper or the released code is followed where they contradict each
    other. The published numbers came from the code. reports/ssfl/departures.md lists every
    difference.
    """
    follows_paper = rule == "paper"
    steps_per_epoch = STEPS_PER_EPOCH
    if follows_paper:
        setting = as_published(setting)
    elif setting.network == "resnet9":
        steps_per_epoch = RESNET9_STEPS_PER_EPOCH
    # Rows 38-40 give T = 1 for the one participant with all images. Its round is a reporting unit, as long as other
    # rounds.
    T = REPORTING_STEPS if setting.method == "FixMatch" else setting.T
    rounds = setting.E * steps_per_epoch // T
    # A tenth of the epochs lies between two measurements, as in the released code (train_parallel.py:
    # epoch_interval). EMNIST's runs are the runs of Table 2, which shows no diversities; FixMatch has no cohort.
    measured = setting.method != "FixMatch" and (setting.measured or setting.data != "emnist_balanced")
    fields: dict[str, Any] = {
        **_labels(setting),
        "federation.T": T,
        "federation.rounds": rounds,
        "evaluation.every": steps_per_epoch // T,  # once per epoch, as in the released code
        "evaluation.gradient_diversity_every": rounds // 10 if measured else 0,
    }
    optimizer, steps = _optimizer(setting, rule)
    if steps:
        fields["optimizer.schedule.steps"] = steps
    if setting.method == "Grouping":
        if setting.S is None:
            raise ConfigError("S is missing, but grouping needs a number of groups; choose 1 or more")
        # In the released code 10, 10, 10, 10, 7 at C = 47, S = 5, and 2 and 1 at C = 3, S = 2.
        fields["method.averaging"] = {"kind": "grouping", "S": setting.S, "sizes": rule}
        # In section 3.3 a client starts from its last group's mean, which needs all clients in each round.
        if follows_paper and setting.C == setting.K:
            fields["method.client_start"] = "paper"
    if setting.method == "DataSharing":  # the paper does not specify the initial training on G: one epoch
        fields["method.warm_start_rounds"] = STEPS_PER_EPOCH // setting.T
    if follows_paper:  # the paper has no cutout
        fields["data.augmentation.strong.cutout"] = 0.0
    fedmatch = setting.labels if setting.method == "FedMatch" else None
    return experiment_of("ssfl", {**vars(setting), "optimizer": optimizer, "fedmatch": fedmatch}, fields)


def _labels(setting: Setting) -> dict[str, Any]:
    """Return the fields for N_s labels: at the server, int(N_s / d) per class
    (utils_v2.py:477-487), or equally at all clients.

    Clients have labels of every class ("every_client", FedMatch's setting) or in proportion to
    their classes ("share").
    """
    data = entry_of(setting.data)
    each = setting.N_s // data.num_classes
    if setting.labels == "every_client":
        return {"data.N_s": 0, "data.labels_per_client": each // setting.K}
    if setting.labels == "share":
        return {"data.N_s": 0, "data.labelled_share": setting.N_s / data.train}
    return {"data.N_s": each * data.num_classes}


def _optimizer(setting: Setting, rule: Rule) -> tuple[str, int | None]:
    """Return the optimizer's name in ssfl.toml, and the length of its schedule if that depends on the line."""
    if setting.method == "FedMatch":
        return "fedmatch", None
    data = "cifar10" if setting.data == "stl10" else setting.data
    if rule == "paper":
        return f"{data}, printed", None if data == "emnist_balanced" else setting.E * STEPS_PER_EPOCH
    if setting.method == "Self-training":
        return "self-training", None
    if setting.network == "resnet9":  # the script's epochs if clients have the labels
        return "resnet9", (1024 if setting.labels == "server" else setting.E) * RESNET9_STEPS_PER_EPOCH
    return data, setting.E * STEPS_PER_EPOCH if data == "svhn" else None


def control_of(grouping: Experiment) -> Experiment:
    """Return FedAvg with the weight of the server in a group, 1/(C/S + 1): the control that the paper lacks."""
    C, S = grouping.federation.C, grouping.method.averaging.S
    method = replace(grouping.method, averaging=FedAvg(server_weight=1 / (C / S + 1)))
    return replace(grouping, method=method)


REDUCED_T = 16  # local steps of the rounds that ssfl.toml counts


def scale(setting: Setting, profile: str) -> Scale:
    """Return the reduced setting of a line; its length in rounds depends on T."""
    return scaled_by(reduced_settings("ssfl")[profile]["table_2" if setting.cohort else "others"], setting)


def scale_on_cifar10(setting: Setting, profile: str) -> Scale:
    """Return the reduced setting on CIFAR-10 of a line of Table 2 or of Figures 2 and 6."""
    return scaled_by(reduced_settings("ssfl")[profile]["table_2_cifar10"], setting)


def scaled_by(reduced: Scale, setting: Setting) -> Scale:
    """Return a reduced setting of ssfl.toml with the fields that depend on the line."""
    assert reduced.model and reduced.evaluation and reduced.rounds and reduced.warm_start_rounds
    evaluation = reduced.evaluation
    if not (setting.measured or reduced.own["always_measured"]):
        evaluation = replace(evaluation, gradient_diversity_every=0)
    grouping = {"averaging": Grouping(S=min(2, setting.S))} if setting.S else {}
    chosen = replace(
        reduced,
        data={**reduced.data, **_reduced_labels(setting, reduced)},
        model=replace(reduced.model, norm="bn" if setting.norm == "bn" else "gn"),
        method={"unlabelled_ratio": 1, **grouping},  # FixMatch's ratio, and two groups if the paper has any
        evaluation=evaluation,
        # FedMatch keeps its optimizer, because its losses diverge at the learning rate of the others.
        optimizer=None if setting.method == "FedMatch" else reduced.optimizer,
    )
    if setting.cohort:
        # Relative to Table 2's 47; at least two.
        return replace(chosen, C=max(2, round(setting.C / 47 * (chosen.K or 1))))
    T = REPORTING_STEPS if setting.method == "FixMatch" else setting.T
    # Table 3 has a separate length.
    longer = 1.0 if setting.network == "resnet9" else setting.E / EPOCHS[setting.data]
    # A cohort has at least two clients; if all clients take part in the paper, all take part in this suite.
    C = min(max(min(2, setting.C), round(setting.C * reduced.own["share"])), reduced.own["largest_cohort"])
    K = C if setting.C == setting.K else min(round(setting.K * reduced.own["share"]), reduced.own["most_clients"])

    def rounds_of(rounds: int) -> int:
        return rounds * REDUCED_T // T

    return replace(
        chosen,
        warm_start_rounds=rounds_of(reduced.warm_start_rounds),
        K=K,
        C=C,
        rounds=round(reduced.rounds * REDUCED_T * longer) // T,
        evaluation=Evaluation(
            every=max(1, rounds_of(evaluation.every)),
            gradient_diversity_every=rounds_of(evaluation.gradient_diversity_every),
        ),
    )


def _reduced_labels(setting: Setting, reduced: Scale) -> dict[str, Any]:
    """Return the labels of the reduced setting, with the paper's ratio of N_s.

    If clients have the labels, each client has a share of its images labelled, because 5 labels of
    each class are too many.
    """
    N_s = reduced.data["N_s"] * (setting.N_s // entry_of(setting.data).num_classes) // 100
    if setting.labels in ("every_client", "share"):
        share = N_s / reduced.own["client_images"]
        return {"N_s": 0, "label_setting": "share", "labelled_share": share, "labels_per_client": 5}
    return {"N_s": N_s}


# Cells that the suite adds to the paper's cells.

COUNTERPARTS = ("FedAvg", "CRL with GN")  # counterparts of grouping: "FedAvg", and in section 3 "CRL with GN"
CONTROL = "Control"


def additions(name: str, cells: Sequence[Cell]) -> Iterable[Cell]:
    yield from controls(cells)
    if name == "fig5_right":
        yield from all_labelled(cells)
    if name == "tabh1":
        yield from solutions(next(cell for cell in cells if cell.label == "Grouping/R=0.4"))
    if name == "tab2":
        yield from ladder(next(cell.experiment for cell in cells if cell.label == "FedAvg/full"))


def controls(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Return the control of every grouping cell that has a FedAvg counterpart."""
    by_label = {cell.label: cell for cell in cells}
    for label, cell in by_label.items():
        if any(label.replace("Grouping", other) in by_label for other in COUNTERPARTS if "Grouping" in label):
            yield cell.companion(CONTROL, control_of(cell.experiment), note=cell.note)


def all_labelled(cells: Iterable[Cell]) -> Iterator[Cell]:
    """Return supervised training on all images of each data set.

    Section 4.1 ends with "the extreme case where the server has the entire labeled training
    dataset". Clients then have nothing to add, so that one participant trains.
    """
    first: dict[object, Cell] = {}
    for cell in cells:
        first.setdefault(cell.setting["data"], cell)
    for cell in first.values():
        e = cell.experiment
        method = "All labels at the server"
        supervised = replace(
            e,
            data=replace(e.data, label_setting="everywhere"),
            partition=ClassSkew(R=0.0),
            method=ServerOnly(batch_size=e.method.server_batch_size, images="everyones"),
            federation=replace(e.federation, K=1, C=1),
            evaluation=replace(e.evaluation, gradient_diversity_every=0),
        )
        note = "ours: all training images are labelled at the server, where section 4.1 ends"
        data = cell.setting["data"]
        added = cell.companion(method, supervised, label=f"{data}/{method}", note=note)
        yield replace(added, setting={"data": data, "method": method})


def solutions(grouping: Cell) -> Iterator[Cell]:
    """Return the other solutions of the paper with labels at the clients, in the setting of a grouping cell.

    Appendix H: "All of our solutions discussed in the main paper apply directly to this different
    scenario." Self-training has the network of "CRL with BN", as in Table I.1.
    """
    e = grouping.experiment
    crl = replace(e.method, averaging=FedAvg())
    self_training = replace(crl, objective=SelfTraining(threshold=crl.objective.threshold), bn_statistics="slot")
    methods: dict[str, tuple[Any, Any]] = {
        "Self-training": (self_training, "bn"),
        "CRL with BN": (crl, "bn"),
        "CRL with GN": (crl, "gn"),
    }
    for name, (method, norm) in methods.items():
        experiment = replace(e, method=method, model=replace(e.model, norm=norm))
        yield grouping.companion(name, experiment, note="ours: appendix H tests only grouping")


def ladder(full: Experiment) -> list[Cell]:
    """Return the cumulative ablation from the supervised baseline to the federated setting, on
    Table 2's own setting.

    Under `laptop`, the learning rate .02 is also the best for the supervised baseline: the mean
    accuracy of seeds 70 to 72 on 1,000 labels held out at the server is .912, .916, .921, .911 at
    .005, .01, .02, .05.
    """
    batch, warm = full.method.batch_size, full.method.warm_start_rounds
    K, T = full.federation.K, full.federation.T
    iid = replace(full, partition=ClassSkew(R=0.0))
    iid_T1 = replace(
        iid,
        federation=replace(full.federation, T=1, rounds=full.federation.rounds * T),
        method=replace(full.method, warm_start_rounds=warm * T),
        evaluation=replace(full.evaluation, every=full.evaluation.every * T),
    )
    rungs = {
        "Server only": replace(full, method=ServerOnly(batch_size=batch)),
        "Central FixMatch": replace(
            full, method=FixMatch(batch_size=batch, unlabelled_ratio=1, warm_start_rounds=warm)
        ),
        f"K = {K}, i.i.d., T = 1": iid_T1,
        f"K = {K}, i.i.d., T = {T}": iid,
        f"K = {K}, R = {full.partition.R_nominal:g}, T = {T}": full,
    }
    if full.profile == "demo":  # a table of two minutes has no time for the two rungs between
        rungs = {label: rung for label, rung in rungs.items() if "i.i.d." not in label}
    return [Cell(label=label, setting={"rung": label}, experiment=e, role="ladder") for label, e in rungs.items()]


def epochs_of(setting: Setting, e: Experiment) -> Factor:
    """Return E of the run; in a reduced setting, its length as a multiple of the length of the other runs."""
    if e.profile in REDUCED:
        return f"{setting.E / EPOCHS[setting.data]:g} x the rounds"
    return round(e.federation.rounds * e.federation.T / STEPS_PER_EPOCH)


CIFAR10 = Setting(
    data="cifar10", method="FedAvg", R=0.4, T=16, N_s=1000, K=10, C=10, network="resnet18", norm="gn", E=300
)


def stretched(base: Experiment, rule: Rule) -> Experiment:
    """Return the base with CIFAR-10's schedule stretched over its local steps, and with a separate learning rate.

    In the paper's schedule the rate falls to the floor and rises again; in the released code's, it
    falls once and stays.
    """
    # One CIFAR-10 epoch, in the base's local steps.
    epoch = base.federation.T * base.federation.rounds / EPOCHS["cifar10"]
    full = experiment(CIFAR10, rule).optimizer.schedule
    assert isinstance(full, Cosine) and full.steps is not None
    schedule = replace(
        full,
        warmup_steps=round(full.warmup_steps / STEPS_PER_EPOCH * epoch),
        steps=round(full.steps / STEPS_PER_EPOCH * epoch),
    )
    return replace(base, optimizer=replace(base.optimizer, schedule=schedule))


# The items as in the paper. Reduced settings have numbers of their own.
PRINTED = Variant(
    suffix=BY_THE_PAPER,
    title="as in the paper",
    note="Settings follow the paper where the released code contradicts it. The code behind the published numbers "
    "was different.",
    experiment=partial(experiment, rule="paper"),
    profiles=FULL_SIZE,
    named_by="Settings follow the released code where it contradicts the paper; the deviations list every field. "
    "{name} follows the paper (--rule paper).",
    family=BY_THE_PAPER,
)
ON_CIFAR10 = on_cifar10(scale_on_cifar10, ("tab2", "fig2", "fig6"))
PAPER = Paper(
    name="ssfl",
    setting=Setting,
    experiment=experiment,
    variants=(PRINTED, ON_CIFAR10),
    scale=scale,
    usual=lambda setting: {"E": EPOCHS[setting.data]},
    additions=additions,
    bounded=True,
    factors={"E": epochs_of},
    changes={
        "printed_schedule": lambda e: stretched(e, "paper"),
        "released_schedule": lambda e: stretched(e, "released_code"),
    },
)
TABLES = ("tab2", "tab1", "tab3", "tab4", "tab5", "tabd1", "tabe1", "tabf1", "tabg1", "tabh1", "tabi1", "tabj1")
FIGURES = (
    "fig2",
    "fig3",
    "fig4",
    "fig5_left",
    "fig5_middle",
    "fig5_right",
    "figb1",
    "figc1",
    "fig6",
    "figd1",
    "figd2",
    "figd3",
    "figd4",
)
ITEMS = items(PAPER, (*TABLES, *FIGURES))
