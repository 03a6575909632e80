"""Profiles: a stand-in changes the fields it names, for any method, and leaves all others as published."""

from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest

from benchmark.config import from_plain, to_plain
from benchmark.data.partition import Dirichlet
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Evaluation, Experiment, Federation
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.rscfed import RSCFed
from benchmark.methods.semifl import SemiFL
from benchmark.models.build import Model
from benchmark.optim.sgd import SGD, Cosine, RoundCosine
from benchmark.papers.catalogue import ITEMS, items, profiles
from benchmark.papers.scale import DIGITS_AUGMENTATION, PROFILES, Scale, profile_of, scaled, tenth
from benchmark.papers.values import alike

SMALL = Scale(
    title="digits",
    data={"name": "digits", "images": 600},
    model=Model(network="tiny_cnn", norm="none"),
    batch_size=5,
    server_batch_size=7,
    warm_start_rounds=2,
    K=6,
    C=3,
    rounds=4,
    evaluation=Evaluation(every=2),
)
# Every label setting, each with methods' further switches; streams, a pooled test and epochs are those of all.
LABEL_SETTINGS = [
    (Data(label_setting="server", N_s=1000), FedSwitch(beta=0.7)),
    (Data(label_setting="server", N_s=1000, unlabelled="extra"), SemiFL(server_epochs_each=3)),
    (Data(label_setting="everywhere"), SemiFL(mix_weight=0.0, server_momentum=0.0)),
    (Data(label_setting="every_client", N_s=0, labels_per_client=7), FedSwitch()),
    (Data(label_setting="some_clients", N_s=0, labelled_clients=2), RSCFed(M=2, subset=4, beta=3.0)),
    (Data(label_setting="share", N_s=0, labelled_share=0.2), FedConsist()),
    (Data(label_setting="one_more_client", N_s=100), FedConsist(temperature=0.3)),
    (Data(label_setting="drawn_apart", N_s=0, labelled_share=0.3), FedSwitch(beta=0.3)),
]
assert {data.label_setting for data, _ in LABEL_SETTINGS} == set(get_args(get_type_hints(Data)["label_setting"]))


def flat(value: object, above: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {above: value}
    return {k: v for key, one in value.items() for k, v in flat(one, f"{above}.{key}".lstrip(".")).items()}


def changed(full: Experiment, small: Experiment) -> set[str]:
    a, b = flat(to_plain(full)), flat(to_plain(small))
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


@pytest.mark.parametrize(("data", "method"), LABEL_SETTINGS, ids=lambda part: getattr(part, "label_setting", ""))
def test_only_what_a_stand_in_names_changes(data, method):
    full = Experiment(
        data=replace(data, name="svhn", streaming_steps=10, pooled_test=2000, N_validation=50),
        partition=Dirichlet(alpha=0.3, rule="limited"),
        model=Model(network="resnet9", norm="gn"),
        method=method,
        federation=Federation(K=100, C=10, T=9, epochs=5, rounds=800),
        optimizer=SGD(lr=0.03, server_lr=0.1, schedule=RoundCosine(), clip=1.0),
        evaluation=Evaluation(selection="best_on_test"),
    )
    small = scaled(full, SMALL, "demo")
    sizes = {f"method.{name}" for name in ("batch_size", "server_batch_size", "warm_start_rounds")}
    allowed = {"data.name", "data.images", "evaluation.every", "evaluation.selection", "profile"} | sizes
    allowed |= {f"federation.{name}" for name in ("K", "C", "rounds")}
    allowed |= {f"model.{f.name}" for f in fields(Model)}
    assert changed(full, small) <= allowed
    assert (small.data.streaming_steps, small.data.pooled_test, small.federation.epochs) == (10, 2000, 5)
    assert small.method.batch_size == 5 and small.method.warm_start_rounds == 2
    assert getattr(small.method, "server_batch_size", 7) == 7


def test_a_tenth_of_the_rounds_takes_a_tenth_of_the_schedule():
    sgd = SGD(schedule=Cosine(c=2.3, warmup_steps=50, steps=1000))
    evaluation = Evaluation(every=64, gradient_diversity_every=100)
    full = Experiment(federation=Federation(T=8, rounds=1000), optimizer=sgd, evaluation=evaluation)
    short = tenth(full)
    assert (short.federation.rounds, short.federation.T, short.profile) == (100, 8, "gpu")
    assert short.optimizer.schedule == Cosine(c=2.3, warmup_steps=5, steps=100)
    assert (short.evaluation.every, short.evaluation.gradient_diversity_every) == (32, 10)
    assert changed(full, short) <= {
        *("federation.rounds", "optimizer.schedule.warmup_steps", "optimizer.schedule.steps", "profile"),
        *("evaluation.every", "evaluation.gradient_diversity_every"),
    }


def test_profiles_that_would_repeat_a_smaller_one_are_it():
    assert profile_of("paper", ("demo", "laptop")) == "laptop"
    assert profile_of("demo", ("laptop", "gpu")) == "laptop"
    assert profile_of("gpu", PROFILES) == "gpu"
    with pytest.raises(ConfigError, match="unknown profile 'lapotp'; choose demo, laptop, gpu or paper"):
        profile_of("lapotp", PROFILES)
    for asked in PROFILES:
        assert items(["arena/mnist"], asked)[0].profile == "laptop"


@pytest.mark.parametrize("name", ITEMS)
def test_no_two_profiles_of_an_item_share_a_run(name):
    """The same cells under another name would be trained, and shown, twice."""
    by_profile = {item.profile: item for item in (items([name], profile)[0] for profile in PROFILES)}
    assert set(by_profile) == set(profiles(name))
    runs = [key for item in by_profile.values() for key in {cell.cell_key for cell in item.cells}]
    assert len(set(runs)) == len(runs)


STAND_IN = {"title": "digits", "data": {"name": "digits", "augmentation": "digits"}, "K": 20, "notes": ["one"]}


def test_a_stand_in_like_another_has_that_one_s_values_except_its_own():
    tables = {"batch": STAND_IN, "streaming": {"like": "batch", "K": 10}}
    batch, streaming = (from_plain(Scale, table) for table in alike(tables, "toy.toml").values())
    assert batch.data == {"name": "digits", "augmentation": DIGITS_AUGMENTATION} and batch.notes == ("one",)
    assert streaming == replace(batch, K=10)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"like": "bach"}, "choose batch or mine"),
        ({"data": {"augmentation": "digit"}}, "digits"),
        ({"batch_sise": 20}, "'batch_size'"),
        ({"K": 1.5}, "K: 1.5 is not a whole number"),
    ],
)
def test_a_mistake_in_a_stand_in_is_named_with_the_right_word(wrong, message):
    with pytest.raises(ConfigError, match=message):
        from_plain(Scale, alike({"batch": STAND_IN, "mine": {**STAND_IN, **wrong}}, "toy.toml")["mine"], "demo.mine")
