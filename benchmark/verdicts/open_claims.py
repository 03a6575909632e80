"""Find the claims that the records decide, and the seeds that the open claims need."""

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmark.papers.item import Item
from benchmark.records.record import Records
from benchmark.verdicts.cell_results import without_trials
from benchmark.verdicts.judge import Judged, judge


def decided_cells(item: Item, records: Records) -> set[str]:
    """Return the keys of the cells with runs that decide a claim of the item."""
    labels = set[str]()
    for judged in judge(item, without_trials(item, records)):
        if judged.is_decided:
            labels.update(judged.claim.labels)
    return {cell.cell_key for cell in item.cells if cell.label in labels}


def could_decide(items: Iterable[Item], records: Records) -> dict[int, int]:
    """Return `looks_of` for the items' claims, without items that still wait for trials."""
    claims: list[Judged] = []
    for item in items:
        if not item.choices:
            claims += judge(item, without_trials(item, records))
    return looks_of(claims)


def looks_of(claims: Iterable[Judged]) -> dict[int, int]:
    """Return, per number of seeds, for how many open claims this interim analysis is the first that can decide them.

    Claims are left out if they are decided, judged in a different item, computed, or past their last
    interim analysis, or if their next one includes a seed that can never count.
    """
    return dict(sorted(Counter(judged.could_decide for judged in claims if judged.could_decide).items()))


def looks_in_words(looks: Mapping[int, int]) -> str:
    """Return the counts as a phrase, empty without an open claim: "of 12 open claims 1 can be
    decided at 9 seeds, 8 at 16".
    """
    if not looks:
        return ""
    (first, number), *more = looks.items()
    total = sum(looks.values())
    start = f"of {total} open claims {number}" if total > 1 else "the one open claim"
    return ", ".join([f"{start} can be decided at {first} seeds", *(f"{number} at {seeds}" for seeds, number in more)])


def too_few_in_words(looks: Mapping[int, int], seeds: int) -> str:
    """Return how many open claims `seeds` seeds can decide, and how many seeds decide more; empty
    if they decide all.
    """
    total = sum(looks.values())
    able = {}
    for n in (seeds, *looks):
        able[n] = sum(count for look, count in looks.items() if look <= n)
    if able[seeds] == total:
        return ""
    more = (f"--seeds {n} can decide {'all' if k == total else k}" for n, k in able.items() if n > seeds)
    return f"--seeds {seeds} can decide {able[seeds] or 'none'} of {total} open claims; {', '.join(more)}"
