"""Profiles and stand-ins: a tenth of the rounds, the profile that runs, values like another's, mistakes."""

from dataclasses import replace

import pytest

from benchmark.config import from_plain
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment, Federation
from benchmark.optim.sgd import SGD, Cosine
from benchmark.papers.catalogue import items
from benchmark.papers.scale import DIGITS_AUGMENTATION, PROFILES, Scale, profile_of, tenth
from benchmark.papers.values import alike


def test_a_tenth_of_the_rounds_takes_a_tenth_of_the_schedule():
    sgd = SGD(schedule=Cosine(c=2.3, warmup_steps=50, steps=1000))
    evaluation = Evaluation(every=64, gradient_diversity_every=100)
    full = Experiment(federation=Federation(T=8, rounds=1000), optimizer=sgd, evaluation=evaluation)
    short = tenth(full)
    assert (short.federation.rounds, short.federation.T, short.profile) == (100, 8, "gpu")
    assert short.optimizer.schedule == Cosine(c=2.3, warmup_steps=5, steps=100)
    assert (short.evaluation.every, short.evaluation.gradient_diversity_every) == (32, 10)
    federation, optimizer, evaluation = full.federation, full.optimizer, full.evaluation
    same = replace(short, federation=federation, optimizer=optimizer, evaluation=evaluation, profile=full.profile)
    assert same == full


def test_profiles_that_would_repeat_a_smaller_one_are_it():
    assert profile_of("paper", ("demo", "laptop")) == "laptop"
    assert profile_of("demo", ("laptop", "gpu")) == "laptop"
    assert profile_of("gpu", PROFILES) == "gpu"
    with pytest.raises(ConfigError, match="unknown profile 'lapotp'; choose demo, laptop, gpu or paper"):
        profile_of("lapotp", PROFILES)
    for asked in PROFILES:
        assert items(["arena/mnist"], asked)[0].profile == "laptop"


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
