"""Compare the seeds of a queue's entries with the seeds that judge the claims about their arms."""

from collections.abc import Sequence
from pathlib import Path

from benchmark.errors import ConfigError
from benchmark.papers.item import PILOTS
from benchmark.papers.items import items
from benchmark.records.seeds import seeds_text
from benchmark.verdicts.families import closed, first_seed_of, judging_family
from sweeps.queue import QueueEntry


def judging_blocks(entry: QueueEntry, results: Path) -> dict[str, int]:
    """Return the first seed of the block that judges each claim whose arms are all in the entry, by the claim's name.

    Withdrawn claims are left out, as are claims that no run judges, because their numbers are computed or no seed block
    is left.
    """
    (item,) = items([entry.item], entry.profile)
    families = closed(item, results)
    blocks = {}
    for claim in item.claims:
        if not claim.withdrawn and claim.endpoint != "arithmetic" and set(claim.labels) <= set(entry.labels):
            try:
                blocks[claim.name] = judging_family(item, claim, families)[0].first
            except ConfigError:  # all blocks are used
                continue
    return blocks


def unjudged(entries: Sequence[QueueEntry], results: Path) -> dict[str, list[str]]:
    """Return a sentence about each claim that has all arms in an entry and its seeds in none, by the entry's name.

    Entries with exploratory seeds are meant to judge nothing, and are left out.
    """
    judged = {entry.name: judging_blocks(entry, results) for entry in entries if entry.seeds[0] not in PILOTS}
    covered = {
        (entry.item, entry.profile, claim)
        for entry in entries
        for claim, first in judged.get(entry.name, {}).items()
        if first == first_seed_of(entry.seeds[0])
    }
    sentences: dict[str, list[str]] = {entry.name: [] for entry in entries}
    for entry in entries:
        for claim, first in judged.get(entry.name, {}).items():
            if (entry.item, entry.profile, claim) not in covered:
                sentences[entry.name].append(
                    f"{entry.name}: {seeds_text(entry.seeds)} do not judge {claim!r}; write seeds = "
                    f"{{ first = {first}, number = {len(entry.seeds)} }} in an entry"
                )
    return sentences
