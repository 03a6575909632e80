"""A study's best setting as a change of the source: a unified diff for a person to read and `git apply`.

The declaration is a call with keywords and literal values (`NAME = Class(lr=0.03, ...)`); only literals are replaced,
so comments and layout stay.
"""

import ast
import difflib
from collections.abc import Mapping
from pathlib import Path

from benchmark.errors import ConfigError
from sweeps.tune.study import Declaration


def diff(root: Path, declaration: Declaration, values: Mapping[str, float]) -> str:
    """What would give the declaration's keywords these values, as `git apply` takes it in `root`; empty where they have
    them. Raises ConfigError."""
    path = root / declaration.file
    try:
        before = path.read_text()
    except OSError as error:
        raise ConfigError(f"{declaration.file}: cannot be read ({error.strerror})") from None
    after = with_values(before, declaration, values)
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        fromfile=f"a/{declaration.file}",
        tofile=f"b/{declaration.file}",
    )
    return "".join(lines)


def with_values(source: str, declaration: Declaration, values: Mapping[str, float]) -> str:
    """The source with these keywords' values replaced. Raises ConfigError where the declaration lacks one of them."""
    places = {keyword.arg: keyword.value for keyword in _call(source, declaration).keywords}
    missing = [name for name in values if name not in places]
    if missing:
        raise ConfigError(
            f"{declaration.file}: {declaration.name} sets no {missing[0]!r}; each field tuned would be right"
        )
    lines = [line.encode() for line in source.splitlines(keepends=True)]  # positions of `ast` are bytes
    for name, value in sorted(values.items(), key=lambda entry: (places[entry[0]].lineno, places[entry[0]].col_offset))[
        ::-1
    ]:
        node = places[name]
        if ast.literal_eval(node) == value:
            continue
        assert node.lineno == node.end_lineno and node.end_col_offset is not None
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + repr(value).encode() + line[node.end_col_offset :]
    return b"".join(lines).decode()


def _call(source: str, declaration: Declaration) -> ast.Call:
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if (
            declaration.name in names
            and isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Call)
        ):
            return node.value
    raise ConfigError(f"{declaration.file}: has no {declaration.name} = Class(...); the study's declaration names it")
