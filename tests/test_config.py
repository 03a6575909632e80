"""Reading configurations: what is right comes back the same; a key that stands twice, and what is wrong, is refused."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.cli.run import DEFAULT, resolve
from benchmark.config import Checked, _intervals, scalar
from benchmark.data.augment import Augmentation, Gentle
from benchmark.data.partition import ClassSkew, Dirichlet, Iid
from benchmark.errors import ConfigError, DataError
from benchmark.experiment import Data, Experiment, from_json, to_json
from benchmark.files import read_json
from benchmark.methods.ssfl import Grouping
from benchmark.models.build import Model
from benchmark.plain import read_table
from sweeps.sweep_file import COMMAND, read


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


def checked_classes(cls: Any = Checked) -> Iterator[Any]:
    """Return all parts of an experiment that check their values."""
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
        outside = [math.nan, low - 1]
        if interval.text[0] == "(":
            outside.append(low)
        if not math.isinf(high):
            outside.append(2 * high + 1)
            if interval.text[-1] == ")":
                outside.append(high)
        for value in outside:
            with pytest.raises(ConfigError, match=f"^{name} is .* must be "):
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


@pytest.mark.parametrize(
    ("suffix", "text", "says"),
    [
        ("json", '{"federation": {"K": 5, "C": 2, "K": 6}}', "K is given twice"),
        ("json", '[{"K": 5, "K": 5}]', "K is given twice"),
        ("yaml", "'seed': 1\ndata: {N_s: 5}\nseed: 2\n", "seed is given twice"),
        ("yaml", "federation: {K: 5, K: 6}\n", "K is given twice"),
        ("toml", "seed = 1\nseed = 2\n", "overwrite"),
        ("yaml", "federation.K: 5\nfederation: {K: 6}\n", r"federation\.K is given twice"),
        ("yaml", "federation: {K: 6}\nfederation.K: 5\n", r"federation\.K is given twice"),
        # Numbers that YAML reads otherwise than people do.
        *(("yaml", f"data: {{N_s: 50}}\nseed: {text}\n", f"line 2: {text} is not a plain number")
          for text in ("010", "-007", "1:30", "1:30.5", "0_1")),
    ],
)  # fmt: skip
def test_what_is_read_otherwise_than_it_looks_is_refused_in_every_format(tmp_path, suffix, text, says):
    path = tmp_path / f"a.{suffix}"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"a.{suffix} .*{says}"):
        read_table(path)


@pytest.mark.parametrize(
    "words",
    [
        ["--seed", "1", "--federation.K=5", "--seed=1"],
        ["--data", "mnist", "--data.name=digits"],
        ['--method.averaging={"kind": "fedavg", "kind": "grouping"}'],
    ],
)
def test_a_field_that_is_set_twice_on_the_command_line_is_refused(words):
    with pytest.raises(ConfigError, match="is given twice; give it once"):
        resolve(None, words)


def test_records_sweep_files_and_studies_are_read_by_the_same_rule(tmp_path, capsys):
    """NaN and the infinities are refused: Python reads them, and JSON does not have them."""
    cores = [(f'{{"cores": {word}}}', f"is damaged .{word} is not JSON") for word in ("NaN", "Infinity", "-Infinity")]
    for text, says in (('{"commit": "a", "commit": "b"}', "commit is given twice"), *cores):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DataError, match=f"manifest.json .*{says}"):
            read_json(tmp_path / "manifest.json")
    sweep = f"method: grid\ncommand: {json.dumps(COMMAND)}\nparameters:\n  seed: {{value: 1}}\n  seed: {{value: 2}}\n"
    (tmp_path / "sweep.yaml").write_text(sweep)
    with pytest.raises(ConfigError, match="seed is given twice"):
        read(tmp_path / "sweep.yaml")
    (tmp_path / "study.toml").write_text('name = "a"\nname = "b"\n')
    assert main(["tune", str(tmp_path / "study.toml")]) == 65
    assert "study.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "fields"),
    [
        # A byte-order mark is passed over.
        *((name, f"\ufeff{text}", {"seed": 3})
          for name, text in (("a.json", '{"seed": 3}'), ("a.toml", "seed = 3"), ("a.yaml", "seed: 3"))),
        # The example of YAML's own merge specification: own keys take precedence over merged ones.
        ("a.yaml", "x: &x {K: 5, C: 2}\nf: {<<: [*x, {T: 3}], C: 4}\n",
         {"x": {"K": 5, "C": 2}, "f": {"K": 5, "C": 4, "T": 3}}),
        ("a.yaml", "plain: [10, 0, 0.5, 1.0e-3, 0x10, 1_000, -3]\n", {"plain": [10, 0, 0.5, 1e-3, 16, 1000, -3]}),
    ],
)  # fmt: skip
def test_what_is_plain_is_read(tmp_path, name, text, fields):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_table(tmp_path / name) == fields


def test_words_that_are_no_tables_stay_words():
    assert [scalar(text) for text in ("{", "(1, 2)", "3", "adam")] == ["{", "(1, 2)", 3, "adam"]
