"""Check three rules of the code style that ruff does not have. Each of them keeps an expression to one thought.

1. An expression has at most one comprehension. An expression is a whole one: a value, condition or message of a
   statement, with all that is nested in it. A comprehension with two loops counts as one.
2. A comprehension's condition has no walrus.
3. A conditional expression has no other one in it.

`python -m tests.style [PATH...]` prints the violations in these folders and files, and exits with 1 if there are any.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("benchmark", "sweeps", "reports", "tests")
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SECOND = "a second comprehension in one expression; give the first one's value a name of its own, or write a loop"
WALRUS = "a walrus in a comprehension's condition; compute the value in a comprehension before it, or write a loop"
NESTED = "a conditional expression inside another one; write if statements, or give the inner one's value a name"


def violations(code: str) -> list[tuple[int, str]]:
    """List the line of each violation in this source code, with what is wrong and what to write instead."""
    found: set[tuple[int, str]] = set()
    for expression in _expressions(ast.parse(code)):
        nodes = list(ast.walk(expression))
        comprehensions = [node for node in nodes if isinstance(node, COMPREHENSIONS)]
        places = sorted((node.lineno, node.col_offset) for node in comprehensions)
        found.update((line, SECOND) for line, _ in places[1:])
        for node in nodes:
            if isinstance(node, ast.comprehension):
                found.update((line, WALRUS) for line in _walrus_lines(node.ifs))
            if isinstance(node, ast.IfExp):
                found.update((inner.lineno, NESTED) for inner in _inside(node) if isinstance(inner, ast.IfExp))
    return sorted(found)


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Yield each expression that is not part of another one."""
    if isinstance(node, ast.expr):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _expressions(child)


def _walrus_lines(conditions: list[ast.expr]) -> Iterator[int]:
    for condition in conditions:
        for node in ast.walk(condition):
            if isinstance(node, ast.NamedExpr):
                yield node.lineno


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield from ast.walk(child)


def python_files(path: Path) -> list[Path]:
    """List the file itself, or all Python files below the folder."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main(paths: list[str]) -> int:
    """Print `FILE:LINE: what is wrong; what to write` for each violation, and return the exit status."""
    lines = []
    for path in paths or FOLDERS:
        for file in python_files(Path(path)):
            lines += [f"{file}:{line}: {what}" for line, what in violations(file.read_text("utf-8"))]
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
