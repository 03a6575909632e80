"""Labels alone: the bound that every method has to beat.

A bound trains on the same labels as the cells of an item, in as many steps on them, and on nothing else. Where the
server holds the labels, the server trains; where clients hold them, the labelled clients train.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmark.data.partition import ClassSkew
from benchmark.experiment import Experiment
from benchmark.methods.central import Central
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.supervised_fl import SupervisedFL
from benchmark.papers.item import UNTRAINED, Cell

ALONE, ALONE_NOTE = "Labels alone", "ours: the bound that every method has to beat"


def steps_on_labels(e: Experiment) -> int:
    """Local steps of the server in one round."""
    size = getattr(e.method, "server_batch_size", e.method.batch_size)
    steps = (e.federation.epochs or 0) * math.ceil(e.data.N_s / size) or e.federation.T
    return steps * getattr(e.method, "server_epochs_each", 1)


def labels_alone(e: Experiment) -> Experiment:
    """The bound of an experiment: its labels alone, in as many steps on them a round."""
    size = getattr(e.method, "server_batch_size", e.method.batch_size)
    if e.data.label_setting == "server":
        method: Any = ServerOnly(batch_size=size)
        federation = replace(e.federation, T=steps_on_labels(e), epochs=None)
    else:
        method = SupervisedFL(batch_size=getattr(e.method, "labelled_batch_size", size))
        federation = e.federation
    optimizer = replace(e.optimizer, lr=e.optimizer.server_lr or e.optimizer.lr, server_lr=None)
    return replace(e, method=method, federation=federation, optimizer=optimizer)


def bound(alone: Experiment) -> Cell:
    """The cell of a bound."""
    return Cell(label=ALONE, setting={"method": ALONE}, experiment=alone, role="bound", note=ALONE_NOTE)


def lacking(
    cells: Sequence[Cell], alone: Callable[[Experiment], Experiment] = labels_alone
) -> Iterator[tuple[Cell, Experiment]]:
    """Cells without a bound among these, each with the bound that is to be added; each bound once."""
    added: set[str] = set()
    for cell in cells:
        if cell.role not in UNTRAINED and not is_bound(cell) and bound_of(cell, cells) is None:
            its = alone(cell.experiment)
            if its.cell_key not in added:
                added.add(its.cell_key)
                yield cell, its


def bounds(cells: Sequence[Cell]) -> Iterator[Cell]:
    """The bounds that these cells still lack, each once.

    Where the server holds the labels no client takes part. One client that holds all images stands for the clients, so
    that items share the runs.
    """
    for cell, alone in lacking([c for c in cells if c.experiment.data.label_setting not in ("server", "everywhere")]):
        yield cell.companion(ALONE, alone, note=ALONE_NOTE, role="bound")
    at_server = [cell for cell in cells if cell.experiment.data.label_setting == "server"]
    trained = [cell for cell in at_server if not isinstance(cell.experiment.method, Central)]
    added = list(lacking(trained, lambda e: _without_clients(labels_alone(e))))
    norms = {alone.model.norm for _, alone in added}
    for cell, alone in added:
        name = ALONE if len(norms) == 1 else f"{ALONE}, {alone.model.norm.upper()}"
        setting = cell.setting if len(added) > 1 else {}
        label = name if len(added) == 1 else f"{name}, beside {cell.label}"
        yield replace(bound(alone), label=label, setting={**setting, "method": name})


def _without_clients(alone: Experiment) -> Experiment:
    return replace(
        alone,
        partition=ClassSkew(R=0.0),
        federation=replace(alone.federation, K=1, C=1),
        evaluation=replace(alone.evaluation, gradient_diversity_every=0),
    )


def is_bound(cell: Cell) -> bool:
    """Whether the cell trains on labels alone."""
    e = cell.experiment
    server = isinstance(e.method, ServerOnly) and e.method.images == "servers"
    clients = isinstance(e.method, SupervisedFL) and e.data.label_setting not in ("server", "everywhere")
    return cell.setting.get("method") == ALONE or (e.data.label_setting != "everywhere" and (server or clients))


def bound_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """The bound of a cell among these cells; None for a bound, and where there is none of the cell's labels.

    Labels at clients: the bound has the same clients. All labels at one more client are compared with the server's.
    """
    mine = cell.experiment
    if is_bound(cell):
        return None
    at_server = mine.data.label_setting in ("server", "one_more_client")
    for candidate in filter(is_bound, cells):
        alone = candidate.experiment
        if at_server:
            same_steps = _steps(alone) == _steps(mine) or mine.data.label_setting == "one_more_client"
            alike = (alone.data.name, alone.data.N_s, alone.model) == (mine.data.name, mine.data.N_s, mine.model)
            if alone.data.label_setting == "server" and alike and same_steps:
                return candidate
        elif (alone.data, alone.partition, alone.federation.K) == (mine.data, mine.partition, mine.federation.K):
            return candidate
    return None


def _steps(e: Experiment) -> int:
    """Local steps of the server in the whole run."""
    return e.federation.rounds * steps_on_labels(e)
