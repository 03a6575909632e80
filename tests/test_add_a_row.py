"""How to add a row: the page, the notebook and the skill agree, and the notebook makes an accepted submission."""

import json
import os
import re
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmark.cli.main import parser
from benchmark.experiment import to_json
from benchmark.papers.items import items
from reports.board import declared, environment_key
from tests.conftest import ROOT
from tests.readme import own_method

PAGE = (ROOT / "reports" / "add_a_row.md").read_text()
SKILL = (ROOT / ".agents" / "skills" / "add-a-row" / "SKILL.md").read_text()
NOTEBOOK = json.loads((ROOT / "reports" / "add_a_row.ipynb").read_text())
LONGEST = 500  # words of the page
CODE = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def table() -> str:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


def test_the_page_is_short() -> None:
    prose = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    assert len(prose.split()) <= LONGEST and len(PAGE.split()) <= LONGEST + 100


def test_every_command_has_these_options() -> None:
    """Of the page, the skill and the notebook: each option is one of its command's."""
    words = re.findall(r"fssl ([a-z]+)([^\n`;]*)", PAGE + SKILL)
    for command in re.findall(r"fssl\((.*?)\)\n?", "\n".join(CODE)) + re.findall(r"words = \[(.*?)\]", "\n".join(CODE)):
        parts = re.findall(r'"(.*?)"', command)
        words += [(parts[0], " ".join(parts[1:]))] if parts else []
    assert len(words) > 12
    for verb, rest in words:
        top: Any = parser(verb)
        known = top._subparsers._group_actions[0].choices[verb]._option_string_actions
        for option in re.findall(r"--[a-z][a-z.]*[a-z-]*", rest):
            assert option in known or "." in option or option == "--method", (verb, option)


def test_the_notebook_writes_the_readme_s_method_and_the_page_s_table() -> None:
    space: dict[str, object] = {}
    writes = [code for code in CODE if "write_text" in code]
    (method,) = [code for code in writes if "my_method.py" in code]
    (toml,) = [code for code in writes if "mine.toml" in code]
    written: list[str] = []

    class File:
        def __init__(self, name: str) -> None:
            pass

        def write_text(self, text: str) -> None:
            written.append(text)

    space["Path"] = File
    for code in (method, toml):
        exec(code, space)
    assert written == [own_method()[0], table()]
    assert all(not cell.get("outputs") for cell in NOTEBOOK["cells"])


def test_its_rows_are_rows_of_the_board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cells of the page's table lie in the environment of its digits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_method.py").write_text(own_method()[0])
    Path("mine.toml").write_text(table())
    (item,) = items(["./mine.toml"], "demo")
    sys.modules.pop("my_method", None)
    (environment,) = [environment for environment in declared()[0] if environment.name == "digits"]
    (board,) = items([environment.item], environment.profile)
    (key,) = {environment_key(to_json(cell.experiment)) for cell in board.cells}
    assert {environment_key(to_json(cell.experiment)) for cell in item.cells} == {key}
    assert len(item.cells) == 4 and item.seeds == tomllib.loads(table())["seeds"] >= 5
    keys = {cell.cell_key for cell in board.cells}
    assert sum(cell.cell_key in keys for cell in item.cells) == 3  # the others' runs are the board's own


@pytest.mark.slow
def test_the_notebook_runs_from_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    command = tools / "fssl"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m benchmark.cli.main "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    space: dict[str, object] = {}
    for code in CODE:
        exec(code.replace("seeds = 5", "seeds = 1"), space)
    report = Path("comment.md").read_text()
    assert report.count("- **accepted**") == 4 and "refused" not in report
    page = Path("site/board.html").read_text()
    assert "ServerLast" in page and "A new user" in page and "me on " in page
