"""No command takes a shortened, misspelt or withdrawn option; the message names the right one, or the successor."""

import pytest

from benchmark.cli.main import VERBS, WITHDRAWN, main, parser


@pytest.mark.parametrize("words", ["work x", "run", "data partition"])  # plain, with fields, and within another command
@pytest.mark.parametrize("option", ["--results", "--data-root", "--json", "--with-reference"])
def test_a_shortened_or_misspelt_option_is_refused(capsys, words, option):
    for wrong in (option[:-1], option[:-2] + option[:-3:-1], option + option[-1], f"{option[:-1]}=1"):
        assert main([*words.split(), wrong]) == 65, (words, wrong)
        assert capsys.readouterr().err.startswith(f"fssl: unknown option '{wrong.partition('=')[0]}'; "), wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list data --dta x", "unknown option '--dta'; did you mean '--data-root'?"),
        ("run --xyz=3", "unknown option '--xyz'; see `fssl run --help`"),
        ("run --N_s=51", "unknown option '--N_s'; did you mean '--data.N_s'?"),
        ("run --clients=3", "unknown option '--clients'; did you mean '--federation.K'?"),
        ("run --rho", "unknown option '--rho'; did you mean '--method.rho'?"),
        ("--data=mnist", "unknown option '--data'; options follow a command, see `fssl --help`"),
    ],
)
def test_the_nearest_option_is_named(capsys, words, said):
    assert main(words.split()) == 65
    assert capsys.readouterr().err == f"fssl: {said}\n"


@pytest.mark.parametrize("typed", WITHDRAWN)
def test_a_withdrawn_name_is_gone_and_names_its_successor(typed, capsys):
    """Alone, with a value, and behind other words; before anything else is looked at."""
    verb, *option = typed.split()
    for words in ([verb, *option], [verb, "x", *option, "2h"], [verb, *(f"{name}=2h" for name in option)]):
        assert main(words) == 65
        assert capsys.readouterr().err == f"fssl: `fssl {typed}` is withdrawn; {WITHDRAWN[typed]}\n"
    assert (verb in VERBS) == bool(option)
    assert not option or option[0] not in parser(verb).format_help()
