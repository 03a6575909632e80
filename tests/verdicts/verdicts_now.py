"""Print every verdict from the committed copies, one per line: `python -m tests.verdicts.verdicts_now > before.txt`.

Compare the lines of two commits to see which verdicts a change of the rule moves. `previous_release.py` runs this file
as a script in the sources of an older commit, with `--json`.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.cli.report import COMMITTED, on_disk
from benchmark.papers.items import ITEMS, VARIANTS
from benchmark.records.collect import read_once, read_records
from benchmark.verdicts.cell_results import without_trials
from benchmark.verdicts.judge import judge
from benchmark.verdicts.rule import RULE_VERSION
from tests.conftest import ROOT


def verdicts(results: Path) -> dict[str, dict[str, Any]]:
    """Judge every claim that has an estimate, by its hash: what is judged, verdict, seeds, looks and estimate."""
    read = read_once(partial(read_records, with_runs=False))
    found: dict[str, dict[str, Any]] = {}
    for item, records in on_disk((*ITEMS, *VARIANTS), COMMITTED, results, read):
        for judged in judge(item, without_trials(item, records)):
            if judged.estimate is None:
                continue
            name = item.hash_of(judged.claim)
            assert name not in found, f"{item.name} judges {judged.claim.name!r} a second time"
            found[name] = {
                "item": item.name,
                "profile": item.profile,
                "claim": judged.claim.name,
                "verdict": judged.verdict,
                "n": judged.n,
                "look": judged.looks,
                "estimate": float(f"{judged.estimate:.6g}"),
                "could_decide": judged.could_decide,
            }
    return found


if __name__ == "__main__":
    every = verdicts(ROOT / "results")
    if "--json" in sys.argv:
        json.dump({"rule": RULE_VERSION, "claims": every}, sys.stdout)
    else:
        for one in every.values():
            numbers = f"{one['estimate']:g} n={one['n']} look={one['look']} can={one['could_decide']}"
            print(f"{one['item']} | {one['profile']} | {one['claim']} | {one['verdict']} | {numbers}")
