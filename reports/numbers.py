"""Numbers in committed Markdown that come from the records: a comment names each, and a command writes it anew.

    grouping gains <!-- ssfl/tabd1 laptop: MNIST/Grouping - MNIST/FedAvg -->1.57 points [-1.10, +4.25], n=5<!-- -->

is the mean difference in accuracy of two cells of that item and profile over their common seeds, with its t interval.
One cell's name alone stands for its mean accuracy.
"""

import re
from collections.abc import Callable
from pathlib import Path

from benchmark.errors import ConfigError
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.records.files import write_atomically
from benchmark.verdicts.results import Records, collect, counted
from benchmark.verdicts.statistics import paired
from reports.formatting import percent, points, points_interval

NUMBER = re.compile(r"(<!-- (\S+) (\w+): ([^>]+?) -->)[^<]*(<!-- -->)")
Reader = Callable[[Item], Records]


def written_anew(text: str, read: Reader) -> str:
    """The text with all its numbers as the records have them. Raises ConfigError for one that they do not have."""

    def number(found: re.Match[str]) -> str:
        start, name, profile, cells, end = found.groups()
        (item,) = items([name], profile)
        return f"{start}{number_of(item, counted(item, read(item)), cells)}{end}"

    return NUMBER.sub(number, text)


def number_of(item: Item, records: Records, cells: str) -> str:
    """ "+1.57 points [-1.10, +4.25], n=5" of "A - B", "91.20 %, n=5" of "A"."""
    results = collect(item, records)
    unknown = [label for label in cells.split(" - ") if label not in results]
    if unknown:
        raise ConfigError(f"{item.name} {item.profile}: no cell {unknown[0]!r}; choose {', '.join(results)}")
    first, *rest = (results[label] for label in cells.split(" - "))
    if not rest and first.summary is not None:
        return f"{percent(first.summary.mean)} %, n={first.n}"
    seen = paired(first.values, rest[0].values) if rest else None
    if seen is None:
        raise ConfigError(f"{item.name} {item.profile}: no finished runs of {cells}; `fssl reproduce` makes them")
    interval = points_interval(seen.told) or "(no interval)"
    return f"{points(seen.mean)} points {interval}, n={seen.n}"


def pages(root: Path) -> list[Path]:
    """The committed Markdown that may hold such numbers."""
    return sorted([root / "README.md", *(root / "reports").rglob("*.md"), *(root / "benchmark").rglob("README.md")])


def write_anew(root: Path, read: Reader) -> list[Path]:
    """Write the pages whose numbers have moved; which they are."""
    moved = []
    for page in pages(root):
        before = page.read_text()
        after = written_anew(before, read)
        if after != before:
            write_atomically(page, after.encode())
            moved.append(page)
    return moved
