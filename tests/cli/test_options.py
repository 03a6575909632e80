"""No command takes a shortened or misspelt option; the message names the right one."""

import argparse

import pytest

from benchmark.cli.main import main, parser


@pytest.mark.parametrize("words", ["work x", "run", "data partition"])  # plain, with fields, and within another command
def test_a_shortened_or_misspelt_option_is_refused(capsys, words):
    command = parser(words.split()[0])
    for word in words.removesuffix(" x").split():
        (inner,) = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
        command = inner.choices[word]
    options = {name for name in command._option_string_actions if name.startswith("--")}
    assert len(options) > 5
    for option in options:
        shortened, swapped, doubled = option[:-1], option[:-2] + option[:-3:-1], option + option[-1]
        for wrong in {shortened, swapped, doubled, f"{shortened}=1"} - {"--"}:
            if wrong.partition("=")[0] in options:
                continue
            assert main([*words.split(), wrong]) == 65, (words, wrong)
            message = capsys.readouterr().err
            assert message.startswith(f"fssl: unknown option '{wrong.partition('=')[0]}'; did you mean '--"), message


def test_the_nearest_option_is_named(capsys):
    assert main(["list", "data", "--dta", "x"]) == 65
    assert capsys.readouterr().err == "fssl: unknown option '--dta'; did you mean '--data-root'?\n"
    assert main(["run", "--xyz=3"]) == 65
    assert capsys.readouterr().err == "fssl: unknown option '--xyz'; see `fssl run --help`\n"
    for word, meant in [("--N_s=51", "--data.N_s"), ("--lr=0.1", "--optimizer.lr"), ("--K", "--federation.K"),
                        ("--clients=3", "--federation.K"), ("--rho", "--method.rho")]:  # fmt: skip
        assert main(["run", word]) == 65
        assert capsys.readouterr().err == f"fssl: unknown option '{word.partition('=')[0]}'; did you mean '{meant}'?\n"
    assert main(["--data=mnist"]) == 65
    assert capsys.readouterr().err == "fssl: unknown option '--data'; options follow a command, see `fssl --help`\n"
