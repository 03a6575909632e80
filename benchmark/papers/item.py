"""Define the data of a published table or figure: its cells, its published values and its claims.

The papers declare items, the sweeps run their cells, and the reports show them.
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
UNTRAINED = ("quoted", "partition")  # roles of cells that a plan does not train
# Implemented in verdicts/metrics.py.
ENDPOINTS = ("last", "end", "speed", "throughout", "reached", "spread", "collapse", "arithmetic")
LAST_ROUNDS = re.compile(r"last_(\d+)")  # a further endpoint: the mean over the last N rounds
# The metric "rounds_to/0.4": the number of rounds to an accuracy of 40 %.
ROUNDS_TO = re.compile(r"rounds_to/(0?\.\d+)")
# Metrics with the same value in every run.
EQUAL_IN_ALL_RUNS = re.compile(r"parameters|MFLOP|MB|classes.*|exchange/\w+")
# Exploratory and confirmatory seeds; seeds from 1000 on are for tuning.
PILOTS, CONFIRMING = range(100), range(100, 1000)


def check_metrics(metrics: Iterable[str]) -> None:
    """Raise ConfigError for a metric such as "rounds_to/70", because its accuracy is not a
    fraction.
    """
    for metric in metrics:
        if metric.startswith("rounds_to/") and not ROUNDS_TO.fullmatch(metric):
            raise ConfigError(
                f"metric {metric} must end with an accuracy as a fraction; write, for example, rounds_to/0.7"
            )


@dataclass(frozen=True, kw_only=True)
class PublishedValue:
    """A published number: in percent if the metric is a fraction, and in the metric's own unit if not."""

    value: float
    spread: float | None = None  # standard deviation over the paper's runs, if it is published
    runs: int = 1  # number of runs that the number is a mean of
    metric: str = ""  # the paper's metric, if the item shows a different one: "rounds_to/0.4"


@dataclass(frozen=True, kw_only=True)
class ItemEntry:
    """An entry of a published table without a run, which is cited from a different paper or computed."""

    label: str  # unique in the item, such as "FedAvg/full"; claims refer to it
    setting: Mapping[str, str | int | float]  # values of row and column, as shown: {"method": "FedAvg", "C": 47}
    published: Mapping[str, PublishedValue] = field(default_factory=dict)  # metric -> published value
    computed: Mapping[str, float | str] = field(default_factory=dict)  # columns without runs: "parameters", "MB"
    note: str = ""  # a caveat for readers: "the server's labels are one more client's"
    # The published setting of these numbers: the data set, and each setting that differs from this entry's, such as
    # {"data": "SVHN", "N_s": 250}. It is empty if nothing is published.
    published_setting: Mapping[str, str | int | float] = field(default_factory=dict)

    def published_value(self, metric: str = ACCURACY) -> float | None:
        """Return the published value of the metric, or None if there is none."""
        return self.published[metric].value if metric in self.published else None


@dataclass(frozen=True, kw_only=True)
class Cell(ItemEntry):
    """An entry that can be trained: a complete setting without the seed."""

    experiment: Experiment  # its seed is 0, whatever seeds are run
    # published: the cell is in the paper. control, ladder, bound: the suite added it; a rung of the ladder (cumulative
    # ablation) appears below the table, and a bound (a supervised baseline, or in a method comparison also a reference
    # with more information) is not ranked. quoted: the paper cites the
    # number from a different paper, and the cell is only trained on request (`Item.with_quoted`). partition: the
    # classes of each client are shown, and nothing is trained. own: the cell belongs to a custom table.
    role: Literal["published", "quoted", "control", "ladder", "bound", "partition", "own"] = "published"
    trials: int = 0  # number of trials for its hyperparameters, or 0 if it is not tuned

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
        """Build a cell that the suite adds next to this one, with the name of a different method.

        `label` is needed if the label with that name is not unique.
        """
        return replace(
            self,
            label=label or self.label.replace(str(self.setting["method"]), method),
            setting={**self.setting, "method": method},
            experiment=experiment,
            published={},
            published_setting={},
            role=role,
            note=note,
        )


@dataclass(frozen=True, kw_only=True)
class Choice(ItemEntry):
    """A cell with hyperparameters that are chosen by the accuracy on held-out labels, so that it is
    unknown before its trials.

    Trials and cell use different seeds, so that no image that was used for the choice counts in the
    result. If trials have equal scores, the first one wins.
    """

    trials: Mapping[str, Experiment]  # name for readers ("lr 0.03, tau 0.95") -> the trial, with its seed
    finals: Mapping[str, Experiment]  # the same names -> the experiment of the cell
    role: Literal["published", "bound"] = "published"

    def cell(self, score: Callable[[Experiment], float | None]) -> Cell | None:
        """Return the cell with the best setting, or None if a trial has no score yet.

        A diverged trial ranks below all others.
        """
        scores = {name: score(trial) for name, trial in self.trials.items()}
        known = {name: value for name, value in scores.items() if value is not None}
        if len(known) < len(scores):
            return None
        best = max(known, key=lambda name: known[name])  # the first one of equal scores
        chosen = f"best of {len(known)} on held-out labels: {best}"
        note = f"{chosen}; {self.note}" if self.note else chosen
        return Cell(
            label=self.label,
            setting=self.setting,
            experiment=self.finals[best],
            role=self.role,
            note=note,
            trials=len(known),
        )


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A contrast of a different item that tests a claim's sentence in a different setting. It is
    shown and never judged.
    """

    item: str  # "ssfl/tabj1"
    contrast: Mapping[str, float]  # "{data}" in a label stands for each data set of that item

    def contrasts_in(self, labels: Iterable[str]) -> tuple[Mapping[str, float], ...]:
        """Return the contrast with that item's labels: one contrast, or one per data set.

        The result is empty if the item lacks one of the labels.
        """
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
    """A hypothesis, from the paper or our own, with a test that is fixed before the runs that judge
    it.

    The estimand is a linear contrast of cells, paired by seed: the sum over cells of coefficient
    times endpoint of `metric`. `form` says what holds if the claim is true:

    - improves: the contrast is above zero;
    - comparable: the contrast lies within ±`least`, that is, the cells are equivalent;
    - trend: as improves, for a contrast over an ordered factor;
    - every: each of `contrasts` is above zero;
    - order: as every, for contrasts between neighbours in a ranking.

    verdicts/metrics.py implements the endpoints.
    """

    name: str
    quote: str  # verbatim from the paper; empty for a question of ours
    source: str  # "section 4.2"
    contrasts: tuple[Mapping[str, float], ...]  # cell label -> coefficient; several for "every" and "order"
    form: Literal["improves", "comparable", "every", "trend", "order"]
    endpoint: str = "last"
    least: NotNegative  # smallest effect size of interest, in the metric's unit (a fraction for accuracies)
    metric: str = ACCURACY
    main: bool = False  # whether it is a primary claim, which is tested first, in the order of its item
    # The hash does not depend on the fields below.
    made: datetime | None = None  # when it was written down in this form, in UTC
    commit: str = ""  # the first commit that contains it
    withdrawn: str = ""  # why its form does not express its sentence; it is judged as declared, but in no summary
    verdicts: Mapping[str, str] = field(default_factory=dict)  # of a withdrawn claim: hash -> its verdict then
    replaces: str = ""  # name of the withdrawn claim in its table that it replaces
    elsewhere: tuple[Elsewhere, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.labels:
            raise ConfigError("a claim needs a contrast of cells; write contrast = { A = 1, B = -1 }")
        if self.contrasts[1:] and self.form not in ("every", "order"):
            raise ConfigError(
                f'form {self.form!r} has one contrast, but this claim has {len(self.contrasts)}; write form = "every"'
            )
        if self.endpoint not in ENDPOINTS and not LAST_ROUNDS.fullmatch(self.endpoint):
            raise ConfigError(f"unknown endpoint {self.endpoint!r}; {nearest(self.endpoint, (*ENDPOINTS, 'last_100'))}")
        check_metrics([self.metric])
        if self.endpoint == "arithmetic" and not EQUAL_IN_ALL_RUNS.fullmatch(self.metric):
            raise ConfigError(
                f"endpoint 'arithmetic' needs a metric that is equal in all runs, but {self.metric} is not; choose "
                "'end'"
            )
        if self.metric.startswith("rounds_to/") != (self.endpoint == "reached"):
            raise ConfigError(
                f"endpoint is {self.endpoint!r} for {self.metric}; rounds_to/... needs 'reached', and no other "
                "metric has it"
            )

        if self.verdicts and not self.withdrawn:
            raise ConfigError("only a withdrawn claim can have verdicts; write withdrawn = 'why'")

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the labels of all cells in its contrasts, each once."""
        return tuple(dict.fromkeys(label for contrast in self.contrasts for label in contrast))


@dataclass(frozen=True, kw_only=True)
class ClaimFamily:
    """The hashes of the claims that share an error rate. The primary ones are tested in this order
    and are all in one item.
    """

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
    """How a figure is drawn. `x` is "round" for learning curves, and a key of `Cell.setting` ("alpha") if not."""

    kind: Literal["curves", "against", "class_counts"] = "curves"
    x: str = "round"
    log_x: bool = False
    metrics: tuple[str, ...] = (ACCURACY,)  # one panel per metric
    panels: tuple[str, ...] = ()  # keys of `Cell.setting` with one panel per value
    lines: tuple[str, ...] = ("method",)  # keys of `Cell.setting` with one line per value
    truth: Mapping[str, str] = field(default_factory=dict)  # metric -> metric of the truth, drawn dotted next to it


@dataclass(frozen=True, kw_only=True)
class Gain:
    """A difference of two cells that the paper publishes as such, in a column or in its text."""

    name: str  # "sub-sampling (SSO)"
    of: str  # label of the cell that is better by `published`
    over: str  # label of the cell that it is compared with
    published: Mapping[str, float]  # metric -> difference, in points if the metric is a fraction
    data: str  # the paper's data set
    source: str  # "section 4.4"


@dataclass(frozen=True, kw_only=True)
class Publication:
    """A table or figure as the paper publishes it: every value, in the paper's own words and layout."""

    title: str = ""
    source: str = ""  # "arXiv:2008.11364, Table 2, section 4.2"
    entries: tuple[ItemEntry, ...] = ()  # one for each published line, whatever the suite trains
    # Keys of an entry's setting that name its row and its column; "metric" stands for the name of a number's metric.
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unread: str = ""  # the content of a figure without readable values: "no value; curves only"
    networks: tuple[str, ...] = ()  # names of the networks of the published runs
    surrogates: tuple[str, ...] = ()  # surrogates of the published data sets; empty for the paper's data sets


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure of a paper under one profile."""

    name: str  # "ssfl/tab2"
    title: str
    profile: str
    cells: tuple[Cell, ...]
    shown: tuple[ItemEntry, ...] = ()  # entries that are not trained
    claims: tuple[Claim, ...] = ()
    seeds: int = 1
    notes: tuple[str, ...] = field(default=())  # surrogate data, scale, selection rule: shown with the table
    choices: tuple[Choice, ...] = ()  # cells that wait for their trials
    tried: frozenset[Experiment] = frozenset()  # all trials, after `resolved`
    # The reference method of each row, so that the page shows the settings with a lead; "" if there is none.
    reference: str = ""
    metrics: tuple[str, ...] = (ACCURACY,)  # one block of columns per metric; the first one ranks
    rows: tuple[str, ...] = ()  # keys of `Cell.setting` that name a row; if empty, all that are not columns
    columns: tuple[str, ...] = ("method",)  # keys of `Cell.setting` that name a column
    drawing: Drawing | None = None  # of a figure, or None for a table
    publication: Publication | None = None  # or None for a table that no paper publishes
    margin: float | None = None  # tolerance (a fraction) within which a reproduced accuracy equals the published one
    gains: tuple[Gain, ...] = ()  # published differences of two cells
    typed: str = ""  # its name on a command line, if that differs from `name`: "./mine.toml"
    claims_of: str = ""  # the owner of its claims: "ssfl", "ssfl-printed"; if empty, the paper
    # The first seed that judges the paper's claims; it is later if earlier cells were wrong and are withdrawn.
    confirms_from: int = CONFIRMING.start
    # The paper's families that have confirmatory runs, by their first seed; the plan fills them in.
    closed: Mapping[int, ClaimFamily] = field(default_factory=dict)

    def __post_init__(self) -> None:
        drawn = Drawing().metrics if self.drawing is None else self.drawing.metrics
        if not self.metrics or not drawn:
            raise ConfigError('metrics is empty; write metrics = ["test/accuracy"]')
        check_metrics((*self.metrics, *drawn))

    @property
    def family(self) -> str:
        """Return the name of its family of claims in manifests: "ssfl demo", "ssfl-printed gpu"."""
        return f"{self.claims_of or self.name.partition('/')[0]} {self.profile}"

    @property
    def word(self) -> str:
        """Return its name on a command line."""
        return self.typed or self.name

    def resolved(self, score: Callable[[Experiment], float | None]) -> "Item":
        """Return the item with a cell for each choice with finished trials; the other choices remain."""
        chosen = {choice.label: choice.cell(score) for choice in self.choices}
        cells = tuple(cell for cell in chosen.values() if cell is not None)
        waiting = tuple(choice for choice in self.choices if chosen[choice.label] is None)
        tried = frozenset(trial for choice in self.choices for trial in choice.trials.values())
        return replace(self, cells=(*self.cells, *cells), choices=waiting, tried=tried)

    @property
    def trained(self) -> tuple[Cell, ...]:
        """Return the cells that a plan trains, without the cells that are only shown."""
        return tuple(cell for cell in self.cells if cell.role not in UNTRAINED)

    def with_quoted(self) -> "Item":
        """Return the item with its cited cells trained like the others."""
        cells = (replace(cell, role="published") if cell.role == "quoted" else cell for cell in self.cells)
        return replace(self, cells=tuple(cells))

    def main_claims_only(self) -> "Item":
        """Return the item with only the cells of its primary claims, the supervised baselines, and
        the claims on these cells.
        """
        main = {label for claim in self.claims if claim.main for label in claim.labels}
        cells = tuple(cell for cell in self.cells if cell.label in main or cell.role == "bound")
        kept = {cell.label for cell in cells}
        return replace(self, cells=cells, claims=tuple(c for c in self.claims if kept.issuperset(c.labels)))

    def contrasts_of(self, claim: Claim) -> tuple[tuple[tuple[str, float], ...], ...]:
        """Return the claim's contrasts as sorted (cell key, coefficient) pairs; a label of no
        trainable cell is kept.
        """
        keys = {cell.label: cell.cell_key for cell in self.cells}
        contrasts = []
        for contrast in claim.contrasts:
            terms = [(keys.get(label, label), float(w)) for label, w in contrast.items()]
            contrasts.append(tuple(sorted(terms)))
        return tuple(contrasts)

    def hash_of(self, claim: Claim) -> str:
        """Return the claim's hash, 16 hexadecimal digits.

        It depends on the quote, source, contrasts (as cell keys), endpoint, metric, form, margin
        and `main`.
        """
        fixed = (claim.quote, claim.source, claim.form, claim.endpoint, claim.metric, float(claim.least), claim.main)
        return hashlib.sha256(json.dumps((self.contrasts_of(claim), *fixed)).encode()).hexdigest()[:16]

    def withdrawal_of(self, claim: Claim) -> str:
        """Return why the claim is withdrawn, with its verdict at that time and its replacement;
        empty if it is not withdrawn.
        """
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
        """Return the cell with that label. Raise KeyError if there is none."""
        return {cell.label: cell for cell in self.cells}[label]
