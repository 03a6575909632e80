"""Build the method comparison: all methods in one environment, untuned and tuned with an equal budget.

No paper contains this table. All methods share the environment, which is the environment of none of the papers: images,
their division among the participants, labels, network, K, C, T, seeds, length, batch sizes and warm start. arena.toml
contains the environments and the methods. "untuned": whatever the environment leaves open is set as in the method's
paper, or as given with the method's entry. "tuned": of six settings, three learning rates times two values of the
method's own hyperparameter, the one with the best accuracy on labels that are held out at the server. The trials use
different seeds from the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

from benchmark.config import from_plain
from benchmark.data.datasets import entry_of
from benchmark.data.partition import Dirichlet
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.registry import method_class, read_method
from benchmark.optimizer import Optimizer
from benchmark.papers.fedswitch import prior_of
from benchmark.papers.item import Cell, Choice, Item
from benchmark.papers.scale import changed, read_data, values_of, with_fields
from benchmark.papers.table import SELECTIONS

FILE = values_of("arena")
UNTUNED = "untuned"
ONE_CHANGE = "Each row changes only the setting in its name. Nothing is tuned."
TRIAL_SEED = 1000  # the seeds of the table are 0, 1, ...
Setting = Literal["server", "one_more_client", "everywhere", "drawn_apart", "open"]
# The first one that suits a custom method is used.
SETTINGS: tuple[Setting, ...] = ("server", "one_more_client", "everywhere")
AT_CLIENTS: Setting = "drawn_apart"  # the setting of an environment with some labels at clients
OPEN: Setting = "open"  # the setting of an environment with images of unknown classes at clients


@dataclass(frozen=True, kw_only=True)
class ArenaMethod:
    """A method as in its paper, and the second hyperparameter of its equal budget."""

    name: str
    word: str = ""  # its name in a grid of factors; empty if it has none
    method: Any = field(metadata={"read": read_method})
    optimizer: Optimizer
    second: str | None = None  # the field that is tried with the learning rate, or None for six learning rates
    values: tuple[float, float] = (0.8, 0.95)
    beta_from: Literal["images", "prior"] | None = None  # a key of `BETAS`
    setting: Setting = "server"
    bound: bool = False
    note: str = ""


ENTRIES = tuple(
    from_plain(
        ArenaMethod, {**table, "optimizer": FILE["optimizers"][table["optimizer"]]}, f"arena.toml: {table['name']}"
    )
    for table in FILE["methods"]
)


def arena_method(name: str) -> ArenaMethod:
    """Return an entry for a method of the catalogue or a custom one (`my_module:MyMethod`), with
    defaults and SSFL's optimizer.

    Its second hyperparameter is `threshold` if it has that field. The server has the labels if the
    method supports this; if not, one more client has them. Raise ConfigError if the method supports
    neither.
    """
    method = method_class(name)()
    settings = [setting for setting in SETTINGS if setting in method.needs]
    if not settings:
        raise ConfigError(
            f"{name} needs the label setting {sorted(method.needs)}, but these items have labels at the server; "
            "leave it out"
        )
    at_client = "one more client has the server's labelled images, because the method trains nothing at the server"
    return ArenaMethod(
        name=name.rpartition(":")[2],
        method=method,
        optimizer=from_plain(Optimizer, FILE["optimizers"]["fixmatch"]),
        second="threshold" if "threshold" in {f.name for f in fields(method)} else None,
        setting=settings[0],
        note=at_client if settings[0] == "one_more_client" else "",
    )


def read_base(fields: Mapping[str, Any], path: str) -> Experiment:
    """Read the experiment of an environment, with a method that supports the labels of every environment."""
    data = read_data(fields["data"], f"{path}.data")
    return from_plain(Experiment, {"method": "fedprox_fixmatch", **fields, "data": data}, path)


@dataclass(frozen=True, kw_only=True)
class ArenaSetting:
    """The environment that all methods of an item share, and the size of their tuning."""

    # An experiment into which the method and its optimizer are put.
    base: Experiment = field(metadata={"read": read_base})
    batch_size: int
    warm_start_rounds: int
    seeds: int
    learning_rates: tuple[float, float, float] = (0.01, 0.02, 0.05)
    trial_rounds: int = 0  # 0 if nothing is tuned
    notes: tuple[str, ...] = ()

    @property
    def at_clients(self) -> bool:
        return self.base.data.label_setting == AT_CLIENTS

    @property
    def is_open(self) -> bool:
        return self.base.data.label_setting == OPEN

    @property
    def entries(self) -> tuple[ArenaMethod, ...]:
        """Return the methods that support its labels; if clients have some labels, without the
        baselines of other settings.
        """
        if self.is_open:
            return tuple(e for e in ENTRIES if OPEN in e.method.needs and e.setting in ("server", OPEN))
        if not self.at_clients:
            return tuple(entry for entry in ENTRIES if entry.setting not in (AT_CLIENTS, OPEN))
        return tuple(e for e in ENTRIES if AT_CLIENTS in e.method.needs and (e.setting == AT_CLIENTS or not e.bound))

    def experiment(self, entry: ArenaMethod, *, lr: float | None = None, second: float | None = None) -> Experiment:
        """Return the experiment of the entry in this environment; a value that is not given is untuned."""
        method = entry.method
        if entry.beta_from:
            method = replace(method, beta=BETAS[entry.beta_from](method.beta, self.base))
        sizes = dict.fromkeys(("batch_size", "server_batch_size", "labelled_batch_size"), self.batch_size)
        setting = self.base.data.label_setting if self.at_clients or self.is_open else entry.setting
        experiment = replace(
            self.base,
            data=replace(self.base.data, label_setting=setting),
            method=with_fields(method, {**sizes, "warm_start_rounds": self.warm_start_rounds}),
            optimizer=entry.optimizer if lr is None else replace(entry.optimizer, lr=lr, server_lr=None),
        )
        return experiment if second is None else changed(experiment, {f"method.{entry.second}": second})

    def settings(self, entry: ArenaMethod) -> dict[str, Experiment]:
        """Return the six settings of the equal budget, by name."""
        if entry.second is None:
            low, middle, high = self.learning_rates
            rates = (low / 4, low / 2, low, middle, high, 2 * high)
            return {f"lr {lr:g}": self.experiment(entry, lr=lr) for lr in rates}
        beta = BETAS[entry.beta_from] if entry.beta_from and entry.second == "beta" else None
        values = [beta(value, self.base) if beta else value for value in entry.values]
        symbol = FILE["symbols"][entry.second]
        tried = [(lr, v) for lr in self.learning_rates for v in values]
        return {f"lr {lr:g}, {symbol} {v:.4g}": self.experiment(entry, lr=lr, second=v) for lr, v in tried}


def by_images(beta: float, environment: Experiment) -> float:
    """Return RSCFed's beta in the environment, scaled so that beta / N_i is the paper's.

    Its unit is images per distance. It is multiplied by the images of a client in this environment,
    divided by the images of a client in the paper's SVHN.
    """
    data = environment.data
    return beta * ((entry_of(data.name).train - data.N_s - data.N_validation) / environment.federation.K) / 7326


# FedSwitch's beta, "the amount of expected imbalance", is a multiple of the clients' true imbalance.
BETAS: Mapping[str, Callable[[float, Experiment], float]] = {
    "images": by_images,
    "prior": lambda beta, environment: beta * prior_of(environment),
}


def environment_of(name: str, profile: str) -> ArenaSetting:
    """Return the environment with that name under one of its profiles."""
    table = FILE["environments"][name][profile]
    table = {**table, "base": {**table["base"], "profile": profile}}
    environment = from_plain(ArenaSetting, table, f"arena.toml: {name}.{profile}")
    data, of = environment.base.data, environment.base.federation
    labels = f"{data.N_s:,} labels"
    if environment.at_clients:
        labels = f"in each class as many labels as {100 * data.labelled_share:g} % of the rarest class has images"
    clients = f"{of.K} clients, {of.C} per round, T = {of.T}, {labels}."
    notes = [clients, *([unknown_note(environment.base)] if environment.is_open else [])]
    return replace(environment, notes=(*notes, *environment.notes))


def unknown_note(e: Experiment) -> str:
    """Return a sentence with the unknown classes and their share of the clients' images."""
    classes = ", ".join(map(str, e.data.unknown_classes))
    return (
        f"Unknown classes: {classes}, without images at the server; {100 * e.data.unknown_share:g} % of each "
        "client's images belong to them."
    )


def compared(name: str, profile: str, also: Sequence[ArenaMethod] = ()) -> Item:
    """Build the item: methods as rows; untuned and tuned hyperparameters as columns, or for `alpha`
    its values, untuned.
    """
    table = FILE["items"][name]
    environment = environment_of(table.get("environment", name), profile)
    entries = (*environment.entries, *also)
    choices: list[Choice] = []
    if "alphas" in table:
        partitions = {a: Dirichlet(alpha=a, min_size=2) for a in table["alphas"]}
        skewed = {a: replace(environment, base=replace(environment.base, partition=p)) for a, p in partitions.items()}
        cells = [_cell(entry, "alpha", a, skewed[a].experiment(entry)) for entry in entries for a in skewed]
        notes = (*environment.notes, "Nothing is tuned.")
    else:
        cells = [_cell(entry, "hyperparameters", UNTUNED, environment.experiment(entry)) for entry in entries]
        choices = [choice(entry, environment) for entry in entries if environment.trial_rounds and not entry.bound]
        notes = environment.notes
    notes = (*notes, *table.get("notes", ()))
    return Item(
        name=f"arena/{name}",
        title=table["title"],
        profile=profile,
        cells=tuple(cells),
        choices=tuple(choices),
        seeds=environment.seeds,
        notes=(*notes, SELECTIONS["last"]),
        rows=("method",),
        columns=("hyperparameters",),
    )


def _cell(entry: ArenaMethod, column: str, value: str | float, experiment: Experiment) -> Cell:
    return Cell(
        label=f"{entry.name}/{value}" if column == "hyperparameters" else f"{entry.name}/{column}={value:g}",
        setting={"method": entry.name, column: value},
        experiment=experiment,
        role="bound" if entry.bound else "published",
        note=entry.note,
    )


def choice(entry: ArenaMethod, environment: ArenaSetting) -> Choice:
    """Return the entry's tuned cell, which waits for its trials."""
    finals = environment.settings(entry)
    return Choice(
        label=f"{entry.name}/tuned",
        setting={"method": entry.name, "hyperparameters": "tuned"},
        trials={name: trial(final, environment.trial_rounds) for name, final in finals.items()},
        finals=finals,
        note=entry.note,
        role="bound" if entry.bound else "published",
    )


def trial(experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment as a trial: shorter, evaluated on held-out labels, with a separate seed."""
    federation = replace(experiment.federation, rounds=rounds)
    evaluation = Evaluation(every=rounds, validation=True)
    return replace(experiment, federation=federation, evaluation=evaluation, seed=TRIAL_SEED)


def robustness(profile: str, also: Sequence[ArenaMethod] = ()) -> Item:
    """Build the item of a reviewer's checklist: settings as rows, each with one change of the environment, and methods
    as columns, untuned.
    """
    table = FILE["robustness"]
    environment = environment_of(table[profile]["environment"], profile)
    entries = (*(entry for entry in ENTRIES if entry.name in table["methods"]), *also)
    first, *others = environment.notes
    cells = []
    for name, fields_changed in table[profile]["settings"].items():
        base = changed(environment.base, fields_changed)
        own = replace(environment, base=replace(base, profile=profile))
        for entry in entries:
            setting = {"setting": name, "method": entry.name}
            role: Literal["bound", "published"] = "bound" if entry.bound else "published"
            experiment = own.experiment(entry)
            label = f"{entry.name}/{name}"
            cells.append(Cell(label=label, setting=setting, experiment=experiment, role=role, note=entry.note))
    return Item(
        name="arena/robustness",
        title=table["title"],
        profile=profile,
        cells=tuple(cells),
        seeds=table["seeds"],
        notes=(f"First row: {first}", *others, ONE_CHANGE, SELECTIONS["last"]),
        rows=("setting",),
        columns=("method",),
        reference=table["reference"],
    )


ITEMS: Mapping[str, Callable[..., Item]] = {
    **{name: partial(compared, name) for name in FILE["items"]},
    "robustness": robustness,
}
OWN_PROFILES: Mapping[str, tuple[str, ...]] = {
    **{name: tuple(FILE["environments"][table.get("environment", name)]) for name, table in FILE["items"].items()},
    "robustness": ("demo", "laptop"),
}
