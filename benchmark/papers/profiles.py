"""Profiles: how far an experiment is scaled down, each one visible function from Experiment to Experiment."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmark.data.augment import Augmentation, Gentle, RandAugment, Weak
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.averaging import Grouping
from benchmark.methods.ssfl import SSFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD, Cosine

Profile = Callable[[Experiment], Experiment]


def paper(experiment: Experiment) -> Experiment:
    """Exactly as published."""
    return replace(experiment, profile="paper")


def gpu(experiment: Experiment) -> Experiment:
    """Full data and network, a tenth of the rounds and of the learning-rate schedule."""
    federation = replace(experiment.federation, rounds=max(1, experiment.federation.rounds // 10))
    sgd = experiment.optimizer
    if isinstance(sgd.schedule, Cosine) and sgd.schedule.steps is not None:
        shorter = replace(sgd.schedule, steps=sgd.schedule.steps // 10, warmup_steps=sgd.schedule.warmup_steps // 10)
        sgd = replace(sgd, schedule=shorter)
    return replace(experiment, federation=federation, optimizer=sgd, evaluation=Evaluation(every=16), profile="gpu")


LAPTOP_WARM_START = 30  # rounds of the server alone: without them clients have nothing confident to learn from


def laptop(experiment: Experiment) -> Experiment:
    """MNIST with 100 labels in place of EMNIST, 10 clients, a 0.2 M parameter network, 100 rounds.

    Cohorts keep their share of the clients (10, 30, 47 of 47 become 2, 6, 10 of 10), groups become two.
    """
    federation = scaled(experiment.federation, K=10, rounds=100)
    return replace(
        experiment,
        data=Data(name="mnist", N_s=100, N_validation=1000, augmentation=MNIST_AUGMENTATION),
        model=Model(network="small_cnn", norm="gn", norm_groups=4),
        method=reduced(experiment.method, batch_size=32, warm_start_rounds=LAPTOP_WARM_START),
        federation=federation,
        optimizer=SGD(lr=0.02, schedule=Cosine(c=0.4375)),
        evaluation=Evaluation(every=10),
        profile="laptop",
    )


def demo(experiment: Experiment) -> Experiment:
    """scikit-learn's 8x8 digits with 50 labels, 6 clients, a network of 38,000 parameters, 100 rounds."""
    federation = scaled(experiment.federation, K=6, rounds=100)
    return replace(
        experiment,
        data=Data(name="digits", N_s=50, augmentation=DIGITS_AUGMENTATION),
        model=Model(network="tiny_cnn", norm="gn", norm_groups=4),
        method=reduced(experiment.method, batch_size=16, warm_start_rounds=20),
        federation=federation,
        optimizer=SGD(lr=0.02, schedule=Cosine(c=0.4375)),
        evaluation=Evaluation(every=5, gradient_diversity_every=20),
        profile="demo",
    )


PROFILES: Mapping[str, Profile] = {"demo": demo, "laptop": laptop, "gpu": gpu, "paper": paper}

# Digits are not flipped: a mirrored 2 is no 2. The released code flips them (a departure of the reduced profiles).
MNIST_AUGMENTATION = Augmentation(
    weak=Weak(flip=0.0, padding_mode="zero"),
    strong=RandAugment(pool="ssfl"),
)
DIGITS_AUGMENTATION = Augmentation(
    weak=Weak(flip=0.0, padding_mode="zero"),
    strong=Gentle(translate=0.0, contrast_probability=0.0, cutout=0.25),
)


def scaled(federation: Federation, *, K: int, rounds: int) -> Federation:
    """K clients (never more than the paper's), a cohort with the same share of them (2 or more), fewer rounds."""
    K = min(K, federation.K)
    C = max(min(2, federation.C), round(federation.C / federation.K * K))
    return Federation(K=K, C=C, T=federation.T, rounds=min(rounds, federation.rounds))


def reduced(method: object, *, batch_size: int, warm_start_rounds: int) -> object:
    """SSFL with smaller batches, a warm start, and two groups wherever the paper has any."""
    if not isinstance(method, SSFL):
        return method
    averaging = method.averaging
    if isinstance(averaging, Grouping):
        averaging = replace(averaging, S=min(2, averaging.S), sizes="paper")
    return replace(
        method,
        averaging=averaging,
        batch_size=batch_size,
        server_batch_size=batch_size,
        warm_start_rounds=warm_start_rounds,
    )


def profile_named(name: str) -> Profile:
    """The profile of that name. Raises ConfigError."""
    try:
        return PROFILES[name]
    except KeyError:
        raise ConfigError(f"--profile: {name!r} is not right; {', '.join(PROFILES)} would be") from None
