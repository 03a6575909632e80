"""No command takes a shortened or misspelt option; the message names the right one."""

import argparse
from collections.abc import Iterator

import pytest

from benchmark.cli.main import VERBS, main, parser


def leaves(command: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """Each innermost command: the words that lead to it, with something for what it requires, and its long options."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from leaves(inner, (*words, name))
            return
    required = [action for action in command._actions if not action.option_strings and action.nargs not in ("*", "?")]
    options = {name for name in command._option_string_actions if name.startswith("--")}
    yield (*words, *("x" for _ in required)), options


def commands() -> Iterator[tuple[tuple[str, ...], set[str]]]:
    for verb in VERBS:
        (inner,) = [
            action.choices[verb] for action in parser(verb)._actions if isinstance(action, argparse._SubParsersAction)
        ]
        yield from leaves(inner, (verb,))


@pytest.mark.parametrize(
    ("words", "options"), [pytest.param(*command, id=" ".join(command[0])) for command in commands()]
)
def test_a_shortened_or_misspelt_option_is_refused(capsys, words, options):
    for option in options:
        shortened, swapped, doubled = option[:-1], option[:-2] + option[:-3:-1], option + option[-1]
        for wrong in {shortened, swapped, doubled, f"{shortened}=1"} - {"--"}:
            if wrong.partition("=")[0] in options:
                continue
            assert main([*words, wrong]) == 65, (words, wrong)
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
