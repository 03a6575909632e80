"""What the command line says of claims: troubles that `fssl verify` reports, and seeds that open claims need.

records/verify.py checks the records themselves.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmark.papers.item import CONFIRMING, Family, Item
from benchmark.records.record import Records, RunRecord
from benchmark.verdicts.families import families_in, families_of, first_seed_of
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import counted


def troubles_of_claims(records: Iterable[RunRecord]) -> list[str]:
    """Confirming runs that did not begin under their papers' claims, or under others than their hundred of seeds."""
    troubles = []
    families: dict[tuple[str, int], tuple[Family, Path]] = {}
    for record in records:
        if record.seed not in CONFIRMING or not record.manifest:
            continue
        noted = families_in(record.manifest)
        wanted = families_of(record.cell_key, str(record.experiment.get("profile")), record.seed)
        for name in sorted(wanted - noted.keys()):
            troubles.append(
                f"{record.path}: manifest.json: no claims of {name}, though seed {record.seed} is to confirm"
            )
        for name, family in noted.items():
            first, other = families.setdefault((name, first_seed_of(record.seed)), (family, record.path))
            if family != first:
                troubles.append(f"{record.path}: manifest.json: other claims of {name} than {other} was begun under")
    return troubles


def decided_cells(item: Item, records: Records) -> set[str]:
    """Keys of the cells on which a claim of the item is decided by runs."""
    labels = {
        label for judged in judge(item, counted(item, records)) if judged.is_decided for label in judged.claim.labels
    }
    return {cell.cell_key for cell in item.cells if cell.label in labels}


def could_decide(items: Iterable[Item], records: Records) -> dict[int, int]:
    """`looks_of` the items' claims, without items whose cells still wait for trials."""
    return looks_of(judged for item in items if not item.choices for judged in judge(item, counted(item, records)))


def looks_of(claims: Iterable[Judged]) -> dict[int, int]:
    """Seeds of a look -> number of open claims for which it is the smallest look that can decide.

    Claims that are decided, judged in another item, counted, or past their last look are left out.
    """
    return dict(sorted(Counter(judged.could_decide for judged in claims if judged.could_decide).items()))


def looks_in_words(looks: Mapping[int, int]) -> str:
    """ "of 12 open claims 1 can be decided at 9 seeds, 8 at 16, 3 at 24"; empty without an open claim."""
    if not looks:
        return ""
    (first, number), *more = looks.items()
    total = sum(looks.values())
    start = f"of {total} open claims {number}" if total > 1 else "the one open claim"
    return ", ".join([f"{start} can be decided at {first} seeds", *(f"{number} at {seeds}" for seeds, number in more)])


def too_few_in_words(looks: Mapping[int, int], seeds: int) -> str:
    """How many open claims so many seeds can decide, and how many seeds decide more; empty where they decide all."""
    total = sum(looks.values())
    able = {n: sum(count for look, count in looks.items() if look <= n) for n in (seeds, *looks)}
    if able[seeds] == total:
        return ""
    more = (f"--seeds {n} can decide {'all' if k == total else k}" for n, k in able.items() if n > seeds)
    return f"--seeds {seeds} can decide {able[seeds] or 'none'} of {total} open claims; {', '.join(more)}"
