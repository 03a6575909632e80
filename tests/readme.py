"""Read the examples of README.md from its text: the commands, the method and the user's table."""

import re

from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()


def shell_lines(text: str) -> list[str]:
    """Find the lines of code blocks of any language; a backslash joins a line and the next."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    return "\n".join(blocks).replace("\\\n", " ").splitlines()


def own_method() -> tuple[str, str]:
    """Read the code of README's method, the file `my_method.py`, and the name of its class."""
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "def round(" in block]
    *_, name = re.findall(r"^class (\w+)(?:\(Method\))?:", code, re.MULTILINE)
    return code, name


def own_table() -> str:
    """Read README's table, the file `mine.toml`."""
    (text,) = [block for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL) if "rows" in block]
    return text


def short_table() -> str:
    """Shorten README's table to one round of one local step."""
    short = own_table().replace('"federation.rounds" = 50', '"federation.rounds" = 1, "federation.T" = 1')
    assert short != own_table()
    return short
