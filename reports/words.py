"""Numbers and names in the form people read them: percent, points, units. Records hold fractions, pages percent."""

import re
from collections.abc import Sequence

from benchmark.verdicts.statistics import Summary
from benchmark.verdicts.units import FRACTIONS as FRACTIONS
from benchmark.verdicts.units import in_unit as in_unit
from benchmark.verdicts.units import is_fraction as is_fraction
from benchmark.verdicts.units import number as number

FIGURE_SPACE, PUNCTUATION_SPACE = "\u2007", "\u2008"
METRIC_NAMES = {
    "test/accuracy": "Test accuracy (%)",
    "test/loss": "Test loss",
    "test/auroc": "Area under ROC (%)",
    "pseudo/kept": "Pseudo-labels kept (%)",
    "pseudo/accuracy": "Accuracy of kept pseudo-labels (%)",
    "pseudo/kl_uniform": "KL of pseudo-labels from uniform (nats)",
    "pseudo/kl_true": "KL of true labels from uniform (nats)",
    "pseudo/class_balance": "Class balance of kept pseudo-labels (%)",
    "test/precision": "Macro precision (%)",
    "test/recall": "Macro recall (%)",
    "comm/bytes_kept": "Bytes kept at clients",
    "comm/sat_out": "Clients that sat out",
    "comm/dropped": "Updates dropped",
    "comm/bytes_up": "Bytes up",
    "comm/bytes_down": "Bytes down",
    "time/round_seconds": "Seconds a round",
    "server/loss": "Loss at the server",
    "client/loss": "Loss at the clients",
    "time/cpu_seconds": "CPU seconds a round",
}


def metric_name(metric: str) -> str:
    """For people; the metric's own name where we have no better one."""
    if metric.startswith("diversity/") and metric.count("/") == 4:
        return "Gradient diversity"
    return METRIC_NAMES.get(metric, metric)


def percent(fraction: float | None, digits: int = 2) -> str:
    """0.8307 -> "83.07"; None -> "-"."""
    return "-" if fraction is None else f"{100 * fraction:.{digits}f}"


def aligned(texts: Sequence[str]) -> list[str]:
    """Numbers of a column, padded with spaces as wide as a digit or a point, so that set flush right their decimal
    points lie below each other. What is no number stays as it is."""
    found = [re.fullmatch(r"([+-]?[\d,]+)(\.\d+)?( [a-z%]+)?", text) for text in texts]
    most = max((len(one[2] or "") for one in found if one), default=0)
    if not most:
        return list(texts)
    return [
        text
        if one is None
        else f"{one[1]}{one[2] or PUNCTUATION_SPACE}".ljust(len(one[1]) + most, FIGURE_SPACE) + (one[3] or "")
        for text, one in zip(texts, found, strict=True)
    ]


def points(fraction: float | None, digits: int = 2) -> str:
    """A difference of two fractions in points, always signed: 0.0136 -> "+1.36". Zero has a plus sign."""
    if fraction is None:
        return "-"
    rounded = round(100 * fraction, digits) + 0.0
    return f"{rounded:+.{digits}f}"


def points_interval(interval: tuple[float, float] | None, digits: int = 1) -> str:
    return "" if interval is None else f"[{points(interval[0], digits)}, {points(interval[1], digits)}]"


def difference(metric: str, value: float | None) -> str:
    """A signed difference of `metric`, in points for fractions."""
    if value is None:
        return "-"
    return points(value) if is_fraction(metric) else f"{value + 0.0:+.4g}"


def difference_interval(metric: str, interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "no interval"
    return f"[{difference(metric, interval[0])}, {difference(metric, interval[1])}]"


def mean_spread(summary: Summary | None, plus_minus: str = "±") -> str:
    """ "83.07 ±0.41"; the spread (standard deviation over seeds) only where there are two seeds to have one."""
    if summary is None:
        return "-"
    spread = "" if summary.std is None else f" {plus_minus}{100 * summary.std:.2f}"
    return f"{100 * summary.mean:.2f}{spread}"


def without_dollars(quote: str) -> str:
    """A quote whose symbols stand between dollars, as papers are typeset: "a large $C$" -> "a large C". Longer formulas
    with commands stay as they are."""
    return re.sub(r"\$([^$]*)\$", lambda found: found[1] if _is_symbol(found[1]) else found[0], quote)


def _is_symbol(formula: str) -> bool:
    return 0 < len(formula) <= 20 and "\\" not in formula and formula == formula.strip()


LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
}


def latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


MARKDOWN = {
    **{character: "\\" + character for character in "\\|*_`[]"},
    **{"\n": " ", "\r": " ", "<": "&lt;", "&": "&amp;"},
}


def markdown(text: str) -> str:
    """Text that ends no cell and no line of a Markdown table, and is neither a tag nor a link."""
    return "".join(MARKDOWN.get(character, character) for character in text)


def csv_safe(value: object) -> str:
    """A CSV field that no spreadsheet takes for a formula: text that begins with = + - @ (or a control character that
    spreadsheets skip) gets a leading apostrophe; numbers stay as they are. Floats are written to full precision."""
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    if re.match(r"[=+\-@\t\r\n]", text) and not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text):
        return "'" + text
    return text
