"""Describe records of an older numerics version: they are valid, but this code does not reproduce them."""

from collections import Counter
from collections.abc import Collection, Iterable

from benchmark.numerics import numerics_in_words
from benchmark.records.record import RunRecord


def older_numerics(records: Iterable[RunRecord]) -> list[str]:
    """Return one line per older numerics version of finished records, with their number."""
    words = Counter(numerics_in_words(record.numerics) for record in records if record.result)
    return [f"{count} runs of {text}" for text, count in sorted(words.items()) if text]


def numerics_caveat(records: Collection[RunRecord]) -> str:
    """Return the sentence for a table of these runs; empty if this code reproduces all of them bit by bit."""
    if not (lines := older_numerics(records)):
        return ""
    old = sum(not record.is_current for record in records if record.result)
    return (
        f"{old} of {len(records)} runs have an earlier numerics version ({'; '.join(lines)}): they are valid, but "
        "this code does not reproduce them bit by bit; --no-reference trains them again"
    )
