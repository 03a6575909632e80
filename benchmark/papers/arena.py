"""The arena: every method in one environment, untuned and at the best of an equal budget.

No paper has this table. The environment (images, who holds them, labels, network, K, C, T, seeds, length, batch sizes,
warm start) is the same for all, and none of the papers'. "untuned": what the environment leaves open is as the paper
has it, or is given with the entry. "tuned": of six settings, three learning rates by two values of the method's own
hyperparameter, the one with the best accuracy on labels held out at the server, on seeds apart from the table's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmark.data.partition import ClassSkew, Dirichlet
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.models.build import Model
from benchmark.papers.arena_entries import ENTRIES, Entry
from benchmark.papers.item import Cell, Choice, Item
from benchmark.papers.scale import DIGITS_AUGMENTATION, MNIST_AUGMENTATION, with_field, with_fields
from benchmark.papers.table import SELECTIONS

WORDS = {"objective.threshold": "tau", "threshold": "tau", "unlabelled_weight": "lambda_u", "beta": "beta"}
UNTUNED = "untuned"
TRIAL_SEED = 1000  # the table's seeds are 0, 1, ...
ALPHAS = (0.05, 0.1, 1.0, 100.0)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What all methods of an item share, and how large its tuning is."""

    base: Experiment  # its method and optimizer are replaced
    batch_size: int  # divides N_s: papers differ in what they do with an incomplete batch, which would decide much
    warm_start_rounds: int
    seeds: int
    learning_rates: tuple[float, float, float] = (0.01, 0.02, 0.05)
    trial_rounds: int = 0  # 0: nothing is tuned
    notes: tuple[str, ...] = ()

    def experiment(self, entry: Entry, *, lr: float | None = None, second: float | None = None) -> Experiment:
        """The entry in this environment, untuned where no value is given; `second` is a value of `settings`."""
        method = entry.method
        if entry.beta_here:
            method = replace(method, beta=entry.beta_here(method.beta, self.base))
        if second is not None and entry.second:
            method = with_field(method, entry.second, second)
        sizes = dict.fromkeys(("batch_size", "server_batch_size", "labelled_batch_size"), self.batch_size)
        sgd = entry.sgd if lr is None else replace(entry.sgd, lr=lr, server_lr=None)
        return replace(
            self.base,
            data=replace(self.base.data, label_setting=entry.setting),
            method=with_fields(method, {**sizes, "warm_start_rounds": self.warm_start_rounds}),
            optimizer=sgd,
        )

    def settings(self, entry: Entry) -> dict[str, tuple[float, float | None]]:
        """The six settings of the equal budget, by name: (learning rate, second hyperparameter)."""
        if entry.second is None:
            low, middle, high = self.learning_rates
            rates = (low / 4, low / 2, low, middle, high, 2 * high)
            return {f"lr {lr:g}": (lr, None) for lr in rates}
        word = WORDS[entry.second]
        beta = entry.beta_here if entry.second == "beta" else None
        values = [beta(value, self.base) if beta else value for value in entry.values]
        return {f"lr {lr:g}, {word} {v:.4g}": (lr, v) for lr in self.learning_rates for v in values}


def trial(experiment: Experiment, rounds: int) -> Experiment:
    """The experiment as a trial: shorter, measured on held-out labels, on a seed of its own."""
    federation = replace(experiment.federation, rounds=rounds)
    evaluation = Evaluation(every=rounds, validation=True)
    return replace(experiment, federation=federation, evaluation=evaluation, seed=TRIAL_SEED)


def choice(entry: Entry, scale: Environment) -> Choice:
    finals = {name: scale.experiment(entry, lr=lr, second=v) for name, (lr, v) in scale.settings(entry).items()}
    return Choice(
        label=f"{entry.name}/tuned",
        setting={"method": entry.name, "hyperparameters": "tuned"},
        trials={name: trial(final, scale.trial_rounds) for name, final in finals.items()},
        finals=finals,
        note=entry.note,
        role="bound" if entry.bound else "published",
    )


def compared(
    name: str, title: str, scale_of: Callable[[str], Environment], profile: str, also: Sequence[Entry] = ()
) -> Item:
    """The item: methods as rows; untuned and tuned hyperparameters as columns, for `alpha` its values, untuned."""
    scale, entries = scale_of(profile), (*ENTRIES, *also)
    if name == "alpha":
        by_alpha = {
            a: replace(scale, base=replace(scale.base, partition=Dirichlet(alpha=a, min_size=2))) for a in ALPHAS
        }
        cells = [_cell(e, "alpha", a, skewed.experiment(e)) for e in entries for a, skewed in by_alpha.items()]
        tuned, notes = [], (*scale.notes, "Nothing is tuned.")
    else:
        cells = [_cell(entry, "hyperparameters", UNTUNED, scale.experiment(entry)) for entry in entries]
        tuned = [choice(entry, scale) for entry in entries if scale.trial_rounds and not entry.bound]
        notes = scale.notes
    return Item(
        name=f"arena/{name}",
        title=title,
        profile=profile,
        cells=tuple(cells),
        choices=tuple(tuned),
        seeds=scale.seeds,
        notes=(*notes, SELECTIONS["last"]),
        rows=("method",),
        columns=("hyperparameters",),
    )


def _cell(entry: Entry, column: str, value: str | float, experiment: Experiment) -> Cell:
    return Cell(
        label=f"{entry.name}/{value}" if column == "hyperparameters" else f"{entry.name}/{column}={value:g}",
        setting={"method": entry.name, column: value},
        experiment=experiment,
        role="bound" if entry.bound else "published",
        note=entry.note,
    )


def environment(profile: str, data: Data, network: str, federation: Federation, every: int, **rest: Any) -> Environment:
    """An environment of clients with main classes (R = 0.4), tested every so many rounds."""
    base = Experiment(
        data=data,
        partition=ClassSkew(R=0.4),
        model=Model(network=network, norm="gn", norm_groups=4),
        federation=federation,
        evaluation=Evaluation(every=every),
        profile=profile,
    )
    clients = f"{federation.K} clients of which {federation.C} a round, T = {federation.T}, {data.N_s:,} labels."
    return Environment(base=base, notes=(clients, *rest.pop("notes", ())), **rest)


def digits_scale(profile: str) -> Environment:
    """8x8 images with 50 labels; at the demo's size all methods, trials and seeds take minutes."""
    data = Data(name="digits", N_s=50, N_validation=100, augmentation=DIGITS_AUGMENTATION)
    demo = profile == "demo"
    federation = Federation(K=6, C=3, T=8, rounds=60) if demo else Federation(K=10, C=5, T=16, rounds=60)
    sizes = {"batch_size": 25, "warm_start_rounds": 15, "trial_rounds": 30, "seeds": 3}
    return environment(profile, data, "tiny_cnn", federation, every=2, **sizes)


def mnist_scale(profile: str) -> Environment:
    data = Data(name="mnist", N_s=100, N_validation=500, augmentation=MNIST_AUGMENTATION)
    federation = Federation(K=10, C=5, T=16, rounds=80)
    sizes = {"batch_size": 25, "warm_start_rounds": 20, "trial_rounds": 40, "seeds": 3}
    return environment(profile, data, "small_cnn", federation, every=2, **sizes)


def cifar10_scale(profile: str) -> Environment:
    """4,000 labels, 100 clients of which 10 a round, WResNet-28x2: SemiFL's environment, with T in place of epochs.

    The reduced profiles show that every method works on these images; they are far too short to compare methods.
    """
    data, rates = Data(name="cifar10", N_s=4000, N_validation=1000), (0.01, 0.03, 0.1)
    if profile in ("gpu", "paper"):
        federation = Federation(K=100, C=10, T=50, rounds=400)
        sizes: dict[str, Any] = {"batch_size": 32, "warm_start_rounds": 40, "trial_rounds": 100, "seeds": 3}
        return environment(profile, data, "wresnet28x2", federation, every=10, learning_rates=rates, **sizes)
    federation = Federation(K=10, C=2, T=4, rounds=6)
    sizes = {"batch_size": 32, "warm_start_rounds": 2, "seeds": 1}
    notes = ("Six rounds: this shows that every method runs on these images, and compares nothing.",)
    return environment(profile, data, "small_cnn", federation, every=2, learning_rates=rates, notes=notes, **sizes)


# The profiles in which an item's runs differ: elsewhere they would be those of the next smaller one.
OWN_PROFILES: Mapping[str, tuple[str, ...]] = {
    "digits": ("demo", "laptop"),
    "mnist": ("laptop",),
    "cifar10": ("laptop", "gpu"),
    "alpha": ("demo", "laptop"),
}
OVER_ALPHA = "All methods over the Dirichlet concentration alpha, on scikit-learn's handwritten digits"
ITEMS: Mapping[str, Callable[..., Item]] = {
    name: partial(compared, name, title, scale)
    for name, title, scale in (
        ("digits", "All methods on scikit-learn's handwritten digits", digits_scale),
        ("mnist", "All methods on MNIST with 100 labels", mnist_scale),
        ("cifar10", "All methods on CIFAR-10", cifar10_scale),
        ("alpha", OVER_ALPHA, digits_scale),
    )
}
