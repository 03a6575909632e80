"""Words of `fssl run`."""

import json

import pytest

from tests.cli.test_cli import fssl


def printed(capsys, *words: str) -> dict:
    code, out, err = fssl(capsys, "run", *words, "--print-config")
    assert code == 0, err
    return json.loads(out)


def test_data_is_short_for_its_name(capsys):
    """What else is set of the data stays."""
    short = printed(capsys, "--data.N_s=250", "--data", "cifar10")
    assert short == printed(capsys, "--data.name=cifar10", "--data.N_s=250") and short["data"]["name"] == "cifar10"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--threads", "0"], "--threads: 0; choose 1 or more"),
        (["--engine", "cpu"], "unknown engine 'cpu'; choose auto, reference, pool, ray"),
        (["--engine", "pool", "--device", "cuda"], "choose --engine reference"),
        (["--engine", "pool", "--workers", "0"], "--workers: 0; choose 1 or more"),
        (["--engine", "pool", "--workers", "-1"], "--workers: -1; choose 1 or more"),
        (["--device", "tpu"], "unknown device 'tpu'; choose cpu, cuda or cuda:0"),
        (["--sweep", "sweep.json", "--cell", "x"], "leave out --cell and --config"),
        (["--federation.T"], "--federation.T has no value; type --federation.T=VALUE"),
    ],
)
def test_wrong_words_are_one_line(capsys, tmp_path, words, says):
    code, _, err = fssl(capsys, "run", *words, "--results", tmp_path)
    assert code == 65 and says in err and err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
