"""`fssl --install-completion`: complete commands and options in bash and zsh, from a script made of the parsers."""

import argparse
import os
from pathlib import Path

from benchmark.files import write_atomically

OPTION = "--install-completion"

SCRIPT = """# Completion of fssl, written by `fssl {option}`. zsh needs: autoload -U bashcompinit && bashcompinit
_fssl() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{verbs}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        *) words="" ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    if [ "${{word#-}}" = "$word" ] && [ "$COMP_CWORD" -gt 1 ]; then
        COMPREPLY+=($(compgen -f -- "$word"))
    fi
}}
complete -F _fssl fssl
"""


def words_of(command: argparse.ArgumentParser) -> list[str]:
    """List the options of a command, and the choices of its first argument."""
    words: list[str] = []
    for action in command._actions:
        words += [option for option in action.option_strings if option.startswith("--")]
        if not action.option_strings and action.choices is not None:
            words += map(str, action.choices)
    return words


def script() -> str:
    """Build the script for all commands. This needs seconds, because it imports every command's module."""
    from benchmark.cli.main import VERBS, parser

    cases = []
    for verb in VERBS:
        (verbs,) = [action for action in parser(verb)._actions if isinstance(action, argparse._SubParsersAction)]
        cases.append(f'        {verb}) words="{" ".join(words_of(verbs.choices[verb]))}" ;;')
    return SCRIPT.format(option=OPTION, verbs=" ".join(VERBS), cases="\n".join(cases))


def install() -> None:
    """Write the script into bash-completion's folder, and print how to load it without bash-completion and in zsh."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    path = home / "bash-completion" / "completions" / "fssl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, script().encode())
    print(f"completion is installed for new shells with bash-completion; for this one and for zsh, type: source {path}")
