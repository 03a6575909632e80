"""Build the supervised baselines, which train on labels only: every method should beat its baseline.

A baseline trains only on the same labels as the cells of an item, in the same number of steps. If the server has the
labels, the server trains. If clients have labels, only these clients train.
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

AT_SERVER = ("server", "open")  # label settings with labels at the server only
ALONE, ALONE_NOTE = "Labels alone", "ours: the supervised baseline, which every method should beat"


def steps_on_labels(e: Experiment) -> int:
    """Return the local steps of the server in one round."""
    size = getattr(e.method, "server_batch_size", e.method.batch_size)
    steps = (e.federation.epochs or 0) * math.ceil(e.data.N_s / size) or e.federation.T
    return steps * getattr(e.method, "server_epochs_each", 1)


def labels_alone(e: Experiment) -> Experiment:
    """Return the supervised baseline of an experiment: only its labels, with the same number of
    steps on them per round.
    """
    size = getattr(e.method, "server_batch_size", e.method.batch_size)
    if e.data.label_setting in AT_SERVER:
        method: Any = ServerOnly(batch_size=size)
        federation = replace(e.federation, T=steps_on_labels(e), epochs=None)
    else:
        method = SupervisedFL(batch_size=getattr(e.method, "labelled_batch_size", size))
        federation = e.federation
    optimizer = replace(e.optimizer, lr=e.optimizer.server_lr or e.optimizer.lr, server_lr=None)
    return replace(e, method=method, federation=federation, optimizer=optimizer)


def bound(alone: Experiment) -> Cell:
    """Return the cell of a supervised baseline."""
    return Cell(label=ALONE, setting={"method": ALONE}, experiment=alone, role="bound", note=ALONE_NOTE)


def lacking(
    cells: Sequence[Cell], alone: Callable[[Experiment], Experiment] = labels_alone
) -> Iterator[tuple[Cell, Experiment]]:
    """Yield each of these cells that has no supervised baseline among them, with the baseline to
    add; each baseline once.
    """
    added: set[str] = set()
    for cell in cells:
        if cell.role not in UNTRAINED and not is_bound(cell) and bound_of(cell, cells) is None:
            its = alone(cell.experiment)
            if its.cell_key not in added:
                added.add(its.cell_key)
                yield cell, its


def bounds(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the supervised baselines that these cells still lack, each once.

    If the server has the labels, no client trains in the baseline. The clients are then replaced by
    one client with all images, so that items share the runs.
    """
    not_at_clients = (*AT_SERVER, "everywhere")
    at_clients = [cell for cell in cells if cell.experiment.data.label_setting not in not_at_clients]
    labels: set[str] = set()
    for cell, baseline in lacking(at_clients):
        named_after = _without_differing_values(cell, baseline, at_clients)
        added = named_after.companion(ALONE, baseline, note=ALONE_NOTE, role="bound")
        if added.label in labels:  # the setting of the table does not name the norm
            added = cell.companion(f"{ALONE}, {baseline.model.norm.upper()}", baseline, note=ALONE_NOTE, role="bound")
        labels.add(added.label)
        yield added
    at_server = [cell for cell in cells if cell.experiment.data.label_setting in AT_SERVER]
    trained = [cell for cell in at_server if not isinstance(cell.experiment.method, Central)]
    at_server_added = list(lacking(trained, lambda e: _without_clients(labels_alone(e))))
    norms = {alone.model.norm for _, alone in at_server_added}
    for cell, alone in at_server_added:
        name = ALONE if len(norms) == 1 else f"{ALONE}, {alone.model.norm.upper()}"
        setting = cell.setting if len(at_server_added) > 1 else {}
        label = name if len(at_server_added) == 1 else f"{name}, beside {cell.label}"
        yield replace(bound(alone), label=label, setting={**setting, "method": name})


def _without_differing_values(cell: Cell, baseline: Experiment, cells: Iterable[Cell]) -> Cell:
    """Return the cell without the values in which the cells with this supervised baseline differ; the method stays.

    "A/Q=0" and "A/Q=10" share one baseline, whose label therefore has no Q.
    """
    same = [other for other in cells if labels_alone(other.experiment).cell_key == baseline.cell_key]
    setting = dict(cell.setting)
    label = cell.label
    for key in cell.setting.keys() - {"method"}:
        if any(other.setting.get(key) != cell.setting[key] for other in same):
            del setting[key]
            label = label.removesuffix(f"/{key}={cell.setting[key]}")
    return replace(cell, label=label, setting=setting)


def _without_clients(alone: Experiment) -> Experiment:
    return replace(
        alone,
        partition=ClassSkew(R=0.0),
        federation=replace(alone.federation, K=1, C=1),
        evaluation=replace(alone.evaluation, gradient_diversity_every=0),
    )


def is_bound(cell: Cell) -> bool:
    """Return whether the cell trains only on labels."""
    e = cell.experiment
    server = isinstance(e.method, ServerOnly) and e.method.images == "servers"
    clients = isinstance(e.method, SupervisedFL) and e.data.label_setting not in ("server", "everywhere")
    return cell.setting.get("method") == ALONE or (e.data.label_setting != "everywhere" and (server or clients))


def bound_of(cell: Cell, cells: Iterable[Cell]) -> Cell | None:
    """Return the supervised baseline of a cell among these cells.

    If clients have the labels, the baseline has the same clients. If one more client has all
    labels, the baseline is the server's. Return None for a cell that is a baseline, and if no
    baseline has the cell's labels.
    """
    mine = cell.experiment
    if is_bound(cell):
        return None
    at_server = mine.data.label_setting in (*AT_SERVER, "one_more_client")
    wanted = "open" if mine.data.label_setting == "open" else "server"
    for candidate in filter(is_bound, cells):
        alone = candidate.experiment
        if at_server:
            same_steps = _steps(alone) == _steps(mine) or mine.data.label_setting == "one_more_client"
            of_alone, of_mine = ((e.data.name, e.data.N_s, e.data.unknown_classes, e.model) for e in (alone, mine))
            if alone.data.label_setting == wanted and of_alone == of_mine and same_steps:
                return candidate
        elif (alone.data, alone.partition, alone.federation.K) == (mine.data, mine.partition, mine.federation.K):
            return candidate
    return None


def _steps(e: Experiment) -> int:
    """Return the local steps of the server in the whole run."""
    return e.federation.rounds * steps_on_labels(e)
