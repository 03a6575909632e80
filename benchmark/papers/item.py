"""What a paper's table or figure is to the suite: cells to run, values to compare with, claims to judge.

Plain data, shared by the papers (which declare items), the sweeps (which run them) and the reports (which show them).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmark.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One entry of a published table, or a control or rung of ours beside it: a full setting without the seed."""

    label: str  # unique in the item: "fedavg/C=47"; claims refer to it
    setting: Mapping[str, str | int | float]  # what the row and column say, for people: {"method": "FedAvg", "C": 47}
    experiment: Experiment  # seed 0 stands for every seed
    published: float | None = None  # as the paper prints it, percent; None: the paper has no such number
    published_spread: float | None = None  # standard deviation over its runs, percent, where the paper prints one
    published_runs: int = 1  # that the published number is a mean of
    # bound: beside the ranking, not in it; quoted: shown, and trained on request alone (`Item.with_quoted`)
    role: Literal["published", "quoted", "control", "ladder", "bound"] = "published"
    note: str = ""  # what a reader has to know of this cell: "the server's labels are one more client's"

    @property
    def cell_key(self) -> str:
        return self.experiment.cell_key


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A cell that is known only once its trials are done: the setting with the best accuracy on held-out labels.

    Trials and cell use different seeds, so that no image chosen on is counted. Equal trials: the first one wins.
    """

    label: str  # of the cell to come
    setting: Mapping[str, str | int | float]
    trials: Mapping[str, Experiment]  # what is tried, for people ("lr 0.03, tau 0.95") -> the trial, with its seed
    finals: Mapping[str, Experiment]  # the same names -> the experiment of the cell
    note: str = ""
    role: Literal["published", "bound"] = "published"

    def __post_init__(self) -> None:
        assert self.trials.keys() == self.finals.keys() and self.trials

    def cell(self, score: Callable[[Experiment], float | None]) -> Cell | None:
        """The best setting's cell; None while a trial has no score. A diverged trial scores below all others."""
        scores = {name: score(trial) for name, trial in self.trials.items()}
        known = {name: found for name, found in scores.items() if found is not None}
        if len(known) < len(scores):
            return None
        best = max(known, key=lambda name: known[name])  # the first of equals
        chosen = f"best of {len(known)} on held-out labels: {best}"
        note = f"{chosen}; {self.note}" if self.note else chosen
        return Cell(label=self.label, setting=self.setting, experiment=self.finals[best], role=self.role, note=note)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the paper (or a question of ours) and, fixed before any run, what would bear it out.

    The estimand is a linear contrast of cells, paired by seed: sum over cells of coefficient x last value of `metric`.
    "beyond": holds where the corrected interval lies above zero, contradicted where it lies below.
    "within": holds where the interval lies inside +-margin ("hardly", "comparable"), contradicted where outside it.
    """

    name: str
    quote: str  # verbatim from the paper; empty for a question of ours
    source: str  # "section 4.2"
    contrast: Mapping[str, float]  # cell label -> coefficient
    test: Literal["beyond", "within"]
    margin: float  # least difference of interest, in the metric's unit (accuracy: fraction)
    metric: str = "test/accuracy"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper under one profile."""

    name: str  # "ssfl/tab2"
    title: str
    profile: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...] = ()
    seeds: int = 1
    notes: tuple[str, ...] = field(default=())  # stand-ins, scale, selection rule: printed wherever the table is
    choices: tuple[Choice, ...] = ()  # cells that wait for their trials
    rows: Literal["settings", "methods"] = "settings"  # which of them the table's rows are; the other is its columns
    margin: float | None = None  # below it a published and a reproduced accuracy count as equal (a fraction)

    def resolved(self, score: Callable[[Experiment], float | None]) -> "Item":
        """With a cell for every choice whose trials are done; the other choices are left waiting."""
        chosen = {choice.label: choice.cell(score) for choice in self.choices}
        cells = tuple(cell for cell in chosen.values() if cell is not None)
        waiting = tuple(choice for choice in self.choices if chosen[choice.label] is None)
        return replace(self, cells=(*self.cells, *cells), choices=waiting)

    @property
    def trained(self) -> tuple[Cell, ...]:
        """The cells that a plan runs: all but those that are only shown."""
        return tuple(cell for cell in self.cells if cell.role != "quoted")

    def with_quoted(self) -> "Item":
        """The item with its quoted cells trained like the others."""
        cells = (replace(cell, role="published") if cell.role == "quoted" else cell for cell in self.cells)
        return replace(self, cells=tuple(cells))

    def cell(self, label: str) -> Cell:
        """The cell of that label. Raises KeyError."""
        return {cell.label: cell for cell in self.cells}[label]
