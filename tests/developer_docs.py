"""Write the two documents for developers that follow from the code: the picture of the layers and the page of the API.

`python -m tests.developer_docs` writes `.github/architecture.svg`, from the import contract in `pyproject.toml`, and
`benchmark/methods/API.md`, from the docstrings, fields and signatures of the contract of a method.
"""

import ast
import html
import tomllib
from pathlib import Path

from tests.conftest import ROOT

PICTURE = ROOT / ".github" / "architecture.svg"
API = ROOT / "benchmark" / "methods" / "API.md"
CONTRACT = ROOT / "benchmark" / "methods" / "protocol.py"

# The classes that the author of a method meets, in the order in which they are needed.
CLASSES = (
    "Method",
    "State",
    "Setup",
    "World",
    "Job",
    "Key",
    "Stream",
    "Limit",
    "LocalUpdate",
    "Local",
    "Step",
    "Batch",
    "Outcome",
    "Reader",
    "Examiner",
)

PURPOSES = {
    "cli": "one file per command of fssl",
    "reports": "tables, figures and the site, as a pure function of run records",
    "sweeps": "plans, launchers, W&B sweep files, Optuna studies",
    "verdicts": "statistics, families of claims, verdicts",
    "sharing": "submissions, and checks of records",
    "papers": "published settings, tables, claims",
    "records": "run folders, locks, resuming",
    "diagnostics": "gradient diversity, communication summary",
    "federated": "rounds, local training, engines, evaluation",
    "experiment": "the frozen Experiment and its cell key",
    "methods": "one method or family of methods per file",
    "optimizer": "optimizers and schedules",
    "losses": "losses, with equation numbers",
    "models": "one network or family per file",
    "data": "images, partitions, label assignment, augmentation",
}
WIDTH, HEIGHT, GAP, MARGIN = 720, 34, 8, 12


def layers() -> list[list[str]]:
    """Read the layers of the import contract from pyproject.toml, the highest first; a layer may have several parts."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = config["tool"]["importlinter"]["contracts"][0]
    rows = []
    for layer in contract["layers"]:
        parts = layer.replace("|", ":").split(":")
        rows.append([part.strip().removeprefix("benchmark.") for part in parts])
    return rows


def architecture() -> str:
    """Draw one box per part of each layer, the command line on top. A layer imports only from layers below it."""
    rows = layers()
    height = 2 * MARGIN + len(rows) * (HEIGHT + GAP) + 24
    style = "font-family='sans-serif' font-size='13'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' {style}>",
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
    ]
    top = MARGIN
    for parts in rows:
        width = (WIDTH - 2 * MARGIN - GAP * (len(parts) - 1)) / len(parts)
        for position, part in enumerate(parts):
            left = MARGIN + position * (width + GAP)
            purpose = PURPOSES.get(part, "")
            text = html.escape(f" – {purpose}" if purpose and len(parts) <= 2 else "")
            box = f"x='{left:.0f}' y='{top}' width='{width:.0f}' height='{HEIGHT}' rx='4'"
            lines.append(f"<rect {box} fill='#eef3f8' stroke='#5b7a99'/>")
            label = f"<tspan font-weight='bold'>{html.escape(part)}</tspan>{text}"
            lines.append(f"<text x='{left + 10:.0f}' y='{top + 22}' fill='#1c2733'>{label}</text>")
        top += HEIGHT + GAP
    note = "Each layer imports only from layers below it (checked by make lint)."
    lines.append(f"<text x='{MARGIN}' y='{top + 16}' fill='#4a5a6a'>{note}</text>")
    return "\n".join([*lines, "</svg>\n"])


def _comment_above_or_beside(lines: list[str], node: ast.AnnAssign | ast.Assign) -> str:
    """Return the comment on the line of a field, or the comment lines directly above it."""
    _, _, beside = lines[(node.end_lineno or node.lineno) - 1].partition("  # ")
    if beside:
        return beside.strip()
    above = list[str]()
    number = node.lineno - 2
    while number >= 0 and lines[number].strip().startswith("# "):
        above.insert(0, lines[number].strip().removeprefix("# "))
        number -= 1
    return " ".join(above)


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (text or "").split("\n\n"))


def _field_row(code: str, lines: list[str], node: ast.AnnAssign) -> str:
    name, kind = ast.unparse(node.target), ast.unparse(node.annotation)
    default = f" = {ast.unparse(node.value)}" if node.value is not None else ""
    declared = f"{name}: {kind}{default}".replace("|", "\\|")
    return f"| `{declared}` | {_comment_above_or_beside(lines, node)} |"


def _function(node: ast.FunctionDef) -> str:
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("cls, ").removeprefix("self")
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    is_property = any(isinstance(one, ast.Name) and one.id == "property" for one in node.decorator_list)
    signature = f"{node.name}{returns}" if is_property else f"{node.name}({arguments}){returns}"
    return f"**`{signature}`**\n\n{_paragraphs(ast.get_docstring(node))}".strip()


def api() -> str:
    """Write the page of the API: per class its docstring, its fields and its functions."""
    code = CONTRACT.read_text()
    lines = code.splitlines()
    classes = {node.name: node for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}
    parts = [
        "# API for the author of a method",
        "Generated from the docstrings of `protocol.py` by `python -m tests.developer_docs`; an example is in the "
        "[README](README.md) of this folder. Shape suffixes: N images, C channels, H and W pixels, D classes. "
        "`Weights` is a dict of one network's tensors by name; a `Tree` is nested dicts of tensors and numbers.",
    ]
    for name in CLASSES:
        node = classes[name]
        parts += [f"## {name}", _paragraphs(ast.get_docstring(node))]
        fields = [child for child in node.body if isinstance(child, ast.AnnAssign)]
        rows = [_field_row(code, lines, child) for child in fields]
        if rows:
            parts.append("\n".join(["| field | meaning |", "|---|---|", *rows]))
        functions = [child for child in node.body if isinstance(child, ast.FunctionDef)]
        parts += [_function(child) for child in functions if not child.name.startswith("__")]
    return "\n\n".join(part for part in parts if part.strip()) + "\n"


def documents() -> dict[Path, str]:
    """Build both documents, by the file in which each is committed."""
    return {PICTURE: architecture(), API: api()}


if __name__ == "__main__":
    for path, text in documents().items():
        path.write_text(text)
