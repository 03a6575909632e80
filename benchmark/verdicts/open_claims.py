"""How many confirming seeds the open claims need: counts, and sentences for the command line."""

from collections import Counter
from collections.abc import Iterable, Mapping

from benchmark.papers.item import Item
from benchmark.records.record import Records
from benchmark.verdicts.judge import Judged, judge
from benchmark.verdicts.results import counted


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
