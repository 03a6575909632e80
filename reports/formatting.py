"""Write numbers and names as people read them: percent, points, units. Records contain fractions, pages percent."""

import hashlib
import re
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmark.data.folder import public_name
from benchmark.fractions import is_fraction
from benchmark.papers.item import Cell, Claim, Item
from benchmark.papers.paper import WORDS as PUBLISHED_WORDS
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.statistics import number

NONE = "\u2013"
WORDS: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("words.toml").read_text())


def metric_name(metric: str) -> str:
    """Return the metric's name for readers, such as "Test accuracy", or its internal name if words.toml has none.

    The name of a gradient diversity describes the variant.
    """
    if metric.startswith("diversity/") and metric.count("/") == 4:
        _, gradient, norm, power, members = metric.split("/")
        of = {"gradient": "gradients", "delta": "weight changes"}.get(gradient, gradient)
        who = {"clients": "", "with_server": ", with server", "clients_in_group": " in a group"}
        return f"Diversity of {of}, {norm} {power}{who.get(members, ' in a group, with server')}"
    if metric.startswith("rounds_to/"):
        return f"Rounds to {100 * float(metric.partition('/')[2]):g} %"
    return str(WORDS["metrics"].get(metric, (metric, ""))[0])


def unit_of(metric: str) -> str:
    """Return "%" for fractions; empty if the metric has no unit."""
    return "%" if is_fraction(metric) else str(WORDS["metrics"].get(metric, ("", ""))[1])


def data_name(name: str) -> str:
    """Return the name of the data set as people read it, such as "CIFAR-10" for cifar10."""
    return str({**PUBLISHED_WORDS, **WORDS["data"]}.get(name, public_name(name)))


def axis_title(metric: str) -> str:
    """Return the metric's name with its unit in brackets."""
    unit = unit_of(metric)
    return f"{metric_name(metric)} ({unit})" if unit else metric_name(metric)


def shown(metric: str, value: float | None, digits: int = 2) -> str:
    """Write a value of the metric: in percent without the sign for fractions, with four significant digits if not.

    A property is "yes" or "no", or the share of runs if they differ.
    """
    if value is None:
        return NONE
    if metric.startswith("exchange/") and value in (0.0, 1.0):
        return "yes" if value else "no"
    return f"{100 * value:.{digits}f}" if is_fraction(metric) else number(value)


percent = partial(shown, "test/accuracy")  # 0.8307 -> "83.07"


def difference(metric: str, value: float | None) -> str:
    """Write a signed difference: points for fractions, 0.0136 -> "+1.36"; numbers of more than four digits are whole.

    The sign is the value's own, even if no digit of it is shown: -0.00003 -> "-0.00". Zero has a plus sign.
    """
    if value is None or is_fraction(metric):
        return NONE if value is None else f"{100 * value + 0.0:+.2f}"
    return f"{value:+,.0f}" if abs(value) >= 1e4 else f"{value + 0.0:+.4g}"


def unit_text(claim: Claim) -> str:
    """Return the unit of a claim's differences: "points" for fractions."""
    return "points" if is_fraction(claim.metric) else unit_of(claim.metric)


def amount(claim: Claim, value: float | None) -> str:
    """Write a difference with its unit: "+1.20 points"."""
    text = difference(claim.metric, value)
    return text if value is None else f"{text} {unit_text(claim)}".rstrip()


points = partial(difference, "test/accuracy")  # 0.0136 -> "+1.36"
thousands = "{:,.0f}".format


def difference_interval(metric: str, interval: tuple[float, float] | None) -> str:
    """Write "[-0.03, +0.60]", with the digits of the difference; return "" without an interval."""
    return "" if interval is None else "[" + ", ".join(difference(metric, edge) for edge in interval) + "]"


def megabytes(value: float) -> str:
    """Write bytes in MB (10^6), with three digits if it is small: 12400000 -> "12.4"."""
    mega = value / 1e6
    return f"{mega:,.0f}" if mega >= 1000 else f"{mega:.3g}"


def count(number: int, word: str) -> str:
    """Write "1 cell", "3 cells"."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def has(number: int) -> str:
    """Return the verb of "1 has" and "3 have"."""
    return "has" if number == 1 else "have"


def sentence(text: str) -> str:
    """Return the text with a capital at the start and a full stop at the end.

    A first word with a capital inside is a name, such as arXiv or sBN, and keeps its first letter.
    """
    text = text.strip()
    if not text:
        return text
    end = "" if text[-1] in ".!?" else "."
    first = text.split()[0]
    start = text[0] if first[1:] != first[1:].lower() else text[0].upper()
    return start + text[1:] + end


def plain_quote(quote: str) -> str:
    """Remove the marks of LaTeX and Markdown: "a large $C$" -> "a large C", "*FedSwitch*" -> "FedSwitch".

    A formula with a command that is not among SYMBOLS stays as it is.
    """
    for pattern, plain in ((r"\\text\{([^{}]*)\}", r"\1"), (r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2")):
        quote = re.sub(pattern, plain, quote)
    quote = re.sub(r"\\([a-z]+)", lambda command: SYMBOLS.get(command[1], command[0]), quote)
    quote = re.sub(r"\*(\w[^*]*)\*", r"\1", quote)
    return re.sub(r"\$([^$\\\s][^$\\]{0,19})\$", r"\1", quote)


def item_page(item: Item) -> str:
    """Return the path of the item's page from the site's root: ssfl/tab2/laptop/index.html."""
    return "/".join((*map(slug, item.name.split("/")), slug(item.profile), "index.html"))


def cell_page(cell: Cell, kind: str = "html") -> str:
    """Return the path of the page of a cell with a run: cells/94251b4a8952ec66.html; "json": its experiment."""
    return f"cells/{slug(cell.cell_key)}.{kind}"


def cell_address(result: CellResult) -> str:
    """Return the path of the cell's page; of its resolved experiment if it has no run."""
    return cell_page(result.cell, "html" if result.runs else "json")


def slug(name: str) -> str:
    """Return a file name for any name; it is never empty or "..", and has no separators.

    A plain name is returned unchanged. Any other name becomes its plain characters and a hash, so that two names
    never have the same file.
    """
    if re.fullmatch(r"[a-z0-9]([a-z0-9_-]|\.(?=[a-z0-9])){0,100}", name):
        return name
    plain = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:40]
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    return f"{plain}-{digest[:8]}".lstrip("-")


SYMBOLS = {"alpha": "\u03b1", "eta": "\u03b7", "gtrsim": "\u2273", "gg": "\u226b"}
