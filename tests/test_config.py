"""Reading configurations: what is right comes back the same, what is wrong is named with its key, value and remedy."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.run import DEFAULT, resolve
from benchmark.config import Checked, _intervals, scalar
from benchmark.data.augment import Augmentation, Gentle
from benchmark.data.partition import ClassSkew, Dirichlet, Iid
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Experiment, from_json, to_json
from benchmark.methods.central import FixMatch
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import SSFL, FedAvg, Grouping, SelfTraining
from benchmark.models.build import Model

EXPERIMENTS = [
    Experiment(),
    Experiment(partition=Dirichlet(alpha=0.1), seed=7),
    Experiment(partition=Iid(), method=SSFL(objective=SelfTraining(threshold=0.9), averaging=Grouping(S=3))),
    Experiment(method=SSFL(averaging=FedAvg(server_weight=1 / 6))),
    Experiment(method=ServerOnly()),
    Experiment(method=FixMatch(unlabelled_ratio=1)),
]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_there_and_back(experiment):
    back = from_json(json.loads(json.dumps(to_json(experiment))))
    assert back == experiment and back.cell_key == experiment.cell_key


def test_one_experiment_has_one_key_however_it_is_written(tmp_path, monkeypatch):
    """Zero with either sign or as a whole number; a folder by any path to it, and its size with leading zeros."""
    numbers = [replace(Experiment(), partition=ClassSkew(R=R)) for R in (0.0, -0.0, 0)]
    numbers += [resolve(None, ["--partition=class_skew", f"--partition.R={text}"]) for text in ("0", "-0.0", "0e3")]
    assert len({replace(Experiment(), partition=e.partition).cell_key for e in numbers}) == 1
    factors = [replace(Experiment(), data=Data(augmentation=Augmentation(strong=Gentle(brightness=(low, 1)))))
               for low in (0.0, -0.0)]  # fmt: skip
    assert len({e.cell_key for e in factors}) == 1

    (tmp_path / "pets" / "cats").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "pets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    written = ["pets", "./pets", "pets/", "pets//cats/..", "~/pets", "link", str(tmp_path / "pets")]
    for option in ("", "?size=32"):
        folders = [replace(Experiment(), data=Data(name=f"folder:{path}{option}")) for path in written]
        assert len({e.cell_key for e in folders}) == 1
        assert all(from_json(to_json(e)) == e for e in folders)
    sizes = [replace(Experiment(), data=Data(name=f"folder:pets?size={size}")).cell_key for size in ("32", "032", "8")]
    assert sizes[0] == sizes[1] == folders[0].cell_key != sizes[2]
    monkeypatch.chdir("pets")
    assert Data(name="folder:pets") != folders[0].data  # another folder


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--federation.cohort=3"], ["unknown key federation.cohort = 3", "did you mean 'C'?"]),
        (["--optimizer=adam"], ["optimizer: 'adam' names nothing here; set single fields, such as optimizer.lr"]),
        (["--federaton.K=3"], ["federaton", "did you mean 'federation'"]),
        (["--federation.K=0"], ["federation.K", "0", "choose 1 or more"]),
        (["--federation.C=11"], ["federation.C", "11", "K is 10", "choose C from 1 to 10"]),
        (["--federation.T=2.5"], ["federation.T", "2.5", "whole number"]),
        (["--partition.R=1.5"], ["R", "1.5"]),
        (["--partition=dirchlet"], ["partition.kind", "dirchlet", "did you mean 'dirichlet'"]),
        (["--method=os:path"], ["method", "os:path", "not a dataclass"]),
        (["--method=no_such_module:X"], ["no_such_module:X", "cannot be imported"]),
        (["--optimizer.lr=fast"], ["optimizer.lr", "fast", "not a number"]),
        (["--optimizer.lr=NaN"], ["optimizer.lr", "not finite"]),
        (["--optimizer.nesterov=maybe"], ["optimizer.nesterov", "maybe", "neither true nor false"]),
        (["--model.network=resnet81"], ["model.network", "resnet81", "did you mean 'resnet8'"]),
        (["--evaluation.selection=best"], ["evaluation.selection", "best", "choose last or best_on_test"]),
        (["--evaluation.validation=true"], ["evaluation.validation", "N_validation"]),
        (["seed=1"], ["seed=1", "--name=value"]),
        (["--seed"], ["--seed", "no value"]),
    ],
)
def test_a_wrong_word_is_named(words, names):
    with pytest.raises(ConfigError) as error:
        resolve(None, words)
    for name in names:
        assert name in str(error.value)
    assert "\n" not in str(error.value)


def checked_classes(cls: Any = Checked) -> Iterator[Any]:
    """All parts of an experiment that check their values."""
    for sub in cls.__subclasses__():
        if re.match(r"benchmark\.(data|models|optim|methods|experiment)", sub.__module__) and is_dataclass(sub):
            yield sub
        yield from checked_classes(sub)


REQUIRED: dict[Any, dict[str, Any]] = {
    ClassSkew: {"R": 0.4},
    Dirichlet: {"alpha": 1.0},
    Model: {"network": "emnist_cnn"},
}


@pytest.mark.parametrize("cls", sorted(set(checked_classes()), key=str))
def test_a_value_outside_a_field_s_interval_is_refused_by_name(cls):
    """Just below the interval, above it, and no number at all."""
    for name, interval in _intervals(cls).items():
        low, high = map(float, interval.text[1:-1].split(","))
        outside = [math.nan, low - 1, *([low] if interval.text[0] == "(" else [])]
        outside += [] if math.isinf(high) else [2 * high + 1, *([high] if interval.text[-1] == ")" else [])]
        for value in outside:
            with pytest.raises(ConfigError, match=f"^{name}: .*choose "):
                cls(**{**REQUIRED.get(cls, {}), name: value})


def test_what_sweep_agents_write_is_understood():
    """Python's None and True, a table as JSON, and `--_wandb`: one experiment, one key. No seed passes through a float:
    2**53 + 1 is none."""
    words = ["--method.local_ratio=None", '--partition={"kind": "class_skew", "R": 0.4}', "--optimizer.nesterov=True"]
    assert resolve(None, [*words, "--_wandb=x"]).cell_key == DEFAULT.cell_key
    assert resolve(None, ["--seed=9007199254740993"]).seed == 9007199254740993


def test_a_kind_can_be_changed_by_its_name():
    changed = resolve(
        None, ["--method=ssfl", "--method.averaging=grouping", "--method.averaging.S=3", "--partition=iid"]
    )
    assert changed.method.averaging == Grouping(S=3) and changed.partition == Iid()
    assert resolve(None, ["--data=mnist"]).data.name == "mnist"


def test_a_part_s_fields_are_set_where_its_kind_is_the_default():
    """Method and field as two words: what the method has by default keeps its kind and its other fields."""
    found = resolve(None, ["--method", "ssfl", "--method.objective.threshold=0.5"]).method.objective
    default = resolve(None, ["--method=ssfl"]).method.objective
    assert found == replace(default, threshold=0.5) != default
    turned = ["--method.objective.threshold=0.5", "--method.kind=ssfl"]
    assert resolve(None, turned).method.objective == found  # a method named later drops no field


def test_files_and_words(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "federation: {K: 6, C: 3}\noptimizer.lr: 1e-3\nmethod:\n  kind: ssfl\n  averaging: grouping\n"
    )
    experiment = resolve(tmp_path / "a.yaml", ["--federation.C", "4"])
    assert (experiment.federation.K, experiment.federation.C, experiment.optimizer.lr) == (6, 4, 1e-3)
    assert experiment.method.averaging == Grouping()
    (tmp_path / "b.json").write_text(json.dumps({"cell_key": "x", **to_json(experiment)}))
    assert resolve(tmp_path / "b.json", []) == experiment
    (tmp_path / "c.toml").write_text("[federation]\nK = 6\nC = 6\n")
    assert resolve(tmp_path / "c.toml", []).federation.C == 6


@given(st.one_of(st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False)))
def test_scalars_come_back(value):
    assert scalar(json.dumps(value)) == value and scalar(repr(value)) == value
