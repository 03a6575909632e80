"""Pages written by hand, from Markdown: a paper's departures with their measured effects, and performance.

An entry of departures names a switch as "(ssfl/departures: momentum)": a pair of cells of that item, our default and
the other way.
"""

import re
from collections.abc import Sequence
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup

from benchmark.verdicts.statistics import paired, summary
from reports.formatting import cell_address
from reports.rendering import render
from reports.reported import Reported

PARSER = MarkdownIt("commonmark", {"html": False}).enable("table")  # what is not Markdown is text
NAMED = re.compile(r"\(([a-z0-9]+/departures):\s+([a-z0-9-]+)\)")


def article(text: str) -> Markup:
    """A handwritten page as HTML, without its first heading."""
    html = PARSER.render(re.sub(r"\A\s*# .*\n", "", text))
    html = html.replace("<table>", '<div class="scroll" tabindex="0" role="region"><table>')
    return Markup(html.replace("</table>", "</table></div>"))


def departures(text: str, mine: Sequence[Reported]) -> Markup:
    """The page, with what was measured in place of each switch's name."""
    measured = effects(mine)

    def effect(name: re.Match[str]) -> str:
        return render("effect.html", switch=name[2], pairs=measured.get((name[1], name[2]), ())).rstrip()

    return Markup(NAMED.sub(effect, article(text)))


def effects(mine: Sequence[Reported]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(item, switch) -> our default and the other way, at each profile that has one of its runs."""
    pairs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for reported in mine:
        cells = reported.results if reported.item.name.endswith("/departures") else {}
        for label, other in cells.items():
            switch, way = label.rsplit("/", 1)
            default = cells.get(f"{switch}/default")
            if way != "other" or default is None:
                continue
            seeds = sorted(other.values.keys() & default.values.keys())
            pair = {
                "profile": reported.item.profile,
                "setting": other.cell.setting.get("switch", ""),
                "page": cell_address(other),
                "difference": paired(other.values, default.values),
                "means": [summary(cell.values[seed] for seed in seeds) for cell in (default, other) if seeds],
                "diverged": len(default.diverged) + len(other.diverged),
            }
            pairs.setdefault((reported.item.name, switch), []).append(pair)
    return pairs
