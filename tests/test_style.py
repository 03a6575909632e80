"""The checker of style refuses an expression of two thoughts, and nothing else."""

from pathlib import Path
from textwrap import indent

import pytest

from tests.style import main, violations

REFUSED = {
    "a comprehension in another one's element": "x = [[a for a in row] for row in rows]",
    "a comprehension in another one's condition": "x = {a for a in row if all(b < a for b in row)}",
    "a comprehension that another one runs over": "x = sum(a for a in [b * b for b in row])",
    "two comprehensions side by side": "x, y = [a for a in row], {a: 1 for a in row}",
    "two comprehensions in one call": "f([a for a in row], key=(a for a in row))",
    "two comprehensions in a lambda": "f(lambda: [a for a in row] + [a for a in row])",
    "two comprehensions in one text": 'x = f"{[a for a in row]} {[a for a in row]}"',
    "two comprehensions in a loop's header": "for a in [b for b in row] + [b for b in row]:\n    pass",
    "a walrus in a condition": "x = [b for a in row if (b := f(a))]",
    "a walrus in a second loop's condition": "x = [b for row in rows for a in row if f(a) and (b := g(a)) is not None]",
    "a conditional expression in an other branch": "x = 1 if a else 2 if b else 3",
    "a conditional expression in a condition": "x = 1 if (a if b else c) else 2",
    "a conditional expression in an argument": "x = f(1 if a else 2) if b else 3",
}
ACCEPTED = {
    "one comprehension with two loops": "x = [a for row in rows for a in row if a]",
    "a comprehension that has a name": "y = [a for a in row]\nx = [a for a in y]",
    "a condition and a message": "assert all(a for a in row), [a for a in row]",
    "a header and its body": "if any(a for a in row):\n    x = [a for a in row]",
    "several defaults": "def f(a=[b for b in row], c=[b for b in row]):\n    pass",
    "a walrus elsewhere": "x = [(b := f(a)) for a in row]\nif (c := f(x)) and c > 1:\n    pass",
    "conditional expressions side by side": "x = (1 if a else 2) + (3 if b else 4)",
    "a conditional expression in a comprehension": "x = [1 if a else 2 for a in row if (3 if a else 4)]",
}


@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED)
def test_an_expression_of_two_thoughts_is_refused_at_its_line(code: str) -> None:
    assert [line for line, _ in violations(code)] == [1]
    inside = "class A:\n    def f(self):\n" + indent(code, " " * 8)
    assert [line for line, _ in violations(inside)] == [3]


@pytest.mark.parametrize("code", ACCEPTED.values(), ids=ACCEPTED)
def test_an_expression_of_one_thought_is_accepted(code: str) -> None:
    assert violations(code) == []


def test_each_violation_of_a_file_is_printed_at_its_place(tmp_path: Path, capsys) -> None:
    below = tmp_path / "folder" / "below.py"
    below.parent.mkdir()
    below.write_text("\n".join([*REFUSED.values(), *ACCEPTED.values()]))
    beside = tmp_path / "beside.py"
    beside.write_text("x = 1 if a else 2 if b else 3\n")
    assert main([str(below.parent), str(beside)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(REFUSED) + 1
    assert printed[0].startswith(f"{below}:1: ") and printed[-1].startswith(f"{beside}:1: ")

    below.write_text("\n".join(ACCEPTED.values()))
    assert main([str(below.parent)]) == 0
    assert capsys.readouterr().out == ""
