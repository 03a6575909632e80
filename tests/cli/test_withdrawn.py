"""Withdrawn commands and options end with 65 and name their successor."""

import pytest

from benchmark.cli.main import VERBS, WITHDRAWN, main, parser


@pytest.mark.parametrize("typed", WITHDRAWN)
def test_a_withdrawn_name_ends_with_65_and_names_its_successor(typed, capsys):
    """Alone, with a value, and behind other words: one line, before anything else is looked at."""
    verb, *option = typed.split()
    lines = [[verb, *option], [verb, "x", *option, "2h"], [verb, *(f"{name}=2h" for name in option)]]
    for words in lines:
        assert main(words) == 65
        assert capsys.readouterr().err == f"fssl: `fssl {typed}` is withdrawn; {WITHDRAWN[typed]}\n"


@pytest.mark.parametrize("typed", WITHDRAWN)
def test_a_withdrawn_name_is_gone(typed):
    """The command of a withdrawn option is still there."""
    verb, *option = typed.split()
    assert (verb in VERBS) == bool(option)
    assert not option or option[0] not in parser(verb).format_help()
