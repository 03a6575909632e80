"""What every table on the terminal shares: 100 columns, text that this console can write, calm lines."""

import textwrap

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
# SIMPLE_HEAD with a thin line between sections.
SECTIONS = Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")


def new_table(box: Box = SIMPLE_HEAD) -> Table:
    return Table(box=box, padding=(0, 1), pad_edge=False, collapse_padding=True)


def say(console: Console, text: str, style: str = "", indent: str = "", hang: str | None = None) -> None:
    """Wrapped at WIDTH; further lines are indented by `hang` (default: as the first)."""
    further = indent if hang is None else hang
    lines = textwrap.wrap(
        plain(text, console), WIDTH, initial_indent=indent, subsequent_indent=further, break_long_words=False
    )
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def plus_minus(console: Console) -> str:
    return "±" if console.encoding.lower().startswith("utf") else "+-"


def plain(text: str, console: Console) -> str:
    """Text this console can write: other characters become "?", control characters (escape sequences) vanish."""
    shown = "".join(character for character in text if character.isprintable() or character == "\n")
    return shown.encode(console.encoding, "replace").decode(console.encoding)
