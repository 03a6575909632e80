"""Every verdict by the committed copies, a line each: `python -m tests.verdicts.verdicts_now > before.txt`.

Compare the lines of two commits to see which verdicts a change of the rule moves.
"""

from functools import partial
from pathlib import Path

from benchmark.cli.report import COMMITTED, on_disk
from benchmark.papers.items import ITEMS, VARIANTS
from benchmark.records.collect import read_once, read_records
from benchmark.verdicts.judge import judge
from benchmark.verdicts.results import counted
from tests.conftest import ROOT


def lines(results: Path) -> list[str]:
    """Item, profile and name of every claim with an estimate, its verdict, estimate, number of seeds and looks."""
    read = read_once(partial(read_records, with_runs=False))
    found = []
    for item, records in on_disk((*ITEMS, *VARIANTS), COMMITTED, results, read):
        for judged in judge(item, counted(item, records)):
            if judged.seen is not None:
                numbers = f"{judged.seen.value:.6g} n={judged.n} look={judged.looks} can={judged.could_decide}"
                found.append(f"{item.name} | {item.profile} | {judged.claim.name} | {judged.verdict} | {numbers}")
    return found


if __name__ == "__main__":
    print("\n".join(lines(ROOT / "results")))
