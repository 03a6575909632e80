"""Handwritten pages, from Markdown: a paper's departures with the measured effect of the switches that they name.

An entry names a switch as "(ssfl/departures: momentum)": a pair of cells of that item, our default and the other way.
"""

import functools
import re
from collections.abc import Mapping, Sequence

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records, collect, counted
from benchmark.verdicts.statistics import paired
from reports.formatting import count, mean_spread, points, points_interval
from reports.paper_table import cell_page

NAMED = re.compile(r"\(([a-z0-9]+/departures):\s+([a-z0-9-]+)\)")


@functools.cache
def _parser() -> MarkdownIt:
    """Without HTML in the source: what is no Markdown is text."""
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def article(text: str) -> Markup:
    """A handwritten page as HTML; its first heading is the page's own and left out."""
    html = _parser().render(re.sub(r"\A\s*# .*\n", "", text))
    html = html.replace("<table>", '<div class="scroll" tabindex="0" role="region"><table>').replace(
        "</table>", "</table></div>"
    )
    return Markup(html)


def departures(text: str, results: Sequence[tuple[Item, Records]]) -> Markup:
    """The page, with what was measured in place of each switch's name."""
    found = effects(results)

    def measured(name: re.Match[str]) -> str:
        said = found.get((name[1], name[2]), [Markup("not run")])
        lines = Markup("; ").join(said)
        return str(
            Markup('<small class="measured"><b>Measured</b> <code>{}</code>: {}.</small>').format(name[2], lines)
        )

    return Markup(NAMED.sub(measured, article(text)))


def effects(results: Sequence[tuple[Item, Records]]) -> Mapping[tuple[str, str], list[Markup]]:
    """(item, switch) -> a line for each profile that has one of its runs."""
    found: dict[tuple[str, str], list[Markup]] = {}
    for item, records in results:
        if item.name.endswith("/departures"):
            cells = collect(item, counted(item, records))
            for label, other in cells.items():
                name, way = label.rsplit("/", 1)
                default = cells.get(f"{name}/default")
                if way != "other" or default is None:
                    continue
                seen = paired(other.values, default.values)
                if seen is None:
                    said = Markup("profile {}: not run").format(item.profile)
                else:
                    interval = points_interval(seen.interval if seen.has_spread else None) or "no interval"
                    said = Markup(
                        '{}; profile {}: <a href="{}">{} | {}</a>, difference <b>{}</b> points {}, n={}'
                    ).format(
                        other.cell.setting.get("switch", ""),
                        item.profile,
                        f"departures/{item.profile}/{cell_page(label)}",
                        mean_spread(default.summary),
                        mean_spread(other.summary),
                        points(seen.mean),
                        interval,
                        seen.n,
                    )
                if diverged := len(default.diverged) + len(other.diverged):
                    said += escape(f", {count(diverged, 'run')} diverged")
                found.setdefault((item.name, name), []).append(said)
    return found
