"""reports/reliability.md from the tests of faults: python -m tests.faults.page [--run]

--run runs these tests first (`make faults`, about a quarter of an hour) and keeps their outcomes in
results/reliability/faults.json. The page is made from that file and, where they were run, from those of the long
campaigns beside it: soak.json, once.json, fuzz.json.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults.table import FAULTS

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "results" / "reliability"
PAGE = ROOT / "reports" / "reliability.md"

HEAD = """# What goes wrong, and what happens then

Every fault of the list below is made by a test: processes are killed, disks filled, bytes flipped, ranks stopped,
servers cut off. `make faults` runs these tests and writes this page from what became of them.
"""
UNSHOWN = """## What is not shown

* The W&B server of the tests is our reading of its protocol, on this machine; its cloud was not asked.
* Power cuts: every file is flushed to the disk before and after it gets its name, but no machine was switched off.
* NFS: leases are compared on one file system by several processes; no cluster was at hand.
* A GPU that is short of memory: parts are tested with a CPU that refuses memory.
* Equality to the bit holds for one engine, precision, number of threads a worker and type of processor. The gpu engine
  does not promise it; it is compared within 1e-5, on CPU tensors.
* Weights are plain state dicts, loaded with `weights_only`, and not safetensors: that would be one more dependency for
  the same promise, that no code runs.
"""


def page(outcomes: Mapping[str, Any], campaigns: Mapping[str, Mapping[str, Any]]) -> str:
    """The page as Markdown; `campaigns`: what the long runs found, by their names, as far as they were run."""
    tests = outcomes["tests"].values()
    cases = sum(case.get("passed", 0) for case in tests)
    failed = sum(case.get("failed", 0) for case in tests)
    skipped = sum(case.get("skipped", 0) for case in tests)
    said = (
        f"As they last ended: {cases} cases of {len(outcomes['tests'])} tests held, {failed} failed, "
        f"{skipped} could not be run on that machine."
    )
    rows = [_row(number, outcomes) for number in FAULTS]
    table = ["| | what goes wrong | what has to happen | outcome | tests |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join([HEAD, said, "", *_figures(outcomes, campaigns), "", "## The faults", "", *table, "", UNSHOWN])


def _row(number: int, outcomes: Mapping[str, Any]) -> str:
    fault = FAULTS[number]
    tests = [test for test, found in outcomes["tests"].items() if number in found["faults"]]
    cells = (str(number), fault.what, fault.expected, _outcome(tests, outcomes) or fault.unless, _links(tests))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _outcome(tests: Sequence[str], outcomes: Mapping[str, Any]) -> str:
    found = [outcomes["tests"][test] for test in tests]
    failed, passed, skipped = (sum(one.get(key, 0) for one in found) for key in ("failed", "passed", "skipped"))
    whys = sorted({one["why"] for one in found if "why" in one})
    parts = [f"**{failed} failed**"] if failed else []
    parts += [f"held, {passed} {'case' if passed == 1 else 'cases'}"] if passed else []
    parts += [f"{skipped} not run: {'; '.join(whys)}"] if skipped else []
    return ", ".join(parts)


def _links(tests: Sequence[str]) -> str:
    return "<br>".join(f"[{name_of(test)}](../{test.partition('::')[0]})" for test in tests)


def name_of(test: str) -> str:
    """`test_a_fault` of tests/x/test_y.py::test_a_fault."""
    return test.rpartition("::")[2]


def _figures(outcomes: Mapping[str, Any], campaigns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    head = ["## Figures", "", "| what | how often | what was lost | by |", "| --- | --- | --- | --- |"]
    count: Counter[str] = Counter()
    for test in outcomes["tests"].values():
        count.update({name: each * test.get("passed", 0) for name, each in test["counts"].items()})
    lost = "nothing; a case counts where its test held"
    rows = [f"| {name} | {count[name]:,} | {lost} | `make faults` |" for name in sorted(count)]
    return head + rows + [CAMPAIGNS[name](found) for name, found in campaigns.items()]


def _soak(found: Mapping[str, Any]) -> str:
    pairs, runs = found["by_pair"], len(found["runs"])
    differed = f"{len(found['differed'])} of {runs} runs differed from the unbroken one"
    what = f"kills over {len(pairs)} pairs of method and engine, {min(pairs.values())} or more each"
    return f"| {what} | {found['kills']:,} | {differed} | `make soak` |"


def _once(found: Mapping[str, Any]) -> str:
    what = f"cells raced for by {found['workers']} workers, {found['killed']} kills"
    return f"| {what} | {found['cells']:,} | {len(found['wrong']) or 'nothing'} | `python -m tests.soak.once` |"


def _fuzz(found: Mapping[str, Any]) -> str:
    counts = found["by_reader"]
    refused = sum(count for name, count in counts.items() if name.endswith("refused"))
    what = (
        f"broken inputs of the long fuzz, {refused:,} refused, the others read, in {found['seconds'] / 60:.0f} minutes"
    )
    wrong = f"{len(found['wrong']) or 'none'} crashed, hung or raised what is not ours"
    return f"| {what} | {found['inputs']:,} | {wrong} | `{found['command']}` |"


CAMPAIGNS = {"soak": _soak, "once": _once, "fuzz": _fuzz}


def made(folder: Path = FIGURES) -> str:
    """The page of what lies in the folder."""
    outcomes = json.loads((folder / "faults.json").read_text())
    files = {name: folder / f"{name}.json" for name in CAMPAIGNS}
    return page(outcomes, {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the tests first")
    code = run() if parser.parse_args().run else 0
    PAGE.write_text(made())
    print(PAGE.relative_to(ROOT), file=sys.stderr)
    return code


def run(folder: Path = FIGURES, words: Sequence[str] = ()) -> int:
    """All tests of faults (`words`: of these files), and pytest's exit code. Their outcomes replace those in the folder
    once the tests have ended; if they are interrupted or cannot be collected, the folder is as it was."""
    new = folder / "faults.new.json"
    new.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--faults={new}", *words]
    code = subprocess.run(command, cwd=ROOT).returncode
    if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        new.replace(folder / "faults.json")
    new.unlink(missing_ok=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
