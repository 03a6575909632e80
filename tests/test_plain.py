"""A key that stands twice is refused, wherever a person or a program writes one; numbers are what people read."""

import json

import pytest

from benchmark.cli.main import main
from benchmark.cli.run import resolve
from benchmark.config import scalar
from benchmark.errors import ConfigError, DataError
from benchmark.plain import read_fields, read_table
from benchmark.records.files import read_json
from sweeps.sweep_file import COMMAND, read

TWICE = {
    "deep.json": '{"federation": {"K": 5, "C": 2, "K": 6}}',
    "list.json": '[{"K": 5, "K": 5}]',
    "a.yaml": "seed: 1\ndata: {N_s: 5}\nseed: 2\n",
    "flow.yaml": "federation: {K: 5, K: 6}\n",
    "quoted.yaml": "'seed': 1\nseed: 2\n",
    "a.toml": "seed = 1\nseed = 2\n",
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_stands_twice_is_refused_in_every_format(tmp_path, name):
    (tmp_path / name).write_text(TWICE[name])
    with pytest.raises(ValueError, match="twice|overwrite|declare"):
        read_fields(tmp_path / name)


@pytest.mark.parametrize("text", ["federation.K: 5\nfederation: {K: 6}\n", "federation: {K: 6}\nfederation.K: 5\n"])
def test_two_spellings_of_one_field_are_one_key(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"federation\.K is given twice"):
        read_table(tmp_path / "a.yaml")


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


def test_a_record_and_a_sweep_file_are_read_by_the_same_rule(tmp_path, capsys):
    (tmp_path / "manifest.json").write_text('{"commit": "a", "commit": "b"}')
    with pytest.raises(DataError, match="commit is given twice"):
        read_json(tmp_path / "manifest.json")
    sweep = f"method: grid\ncommand: {json.dumps(COMMAND)}\nparameters:\n  seed: {{value: 1}}\n  seed: {{value: 2}}\n"
    (tmp_path / "sweep.yaml").write_text(sweep)
    with pytest.raises(ConfigError, match="seed is given twice"):
        read(tmp_path / "sweep.yaml")
    (tmp_path / "study.toml").write_text('name = "a"\nname = "b"\n')
    assert main(["tune", str(tmp_path / "study.toml")]) == 65
    assert "study.toml" in capsys.readouterr().err


def test_what_json_has_no_word_for_is_no_json(tmp_path):
    """Python reads these three; no record that this suite writes has them."""
    for word in ("NaN", "Infinity", "-Infinity"):
        (tmp_path / "manifest.json").write_text(f'{{"hardware": {{"cores": {word}}}}}')
        with pytest.raises(DataError, match=f"manifest.json: is damaged .{word} is not JSON"):
            read_json(tmp_path / "manifest.json")


def test_merge_keys_of_yaml_go_on_working(tmp_path):
    """The example of YAML's own merge specification: own keys take precedence over merged ones."""
    text = "base: &base {K: 5, C: 2}\nmore: &more {T: 3}\nfederation:\n  <<: [*base, *more]\n  C: 4\n"
    (tmp_path / "a.yaml").write_text(text)
    assert read_fields(tmp_path / "a.yaml")["federation"] == {"K": 5, "C": 4, "T": 3}


def test_numbers_that_yaml_reads_otherwise_than_people_are_refused_and_plain_ones_stay(tmp_path):
    path = tmp_path / "a.yaml"
    for text in ("010", "-007", "1:30", "1:30.5", "0_1"):
        path.write_text(f"data: {{N_s: 50}}\nseed: {text}\n")
        with pytest.raises(ValueError, match=f"line 2: {text} is not a plain number"):
            read_fields(path)
    path.write_text("plain: [10, 0, 0.5, 1.0e-3, 0x10, 1_000, -3]\n")
    assert read_fields(path) == {"plain": [10, 0, 0.5, 1e-3, 16, 1000, -3]}


@pytest.mark.parametrize(("name", "text"), [("a.json", '{"seed": 3}'), ("a.toml", "seed = 3"), ("a.yaml", "seed: 3")])
def test_a_byte_order_mark_is_passed_over(tmp_path, name, text):
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_table(tmp_path / name) == {"seed": 3}


def test_words_that_are_no_tables_stay_words():
    assert [scalar(text) for text in ("{", "(1, 2)", "3", "adam")] == ["{", "(1, 2)", 3, "adam"]
