"""Check that only prose changed since a git revision: docstrings, comments and messages.

`python -m tests.same_code REVISION [PATH...]` compares each Python file of the product (or in these folders and files)
with its version in REVISION. Both are parsed, docstrings are removed, and each text of two words or more becomes a
placeholder (an f-string or `"...".format(...)`: the expressions that it shows, sorted). The command prints the first
difference per file and exits with 1 if there is one. With `--texts`, it also prints each changed text that is not a
docstring, old and new: look for texts that are a name or a label, because some of these are hashed.
"""

import argparse
import ast
import difflib
import subprocess
import sys
from collections import Counter
from pathlib import Path

FOLDERS = ("benchmark", "sweeps", "reports")
PLACEHOLDER = "<text>"


class _WithoutProse(ast.NodeTransformer):
    """Remove docstrings and replace texts of two words or more; collect these texts in `texts`."""

    def __init__(self) -> None:
        self.texts: Counter[str] = Counter()

    def _body(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        if not node.body or all(isinstance(child, ast.Pass) for child in node.body):
            node.body = [ast.Expr(ast.Constant(...))]
        return self.generic_visit(node)

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _body

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and " " in node.value.strip():
            self.texts[node.value] += 1
            return ast.Constant(PLACEHOLDER)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Keep the expressions of an f-string, in an order that does not depend on its sentence."""
        constants = [part.value for part in node.values if isinstance(part, ast.Constant)]
        text = "{}".join(str(constant) for constant in constants)
        if " " not in text.strip():
            return self.generic_visit(node)
        self.texts[text] += 1
        shown = [self.visit(part) for part in node.values if isinstance(part, ast.FormattedValue)]
        return ast.Tuple(sorted(shown, key=ast.dump), ast.Load())

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Join neighbouring texts, so that a sentence may be broken differently."""
        self.generic_visit(node)
        left_is_prose = isinstance(node.left, ast.Constant) and node.left.value == PLACEHOLDER
        right_is_prose = isinstance(node.right, ast.Constant) and node.right.value == PLACEHOLDER
        if isinstance(node.op, ast.Add) and left_is_prose and right_is_prose:
            return ast.Constant(PLACEHOLDER)
        return node


def without_prose(code: str) -> tuple[list[str], Counter[str]]:
    """Return the lines of the code's syntax tree without prose, and the texts that were replaced in it."""
    remover = _WithoutProse()
    tree = remover.visit(ast.parse(code))
    return ast.dump(tree, indent=1).splitlines(), remover.texts


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Compare all files with a revision, print the differences, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision")
    parser.add_argument("paths", nargs="*", default=list(FOLDERS))
    parser.add_argument("--texts", action="store_true", help="print each changed text that is not a docstring")
    options = parser.parse_args()
    listed = _git("ls-tree", "-r", "--name-only", options.revision, "--", *options.paths)
    old_paths = [path for path in listed.splitlines() if path.endswith(".py")]
    new_paths = [path for path in _git("ls-files", "--", *options.paths).splitlines() if path.endswith(".py")]
    different = len(set(old_paths) ^ set(new_paths))
    for path in sorted(set(old_paths) ^ set(new_paths)):
        print(f"{path}: only in one of the two versions")
    for path in sorted(set(old_paths) & set(new_paths)):
        old_lines, old_texts = without_prose(_git("show", f"{options.revision}:{path}"))
        new_lines, new_texts = without_prose(Path(path).read_text())
        if old_lines != new_lines:
            different += 1
            hunk = list(difflib.unified_diff(old_lines, new_lines, lineterm="", n=4))[2:30]
            print(f"{path}: the code differs\n  " + "\n  ".join(hunk))
        if options.texts:
            for sign, texts in (("-", old_texts - new_texts), ("+", new_texts - old_texts)):
                for text in texts:
                    print(f"{path}: {sign} {text!r}")
    print(f"{len(new_paths)} files: " + (f"{different} differ" if different else "only prose differs"))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
