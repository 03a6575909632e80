"""reports/reliability.md: whole, made from the outcomes beside it, and the outcomes are those of the tests."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.faults.page import FIGURES, PAGE, made, name_of, page, run
from tests.faults.table import FAULTS

OUTCOMES: dict[str, Any] = json.loads((FIGURES / "faults.json").read_text())


@cache
def marks_in(file: str) -> dict[str, set[int]]:
    """The tests of a file and the faults that they name, read without importing it."""
    marked: dict[str, set[int]] = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = [mark for mark in node.decorator_list if ast.unparse(mark).startswith("pytest.mark.fault(")]
            numbers = [argument for mark in marks if isinstance(mark, ast.Call) for argument in mark.args]
            marked[node.name] = {int(ast.unparse(number)) for number in numbers}
    return marked


def test_the_page_is_what_the_outcomes_make_of_it():
    assert PAGE.read_text() == made()


def test_every_fault_has_a_row_with_a_test_that_held_or_says_why_there_is_none():
    rows = {int(row.group(1)): row.group(0) for row in re.finditer(r"^\| (\d+) \|.*$", PAGE.read_text(), re.MULTILINE)}
    assert rows.keys() == FAULTS.keys() and list(FAULTS) == list(range(1, 47))
    for number, row in rows.items():
        assert "held, " in row or FAULTS[number].unless, row
        assert "failed" not in row


def test_every_test_on_the_page_is_there_and_names_that_fault():
    for test, found in OUTCOMES["tests"].items():
        assert set(found["faults"]) == marks_in(test.partition("::")[0])[name_of(test)], test
    links = re.findall(r"\[(test_\w+)\]\(\.\./(\S+?)\)", PAGE.read_text())
    assert links and all(name in marks_in(file) for name, file in links)


def test_a_failed_and_a_skipped_case_are_on_the_page():
    x = {"faults": [1], "passed": 2, "failed": 1, "counts": {"kills": 5}}
    y = {"faults": [1], "skipped": 1, "why": "no disk", "counts": {}}
    found = page({"tests": {"a.py::test_x": x, "a.py::test_y": y}}, {})
    assert "2 cases of 2 tests held, 1 failed, 1 could not be run" in found and "| kills | 10 |" in found
    assert "| **1 failed**, held, 2 cases, 1 not run: no disk | [test_x](../a.py)<br>[test_y](../a.py) |" in found


MARKED = """
import pytest

@pytest.mark.fault(4, 5, counts="bytes", each=2)
@pytest.mark.parametrize("case", [1, 2, 3])
def test_of_two_faults(case):
    assert case < 3

@pytest.mark.fault(7)
def test_skipped():
    pytest.skip("no such disk")

def test_of_none():
    raise AssertionError
"""
HOOKS = "from tests.conftest import pytest_addoption, pytest_configure, pytest_itemcollected\n"


def collected(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(HOOKS)
    (folder / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", "-c", os.devnull]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [f"--faults={folder}/found.json", "test_it.py"]
    return subprocess.run([*command, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_outcomes_are_collected_case_by_case_and_those_of_other_tests_kept(tmp_path):
    """Two of three cases pass; what names no fault is not run; an older outcome of a test that is run is replaced."""
    one, two, other = "test_it.py::test_of_two_faults", "test_it.py::test_skipped", "test_other.py::test_z"
    old = {other: {"faults": [1], "passed": 1}, one: {"faults": [4], "failed": 3}}
    (tmp_path / "found.json").write_text(json.dumps({"tests": old}))
    assert collected(tmp_path, MARKED).returncode == 1
    found = json.loads((tmp_path / "found.json").read_text())["tests"]
    assert found.pop(other) == old[other]
    assert found.pop(one) == {"faults": [4, 5], "failed": 1, "passed": 2, "counts": {"bytes": 2}}
    assert found.pop(two) == {"faults": [7], "skipped": 1, "why": "no such disk", "counts": {}} and not found


@pytest.mark.slow
@pytest.mark.parametrize("words", ["99", ""])
def test_a_fault_that_is_not_in_the_table_is_refused(tmp_path, words):
    done = collected(tmp_path, f"import pytest\n@pytest.mark.fault({words})\ndef test_it():\n    pass\n")
    assert done.returncode == 4 and "numbers of tests/faults/table.py would be right" in done.stdout + done.stderr


@pytest.mark.slow
def test_outcomes_are_replaced_when_the_tests_have_ended_and_not_before(tmp_path):
    """A file that is not there is a run that could not begin, as one that was interrupted."""
    kept = tmp_path / "faults.json"
    kept.write_text(json.dumps({"tests": {"gone.py::test_gone": {"faults": [1], "passed": 1}}}))
    before = kept.read_bytes()
    assert run(tmp_path, ["tests/nowhere.py"]) == pytest.ExitCode.USAGE_ERROR and kept.read_bytes() == before
    assert run(tmp_path, ["tests/reports/test_chart.py"]) == 0 and list(tmp_path.iterdir()) == [kept]
    (test,) = json.loads(kept.read_text())["tests"]
    assert test.startswith("tests/reports/test_chart.py::")
