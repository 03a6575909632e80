"""Which claims the records decide, and which seeds the open claims need."""

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmark.papers.item import Item
from benchmark.records.record import Records
from benchmark.verdicts.cell_results import counted
from benchmark.verdicts.evidence import gaps_in_words
from benchmark.verdicts.judge import Judged, judge, next_look


def decided_cells(item: Item, records: Records) -> set[str]:
    """Keys of the cells on which a claim of the item is decided by runs."""
    labels = {
        label for judged in judge(item, counted(item, records)) if judged.is_decided for label in judged.claim.labels
    }
    return {cell.cell_key for cell in item.cells if cell.label in labels}


def could_decide(items: Iterable[Item], records: Records, device: str = "") -> dict[int, int]:
    """`looks_of` the items' claims, without items whose cells still wait for trials.

    `device`: the kind that trains, such as "a CPU" or "NVIDIA H200"; empty: whichever a seed needs.
    """
    ready = [item for item in items if not item.choices]
    return looks_of((judged for item in ready for judged in judge(item, counted(item, records))), device)


def looks_of(claims: Iterable[Judged], device: str = "") -> dict[int, int]:
    """Seeds of a look -> number of open claims for which it is the smallest look that can decide.

    Claims that are decided, judged in another item, counted, past their last look, or whose next look lies beyond a
    seed that can never count are left out. With a kind of device, so are those with a seed that needs another one.
    """
    looks = (could_decide_on(judged, device) for judged in claims)
    return dict(sorted(Counter(look for look in looks if look).items()))


def could_decide_on(judged: Judged, device: str) -> int:
    """`Judged.could_decide` if only this kind of device trains; of an empty name if any does."""
    if not device or not judged.could_decide or judged.evidence is None:
        return judged.could_decide
    return next_look(judged, judged.evidence.reachable_on(device))


def gaps_of(items: Iterable[Item], records: Records) -> dict[str, list[str]]:
    """Claim -> which of its seeds can never count and why, a phrase each; only of claims that have such seeds."""
    judged = [one for item in items if not item.choices for one in judge(item, counted(item, records))]
    return {one.claim.name: gaps_in_words(one.gaps) for one in judged if one.gaps and not one.is_decided}


def looks_in_words(looks: Mapping[int, int]) -> str:
    """ "of 12 open claims 1 can be decided at 9 seeds, 8 at 16, 3 at 24"; empty without an open claim."""
    if not looks:
        return ""
    (first, number), *more = looks.items()
    total = sum(looks.values())
    start = f"of {total} open claims {number}" if total > 1 else "the one open claim"
    return ", ".join([f"{start} can be decided at {first} seeds", *(f"{number} at {seeds}" for seeds, number in more)])


def too_few_in_words(looks: Mapping[int, int], seeds: int) -> str:
    """Say how many open claims so many seeds can decide, and how many seeds decide more; empty if they decide all."""
    total = sum(looks.values())
    able = {}
    for n in (seeds, *looks):
        able[n] = sum(count for look, count in looks.items() if look <= n)
    if able[seeds] == total:
        return ""
    more = (f"--seeds {n} can decide {'all' if k == total else k}" for n, k in able.items() if n > seeds)
    return f"--seeds {seeds} can decide {able[seeds] or 'none'} of {total} open claims; {', '.join(more)}"
