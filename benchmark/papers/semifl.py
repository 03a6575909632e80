"""Build the experiments of SemiFL (arXiv:2106.01432) from its published lines, with the section or
table of each number.

A number that the paper does not give is from the released code (dem123456789/SemiFL, 4ec3663,
paths under src/).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from benchmark.data.datasets import entry_of
from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.central import Central
from benchmark.methods.flfl import FL2
from benchmark.methods.semifl import SemiFL
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.models.build import Model
from benchmark.optimizer import Cosine, Optimizer
from benchmark.papers import ssfl
from benchmark.papers.bounds import ALONE, bound, steps_on_labels
from benchmark.papers.item import Cell
from benchmark.papers.paper import Paper
from benchmark.papers.scale import REDUCED, Scale, experiment_of, reduced_settings
from benchmark.papers.table import items

SECTION_4 = (100, 2500)  # numbers of labels that only section 4 names, for SVHN
# Of a group norm, as in HeteroFL's released code (models/conv.py). 32 groups do not fit WResNet28x2's 16 channels.
NORM_GROUPS = 4


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of a table of SemiFL."""

    method: str = "SemiFL"
    data: str = "cifar10"
    N_s: int | Literal["all"]
    partition: str = "IID"
    E: int = 5  # Table 5: epochs of clients and server
    beta_g: float = 0.5  # Table 5: global momentum
    mixup: Literal["yes", "no"] = "yes"
    # Table 6: the participants with images for the statistics.
    sBN: Literal["server", "server and clients"] = "server and clients"
    # Table 2: whether server and clients train in turns, and the norm of the network.
    training: Literal["Alternate", "Parallel"] = "Alternate"
    normalization: Literal["sBN", "GN", "IN", "LN"] = "sBN"
    order: Literal["paper", "released_code"] = "paper"  # who trains first in a round
    rounds: int = 800  # Table 3


@cache
def experiment(setting: Setting) -> Experiment:
    """Return the line's experiment as published.

    Raise ConfigError for a value that its field does not allow, and for an unknown method.
    """
    if setting.method in ("FedMatch", "FedRGD"):
        return ssfl_table_3(setting)
    all_labels = setting.N_s == "all"
    fields: dict[str, Any] = {}
    if all_labels:  # the server needs an image of each class
        fields = {"data.N_s": 10, "data.label_setting": "everywhere"}
    # Table 5: 250 with 4,000 labels and with SVHN's 1,000; if not, 10. Released code: 250 above 1,000 labels, and
    # with all labels (utils.py:145-148).
    size = 250 if setting.N_s == "all" or setting.N_s >= 1000 else 10
    if setting.method == "SemiFL":
        fields |= {
            "method.mix_weight": 1.0 if setting.mixup == "yes" else 0.0,  # lambda (utils.py:115-185)
            "method.server_momentum": setting.beta_g,
            "method.server_batch_size": size,
            "method.statistics": "server" if setting.sBN == "server" else "server_and_clients",
            "method.training": setting.training.lower(),
            "method.order": setting.order,
            "model.norm": setting.normalization.lower(),
            "federation.epochs": setting.E,  # in the row E = 1 we assume that the server's E equals the clients'
        }
        if setting.normalization == "GN":
            fields["model.norm_groups"] = NORM_GROUPS
    elif setting.method.endswith("Supervised"):
        fields |= {
            "method.batch_size": size,
            "method.images": "everyones" if all_labels else "servers",
            "federation.T": (entry_of(setting.data).train if setting.N_s == "all" else setting.N_s) // size,
        }
    return experiment_of("semifl", vars(setting), fields)


def ssfl_table_3(setting: Setting) -> Experiment:
    """Return FedMatch or FedRGD as in SSFL's own Table 3, where "non-iid" is one class per client,
    with cohorts of 5.
    """
    R = 0.0 if setting.partition == "IID" else 1.0
    theirs = replace(ssfl.CIFAR10, R=R, T=5, N_s=5000, K=100, C=5, network="resnet9", E=200)
    if setting.method == "FedMatch":
        return ssfl.experiment(replace(theirs, method="FedMatch", norm="none"))
    return ssfl.experiment(replace(theirs, method="Grouping", S=2))


TABLE_5 = experiment(Setting(N_s=4000)).optimizer


def scale(setting: Setting, profile: str) -> Scale:
    """Return the reduced setting of a line, which is the same for both data sets of the paper; "few"
    labels replace 250, and in section 4's setting of SVHN 100.
    """
    table = reduced_settings("semifl")[profile]["section_4" if setting.N_s in SECTION_4 else "both"]
    N_s = table.own["few" if setting.N_s in (250, min(SECTION_4)) else "many"]
    reduced = _sized(table, setting, N_s)
    match setting.method:
        case "SemiFL":
            return _of_semifl(reduced, setting)
        case "Partially Supervised" | "Fully Supervised":
            return _of_supervised(reduced, N_s)
        case "FedMatch" | "FedRGD":
            return _as_in_ssfl(reduced, setting)
        case "HeteroFL":
            return reduced
    if isinstance(experiment(setting).method, Central):
        return _of_central(reduced, setting, N_s)
    return _of_supervised_federation(reduced, setting)


def _sized(table: Scale, setting: Setting, N_s: int) -> Scale:
    """Return the reduced setting with the labels of the line and the images that clients have, if it limits them."""
    labels = {"N_s": 10 if setting.N_s == "all" else N_s}
    held = table.own["client_images"]
    images = {"images": held + table.data["N_validation"] + labels["N_s"]} if held else {}
    least = {"min_size": table.own["least_images"]} if "Dir" in setting.partition else {}
    return replace(table, data={**table.data, **images, **labels}, partition=least)


def _network(reduced: Scale) -> str:
    """Return the network that replaces the paper's, or "" if the paper's own is used."""
    return reduced.model.network if reduced.model else ""


def _of_semifl(reduced: Scale, setting: Setting) -> Scale:
    """Return the scale with the line's norm.

    In the paper a client makes five passes, and with E = 1 one pass: a fifth of the steps that replace them.
    """
    model = replace(experiment(setting).model, network=_network(reduced))
    return replace(reduced, model=model, T=max(1, reduced.T * setting.E // 5) if reduced.T else None)


def _of_supervised(reduced: Scale, N_s: int) -> Scale:
    """Return the scale with the batches, steps and learning rate of SemiFL's server."""
    size = reduced.server_batch_size or reduced.batch_size
    return replace(reduced, batch_size=size, T=reduced.T or 5 * N_s // (size or 1), optimizer=TABLE_5)


def _of_central(reduced: Scale, setting: Setting, N_s: int) -> Scale:
    """Return the scale of a centralised method."""
    # The paper's average of weights covers .1 % of its 2^20 steps; this one covers 1 % of the steps or more.
    fields = {"unlabelled_ratio": 1, "ema": 0.95}
    if setting.method == "MixMatch":
        # The paper reaches the weight of 100 after 16,384 steps, and this cell at once; digits, seed 50: 26 % with
        # 100, and 89 % with 10.
        fields["unlabelled_weight"] = 10.0
    return replace(
        reduced,
        T=reduced.T or N_s,
        model=Model(network=_network(reduced), norm="bn"),
        method=fields,
        optimizer=Optimizer(schedule=Cosine(c=0.4375)),
    )


def _as_in_ssfl(reduced: Scale, setting: Setting) -> Scale:
    """Return the scale of FedMatch or FedRGD as in SSFL's own reduced settings."""
    model = Model(network=_network(reduced), norm="gn", norm_groups=4)
    for_fedrgd = Optimizer(lr=0.02, schedule=Cosine(c=0.4375)) if setting.method == "FedRGD" else None
    return replace(reduced, model=model, T=reduced.T or 16, optimizer=for_fedrgd)


def _of_supervised_federation(reduced: Scale, setting: Setting) -> Scale:
    """Return the scale of a method for labelled clients: a network without norm, and the paper's share of SemiFL's
    rounds.
    """
    rounds = setting.rounds * (reduced.rounds or 1) // 800
    reduced = replace(reduced, model=Model(network=_network(reduced), norm="none"), rounds=rounds)
    if setting.method != "LG-FedAvg":
        return reduced
    evaluation = Evaluation(every=max(1, rounds // 9))
    return replace(reduced, method={"fedavg_rounds": rounds * 8 // 9}, evaluation=evaluation)


def additions(name: str, cells: Sequence[Cell]) -> Iterable[Cell]:
    """Return the suite's supervised baselines, and the control of Table 3.

    In the ablations, the supervised baseline consists of rounds without clients, with the norm of
    each network. In Table 1, (FL)^2 appears next to SemiFL.
    """
    if name in ("tab4", "fig4", "tab6"):
        yield from labels_alone(cells)
    if name == "ingredients":
        yield from labels_alone_by_norm(cells)
    if name == "tab3":
        yield from controls(cells)
    if name == "tab1":
        yield from flfl(cells)


def labels_alone(cells: Sequence[Cell]) -> Iterable[Cell]:
    """Return a supervised baseline for each number of labels and of steps on them.

    The statistics of sBN are computed on all participants' images, as in the other cells.
    """
    last = {(cell.experiment.data.N_s, steps_on_labels(cell.experiment)): cell for cell in cells}
    amounts = dict(zip(sorted({N_s for N_s, _ in last}), ("fewer", "more"), strict=False))
    most = max(steps for _, steps in last)
    for (N_s, steps), like in sorted(last.items(), key=lambda entry: entry[0]):
        full = like.experiment
        cell = bound(replace(full, method=replace(full.method, warm_start_rounds=full.federation.rounds)))
        if len(amounts) > 1:
            cell = replace(cell, label=f"{ALONE}/{amounts[N_s]}", setting={**cell.setting, "N_s": N_s})
        elif steps < most:
            cell = replace(cell, label=f"{ALONE}/fewer steps", setting={"E": like.setting["E"], **cell.setting})
        yield cell


def labels_alone_by_norm(cells: Sequence[Cell]) -> Iterable[Cell]:
    """Return a supervised baseline for each norm, with the statistics of i.i.d. clients; the sBN
    baseline is Table 4's.
    """
    for cell in cells:
        e = cell.experiment
        if cell.setting["partition"] == "IID" and cell.setting["training"] == "Alternate":
            method = replace(e.method, order="paper", warm_start_rounds=e.federation.rounds)
            alone = bound(replace(e, method=method))
            norm = cell.setting["normalization"]
            setting = {**alone.setting, "normalization": norm}
            yield replace(alone, label=f"{ALONE}, {norm}", setting=setting)


def controls(cells: Sequence[Cell]) -> Iterable[Cell]:
    """Return supervised FedAvg with SemiFL's backbone, sBN, strong augmentation and global
    momentum, trained equally long.

    This control excludes the "two major reasons" for SemiFL's lead over supervised methods (section
    4).
    """
    for cell in cells:
        e = cell.experiment
        if not isinstance(e.method, SemiFL):
            continue
        images = e.data.images and e.data.images - e.data.N_s + 10
        method = SupervisedFL(
            batch_size=e.method.batch_size,
            weighting="uniform",
            view="strong",
            server_momentum=e.method.server_momentum,
        )
        control = cell.companion(
            "Control",
            replace(e, data=replace(e.data, N_s=10, label_setting="everywhere", images=images), method=method),
            note="ours: supervised FedAvg with SemiFL's backbone, sBN, strong augmentation and global momentum",
        )
        yield replace(control, setting={**control.setting, "N_s": "all"})


def flfl(cells: Sequence[Cell]) -> Iterable[Cell]:
    """Return (FL)^2 in SemiFL's place, for two partitions that the paper of (FL)^2 also has.

    Table 4 of its paper has the optimizer of SemiFL's Table 5.
    """
    for cell in cells:
        e = cell.experiment
        if isinstance(e.method, SemiFL) and cell.setting["partition"] in ("IID", "Non-IID, Dir(0.3)"):
            of_profile = e.method.batch_size if e.profile in REDUCED else FL2.batch_size
            same = {name: getattr(e.method, name) for name in ("server_batch_size", "warm_start_rounds")}
            method = FL2(batch_size=of_profile, **same)
            yield cell.companion("(FL)^2", replace(e, method=method), note="ours: a method from 2024 in SemiFL's place")


PAPER = Paper(
    name="semifl",
    setting=Setting,
    experiment=experiment,
    scale=scale,
    additions=additions,
    factors={
        "N_s": lambda setting, e: "all" if setting.N_s == "all" else e.data.N_s,
        "E": lambda setting, e: e.federation.epochs or f"{e.federation.T} steps",
    },
)
ITEMS = items(PAPER, ("tab1", "tab3", "tab4", "tab6", "fig3", "fig4", "fig5", "ingredients", "svhn"))
