"""What the runs of several items are for: counted once each, however many tables share them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmark.experiment import Evaluation, Experiment
from benchmark.papers.item import Item


@dataclass(frozen=True, kw_only=True)
class Census:
    """Distinct cells by what they are for; a cell of two kinds counts as the first of them."""

    published: int  # behind a number, a curve or an announced run of the paper
    measured_again: int  # one of those once more, only because something else is measured on the way
    controls: int  # ours, beside the paper's
    rungs: int  # of a ladder
    quoted: int  # shown, and run on request alone


def census(items: Iterable[Item]) -> Census:
    """Cells are the same where they train the same run: their hash without the seed."""
    cells = [cell for item in items for cell in item.cells]
    published = {cell.cell_key: cell.experiment for cell in cells if cell.role in ("published", "bound")}
    distinct = {unmeasured(experiment) for experiment in published.values()}
    controls = {cell.cell_key for cell in cells if cell.role == "control"} - published.keys()
    rungs = {cell.cell_key for cell in cells if cell.role == "ladder"} - published.keys() - controls
    quoted = {cell.cell_key for cell in cells if cell.role == "quoted"} - published.keys() - controls - rungs
    return Census(
        published=len(distinct),
        measured_again=len(published) - len(distinct),
        controls=len(controls),
        rungs=len(rungs),
        quoted=len(quoted),
    )


def unmeasured(experiment: Experiment) -> str:
    """The cell key of what is trained, whatever is measured on the way."""
    return replace(experiment, evaluation=Evaluation()).cell_key
