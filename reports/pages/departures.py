"""A paper's handwritten departures, each with the measured effect of the switches that it names.

An entry names a switch as "(ssfl/departures: momentum)": a pair of cells of that item, our default and the other way.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records, collect, counted
from benchmark.verdicts.statistics import paired
from reports.prose import marked
from reports.views import cell_page
from reports.words import mean_spread, points, points_interval

NAMED = re.compile(r"\s*\(([a-z0-9]+/departures):\s+([a-z0-9-]+)\)")
Effects = Mapping[str, Sequence[Mapping[str, Any]]]  # "ssfl/departures: momentum" -> one a profile


def paragraphs(text: str) -> list[str]:
    """A handwritten page's paragraphs and numbered entries, each on one line; its headings are the page's own."""
    blocks: list[str] = []
    fresh = True
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            fresh = True
        elif fresh or re.match(r"\s*\d+\. ", line):
            blocks.append(line.strip())
            fresh = False
        else:
            blocks[-1] += f" {line.strip()}"
    return blocks


def departures_values(paper: str, text: str, results: Sequence[tuple[Item, Records]]) -> dict[str, Any]:
    """The page's values. `results`: all that is known; the items named PAPER/departures are looked up in it."""
    found = effects(results)
    return {"paper": paper, "blocks": [_block(block, found) for block in paragraphs(text)]}


def _block(block: str, found: Effects) -> dict[str, Any]:
    named = [f"{item}: {switch}" for item, switch in NAMED.findall(block)]
    return {
        "text": marked(NAMED.sub("", block)),
        "switches": [{"cell": name, "effects": found.get(name, ())} for name in named],
    }


def effects(results: Sequence[tuple[Item, Records]]) -> Effects:
    """Of every pair in an item of departures, in each profile that has one of its runs."""
    gathered: dict[str, list[Mapping[str, Any]]] = {}
    for item, records in results:
        if item.name.endswith("/departures"):
            for name, effect in _effects_of(item, counted(item, records)).items():
                gathered.setdefault(f"{item.name}: {name}", []).append(effect)
    return gathered


def _effects_of(item: Item, records: Records) -> dict[str, Mapping[str, Any]]:
    cells = collect(item, records)
    found: dict[str, Mapping[str, Any]] = {}
    for label, other in cells.items():
        name, way = label.rsplit("/", 1)
        default = cells.get(f"{name}/default")
        if way != "other" or default is None:
            continue
        difference = paired(other.values, default.values)
        page = f"departures/{item.profile}/{cell_page(label)}.html"
        found[name] = {
            "profile": item.profile,
            "ways": str(other.cell.setting["switch"]),
            "default": mean_spread(default.summary),
            "other": mean_spread(other.summary),
            "difference": points(difference.mean) if difference else None,
            "interval": points_interval(difference.interval if difference and difference.has_spread else None),
            "n": difference.n if difference else 0,
            "diverged": len(default.diverged) + len(other.diverged),
            "href": page,
        }
    return found
