"""Cells of ours beside a paper's: controls, and labels alone, the bound that every method has to beat."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from benchmark.data.partition import ClassSkew
from benchmark.experiment import Experiment
from benchmark.methods.central import Central
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.papers.item import UNTRAINED, Cell

ALONE, ALONE_NOTE = "Labels alone", "ours: the bound that every method has to beat"


def ours(
    cell: Cell,
    method: str,
    experiment: Experiment,
    *,
    label: str = "",
    note: str = "",
    role: Literal["control", "bound"] = "control",
) -> Cell:
    """A cell of ours beside the paper's, in its place, with another method's name. `label`: where that name alone would
    not tell it apart."""
    return replace(
        cell,
        label=label or cell.label.replace(str(cell.setting["method"]), method),
        setting={**cell.setting, "method": method},
        experiment=experiment,
        published={},
        role=role,
        note=note,
    )


def steps_on_labels(e: Experiment) -> int:
    """Of the server, a round."""
    size = getattr(e.method, "server_batch_size", e.method.batch_size)
    steps = (e.federation.epochs or 0) * math.ceil(e.data.N_s / size) or e.federation.T
    return steps * getattr(e.method, "server_epochs_each", 1)


def labels_alone(cell: Cell) -> Cell:
    """The bound beside a cell: its labels alone, in as many steps on them a round; ours, and in no paper's table."""
    e = cell.experiment
    size = getattr(e.method, "server_batch_size", e.method.batch_size)
    if e.data.label_setting == "server":
        method: Any = ServerOnly(batch_size=size)
        federation = replace(e.federation, T=steps_on_labels(e), epochs=None)
    else:
        size = getattr(e.method, "labelled_batch_size", size)  # of a client, where it is another
        method, federation = SupervisedFL(batch_size=size), e.federation
    rate = e.optimizer.server_lr or e.optimizer.lr
    alone = replace(e, method=method, federation=federation, optimizer=replace(e.optimizer, lr=rate, server_lr=None))
    return bound(alone)


def bound(alone: Experiment) -> Cell:
    return Cell(label=ALONE, setting={"method": ALONE}, experiment=alone, role="bound", note=ALONE_NOTE)


def bounds(cells: Sequence[Cell]) -> Iterator[Cell]:
    """The server's labels alone, once for each way of training on them that no cell has yet. No client takes part: one
    that has all images stands for them, so that items share these runs."""
    found: dict[str, tuple[Cell, Cell]] = {}
    for cell in cells:
        e = cell.experiment
        if cell.role in UNTRAINED or e.data.label_setting != "server" or isinstance(e.method, Central):
            continue
        if not is_bound(cell) and bound_of(cell, cells) is None:
            one = labels_alone(cell).experiment
            federation = replace(one.federation, K=1, C=1)
            evaluation = replace(one.evaluation, gradient_diversity_every=0)
            one = replace(one, federation=federation, evaluation=evaluation, partition=ClassSkew(R=0.0))
            found.setdefault(one.cell_key, (bound(one), cell))
    norms = {alone.experiment.model.norm for alone, _ in found.values()}
    for alone, cell in found.values():
        name = ALONE if len(norms) == 1 else f"{ALONE}, {alone.experiment.model.norm.upper()}"
        place = cell.setting if len(found) > 1 else {}
        label = name if len(found) == 1 else f"{name}, beside {cell.label}"
        yield replace(alone, label=label, setting={**place, "method": name})


def is_bound(cell: Cell) -> bool:
    e = cell.experiment
    server = isinstance(e.method, ServerOnly) and e.method.images == "servers"
    clients = isinstance(e.method, SupervisedFL) and e.data.label_setting not in ("server", "everywhere")
    return cell.setting.get("method") == ALONE or (e.data.label_setting != "everywhere" and (server or clients))


def bound_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """Labels alone beside a cell, in as many steps on them; None for the bounds themselves, and where there is none of
    its labels. Labels at clients: of the same clients; all labels at one more client are the server's."""
    mine = cell.experiment
    if is_bound(cell):
        return None
    at_server = mine.data.label_setting in ("server", "one_more_client")
    for alone in filter(is_bound, cells):
        its = alone.experiment
        if at_server:
            same_steps = _steps(its) == _steps(mine) or mine.data.label_setting == "one_more_client"
            alike = (its.data.name, its.data.N_s, its.model) == (mine.data.name, mine.data.N_s, mine.model)
            if its.data.label_setting == "server" and alike and same_steps:
                return alone
        elif (its.data, its.partition, its.federation.K) == (mine.data, mine.partition, mine.federation.K):
            return alone
    return None


def _steps(e: Experiment) -> int:
    return e.federation.rounds * steps_on_labels(e)
