"""What a paper's table or figure is to the suite: cells to run, values to compare with, claims to judge.

Plain data, shared by the papers (which declare items), the sweeps (which run them) and the reports (which show them).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from benchmark.config import Checked, NotNegative, nearest
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment

ACCURACY = "test/accuracy"
UNTRAINED = ("quoted", "partition")  # roles of cells that a plan leaves out
# Of verdicts/metrics.py.
ENDPOINTS = ("last", "end", "speed", "throughout", "reached", "spread", "collapse", "arithmetic")
LAST_ROUNDS = re.compile(r"last_(\d+)")  # one more endpoint: the mean over so many last rounds
ROUNDS_TO = re.compile(r"rounds_to/(0?\.\d+)")  # a metric: "rounds_to/0.4", the rounds to an accuracy of 40 %
COUNTED = re.compile(r"parameters|MFLOP|MB|classes.*|exchange/\w+")  # metrics that are the same in every run
PILOTS, CONFIRMING = range(100), range(100, 1000)  # seeds; from 1000 on they tune


def check_metrics(metrics: Iterable[str]) -> None:
    """Raises ConfigError for "rounds_to/70": the accuracy has to be a fraction."""
    for metric in metrics:
        if metric.startswith("rounds_to/") and not ROUNDS_TO.fullmatch(metric):
            raise ConfigError(f"{metric}: write a fraction, such as rounds_to/0.7")


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A number as the paper prints it: percent for metrics that are fractions, else the metric's own unit."""

    value: float
    spread: float | None = None  # standard deviation over its runs, where the paper prints one
    runs: int = 1  # that the number is a mean of
    metric: str = ""  # the paper's own, where the item has another in its place: "rounds_to/0.4"


@dataclass(frozen=True, kw_only=True)
class ItemEntry:
    """An entry of a published table without a run: quoted from another paper, or computed."""

    label: str  # unique in the item: "FedAvg/full"; claims refer to it
    setting: Mapping[str, str | int | float]  # what row and column say, for people: {"method": "FedAvg", "C": 47}
    published: Mapping[str, Printed] = field(default_factory=dict)  # metric -> what the paper prints
    computed: Mapping[str, float | str] = field(default_factory=dict)  # columns that need no run: "parameters", "MB"
    note: str = ""  # what a reader has to know: "the server's labels are one more client's"
    # What the published numbers are of, as the paper prints it: the data set, and each setting that differs from this
    # entry's: {"data": "SVHN", "N_s": 250}. Empty without published numbers.
    printed_at: Mapping[str, str | int | float] = field(default_factory=dict)

    def printed(self, metric: str = ACCURACY) -> float | None:
        """The printed value of that metric; None where the paper has none."""
        return self.published[metric].value if metric in self.published else None


@dataclass(frozen=True, kw_only=True)
class Cell(ItemEntry):
    """An entry that can be trained: a full setting without the seed."""

    experiment: Experiment  # seed 0 stands for every seed
    # published: in the paper. control, ladder, bound: added by the suite (ladder: below the table; bound: not ranked).
    # quoted: the paper quotes another paper's number; trained on request alone (`Item.with_quoted`).
    # partition: the classes of each client are shown, and nothing is trained. own: of a user's table.
    role: Literal["published", "quoted", "control", "ladder", "bound", "partition", "own"] = "published"

    @property
    def cell_key(self) -> str:
        return self.experiment.cell_key

    def companion(
        self,
        method: str,
        experiment: Experiment,
        *,
        note: str,
        label: str = "",
        role: Literal["control", "bound"] = "control",
    ) -> "Cell":
        """A cell that the suite adds next to this one, with another method's name.

        `label`: where that name alone does not make the label unique.
        """
        return replace(
            self,
            label=label or self.label.replace(str(self.setting["method"]), method),
            setting={**self.setting, "method": method},
            experiment=experiment,
            published={},
            printed_at={},
            role=role,
            note=note,
        )


@dataclass(frozen=True, kw_only=True)
class Choice(ItemEntry):
    """A cell that is known only after its trials: the setting with the best accuracy on held-out labels.

    Trials and cell use different seeds, so that no image on which it was chosen counts. Of equal trials the first wins.
    """

    trials: Mapping[str, Experiment]  # what is tried, for people ("lr 0.03, tau 0.95") -> the trial, with its seed
    finals: Mapping[str, Experiment]  # the same names -> the experiment of the cell
    role: Literal["published", "bound"] = "published"

    def cell(self, score: Callable[[Experiment], float | None]) -> Cell | None:
        """The best setting's cell; None while a trial has no score. A diverged trial scores below all others."""
        scores = {name: score(trial) for name, trial in self.trials.items()}
        known = {name: value for name, value in scores.items() if value is not None}
        if len(known) < len(scores):
            return None
        best = max(known, key=lambda name: known[name])  # the first of equals
        chosen = f"best of {len(known)} on held-out labels: {best}"
        note = f"{chosen}; {self.note}" if self.note else chosen
        return Cell(label=self.label, setting=self.setting, experiment=self.finals[best], role=self.role, note=note)


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A contrast of another item on a claim's sentence, at another setting; shown, never judged."""

    item: str  # "ssfl/tabj1"
    contrast: Mapping[str, float]  # "{data}" in a label stands for each data set of that item

    def contrasts_in(self, labels: Iterable[str]) -> tuple[Mapping[str, float], ...]:
        """Fill in that item's labels: one contrast, or one for each data set. Empty if a label is absent."""
        known = frozenset(labels)
        pattern = re.escape(next(iter(self.contrast))).replace(re.escape("{data}"), "(.+)")
        matches = filter(None, (re.fullmatch(pattern, label) for label in known))
        names = sorted(match.groups()[0] if match.groups() else "" for match in matches)
        contrasts = []
        for name in names:
            contrast = {label.replace("{data}", name): w for label, w in self.contrast.items()}
            if known.issuperset(contrast):
                contrasts.append(contrast)
        return tuple(contrasts)


@dataclass(frozen=True, kw_only=True)
class Claim(Checked):
    """A sentence of the paper (or a question of ours), with the test that is fixed before the runs that judge it.

    The estimand is a linear contrast of cells, paired by seed: sum over cells of coefficient x endpoint of `metric`.
    Forms: improves (the contrast is above zero), comparable (it lies inside +-least), trend (as improves, over an
    ordered factor), every (each of `contrasts` is above zero), order (the same, one after another).
    Endpoints are those of verdicts/metrics.py.
    """

    name: str
    quote: str  # verbatim from the paper; empty for a question of ours
    source: str  # "section 4.2"
    contrasts: tuple[Mapping[str, float], ...]  # cell label -> coefficient; several of the forms "every" and "order"
    form: Literal["improves", "comparable", "every", "trend", "order"]
    endpoint: str = "last"
    least: NotNegative  # least difference of interest, in the metric's unit (accuracy: fraction)
    metric: str = ACCURACY
    main: bool = False  # one of the few that a paper's error is spent on first, in the order of its item
    # Not part of its hash:
    made: datetime | None = None  # when it was written down in this form, in UTC
    commit: str = ""  # the first one that has it
    withdrawn: str = ""  # why its form does not express its sentence: judged as declared, but in no summary
    verdicts: Mapping[str, str] = field(default_factory=dict)  # of a withdrawn claim: hash -> verdict at that time
    replaces: str = ""  # the name of the withdrawn claim of its table whose sentence it expresses
    elsewhere: tuple[Elsewhere, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.labels:
            raise ConfigError("contrast is missing")
        if self.endpoint not in ENDPOINTS and not LAST_ROUNDS.fullmatch(self.endpoint):
            raise ConfigError(f"unknown endpoint {self.endpoint!r}; {nearest(self.endpoint, (*ENDPOINTS, 'last_100'))}")
        check_metrics([self.metric])
        if self.endpoint == "arithmetic" and not COUNTED.fullmatch(self.metric):
            raise ConfigError(f"endpoint 'arithmetic': {self.metric} differs from run to run; choose 'end'")
        if self.metric.startswith("rounds_to/") != (self.endpoint == "reached"):
            raise ConfigError(f"endpoint {self.endpoint!r} of {self.metric}; rounds_to/... has 'reached', and it alone")

        if self.verdicts and not self.withdrawn:
            raise ConfigError("verdicts are those of a withdrawn claim; write why it is withdrawn")

    @property
    def labels(self) -> tuple[str, ...]:
        """The cells that it is about, each once."""
        return tuple(dict.fromkeys(label for contrast in self.contrasts for label in contrast))


@dataclass(frozen=True, kw_only=True)
class ClaimFamily:
    """The hashes of claims that are judged together. The main ones are judged in this order, all in one item."""

    main: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def __contains__(self, claim: str) -> bool:
        return claim in self.main or claim in self.others

    def without(self, claims: "ClaimFamily") -> "ClaimFamily":
        main = tuple(hash for hash in self.main if hash not in claims)
        others = tuple(hash for hash in self.others if hash not in claims)
        return ClaimFamily(main=main, others=others)


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How a figure is drawn. `x` is "round" for curves, else a key of `Cell.setting` ("alpha")."""

    kind: Literal["curves", "against", "class_counts"] = "curves"
    x: str = "round"
    log_x: bool = False
    metrics: tuple[str, ...] = (ACCURACY,)  # a panel each
    panels: tuple[str, ...] = ()  # keys of `Cell.setting` whose values make panels
    lines: tuple[str, ...] = ("method",)  # keys of `Cell.setting` whose values make lines
    truth: Mapping[str, str] = field(default_factory=dict)  # metric -> metric drawn dotted with it


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A table or figure as the paper publishes it: every value, in the paper's own words and layout."""

    title: str = ""
    source: str = ""  # "arXiv:2008.11364, Table 2, section 4.2"
    entries: tuple[ItemEntry, ...] = ()  # one for each published line, whatever the suite trains
    # Keys of an entry's setting that name its row and its column; "metric" stands for the name of a number's metric.
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unread: str = ""  # what a figure shows of which no value can be read: "no value; curves only"
    networks: tuple[str, ...] = ()  # names of the networks of the published runs
    surrogates: tuple[str, ...] = ()  # data sets that take the place of the published ones; empty for the paper's own


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper under one profile."""

    name: str  # "ssfl/tab2"
    title: str
    profile: str
    cells: tuple[Cell, ...]
    shown: tuple[ItemEntry, ...] = ()  # further entries
    claims: tuple[Claim, ...] = ()
    seeds: int = 1
    notes: tuple[str, ...] = field(default=())  # stand-ins, scale, selection rule: printed wherever the table is
    choices: tuple[Choice, ...] = ()  # cells that wait for their trials
    tried: frozenset[Experiment] = frozenset()  # all trials, once it is resolved
    metrics: tuple[str, ...] = (ACCURACY,)  # a block of columns each; the first one ranks
    rows: tuple[str, ...] = ()  # keys of `Cell.setting` that name a row; empty: all that are not columns
    columns: tuple[str, ...] = ("method",)  # keys of `Cell.setting` that name a column
    drawing: Drawing | None = None  # of a figure; None: a table
    publication: Publication | None = None  # None for a table that no paper publishes
    margin: float | None = None  # below it a published and a reproduced accuracy count as equal (a fraction)
    typed: str = ""  # what names it on a command line, where that is not its name: "./mine.toml"
    claims_of: str = ""  # whose they are: "ssfl", "ssfl-printed"; empty: the paper's
    # The first seed of the paper's claims; a later one where earlier cells were wrong and are withdrawn.
    confirms_from: int = CONFIRMING.start
    # The paper's families that have confirming runs, by their first seed; filled in by the plan.
    closed: Mapping[int, ClaimFamily] = field(default_factory=dict)

    def __post_init__(self) -> None:
        drawn = Drawing().metrics if self.drawing is None else self.drawing.metrics
        if not self.metrics or not drawn:
            raise ConfigError('metrics: is empty; write metrics = ["test/accuracy"]')
        check_metrics((*self.metrics, *drawn))

    @property
    def family(self) -> str:
        """What manifests call the family of its claims: "ssfl demo", "ssfl-printed gpu"."""
        return f"{self.claims_of or self.name.partition('/')[0]} {self.profile}"

    @property
    def word(self) -> str:
        """What names it on a command line."""
        return self.typed or self.name

    def resolved(self, score: Callable[[Experiment], float | None]) -> "Item":
        """The item with a cell for every choice whose trials are done; the other choices still wait."""
        chosen = {choice.label: choice.cell(score) for choice in self.choices}
        cells = tuple(cell for cell in chosen.values() if cell is not None)
        waiting = tuple(choice for choice in self.choices if chosen[choice.label] is None)
        tried = frozenset(trial for choice in self.choices for trial in choice.trials.values())
        return replace(self, cells=(*self.cells, *cells), choices=waiting, tried=tried)

    @property
    def trained(self) -> tuple[Cell, ...]:
        """The cells that a plan runs: all except those that are only shown."""
        return tuple(cell for cell in self.cells if cell.role not in UNTRAINED)

    def with_quoted(self) -> "Item":
        """The item with its quoted cells trained like the others."""
        cells = (replace(cell, role="published") if cell.role == "quoted" else cell for cell in self.cells)
        return replace(self, cells=tuple(cells))

    def main_claims_only(self) -> "Item":
        """The item with the cells of its main claims, the bounds, and the claims on these alone."""
        main = {label for claim in self.claims if claim.main for label in claim.labels}
        cells = tuple(cell for cell in self.cells if cell.label in main or cell.role == "bound")
        kept = {cell.label for cell in cells}
        return replace(self, cells=cells, claims=tuple(c for c in self.claims if kept.issuperset(c.labels)))

    def contrasts_of(self, claim: Claim) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Write the claim's contrasts with cell keys; a label that is not a cell's stays as it is."""
        keys = {cell.label: cell.cell_key for cell in self.cells}
        contrasts = []
        for contrast in claim.contrasts:
            terms = [(keys.get(label, label), float(w)) for label, w in contrast.items()]
            contrasts.append(tuple(sorted(terms)))
        return tuple(contrasts)

    def hash_of(self, claim: Claim) -> str:
        """16 hexadecimal digits of all that makes the claim: sentence, cells, endpoint, form, margin, main or not."""
        fixed = (claim.quote, claim.source, claim.form, claim.endpoint, claim.metric, float(claim.least), claim.main)
        return hashlib.sha256(json.dumps((self.contrasts_of(claim), *fixed)).encode()).hexdigest()[:16]

    def withdrawal_of(self, claim: Claim) -> str:
        """Say why the claim is withdrawn, its verdict then and its replacement; empty if it is not withdrawn."""
        if not claim.withdrawn:
            return ""
        verdict = claim.verdicts.get(self.hash_of(claim))
        successors = (other.name for other in self.claims if other.replaces == claim.name)
        parts = [
            claim.withdrawn,
            f"its verdict was: {verdict}" if verdict else "",
            *(f"replaced by {name!r}" for name in successors),
        ]
        return "; ".join(filter(None, parts))

    def cell(self, label: str) -> Cell:
        """The cell of that label. Raises KeyError."""
        return {cell.label: cell for cell in self.cells}[label]
