"""Draws learning curves with characters for a terminal: the test accuracy of running runs by round."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sweeps.status import RunStatus

COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue")  # one per curve; runs beyond these have no curve
WIDTH, HEIGHT = 72, 10  # characters of the drawing; a character has 2 x 4 dots
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of Unicode's braille patterns, by row and column
BRAILLE = 0x2800
MARKS = "abcdef"  # drawn in place of dots if the terminal has no Unicode


def drawn(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """Choose the runs that get a curve: running ones with at least two measured rounds, one run per colour."""
    return [run for run in runs if run.state == "running" and len(run.curve) > 1][: len(COLOURS)]


def colour_of(run: RunStatus, shown: Sequence[RunStatus]) -> str:
    """Return the colour of the run's curve, or "" if it has none."""
    return COLOURS[shown.index(run)] if run in shown else ""


def curves(runs: Sequence[RunStatus], *, unicode: bool = True) -> RenderableType | None:
    """Draw one curve per run of `drawn`, up to the last measured round. Return None if no run has a curve.

    The axis labels show the range of accuracies (%) and of rounds.
    """
    shown = drawn(runs)
    if not shown:
        return None
    values = list[float]()
    for run in shown:
        values += [100 * value for _, value in run.curve]
    low, high = min(values), max(values)
    last = max(run.curve[-1][0] for run in shown)
    cells: dict[tuple[int, int], tuple[int, int]] = {}  # (line, column) -> dots and index of the last run drawn there
    for place, run in enumerate(shown):
        for x, y in _dots(run, low, high, last):
            line, column = y // 4, x // 2
            dots, _ = cells.get((line, column), (0, place))
            cells[line, column] = dots | DOTS[y % 4][x % 2], place
    lines = []
    for line in range(HEIGHT):
        label = {0: f"{high:.1f}", HEIGHT - 1: f"{low:.1f}"}.get(line, "")
        text = Text(f"{label:>6} |")
        for column in range(WIDTH):
            dots, place = cells.get((line, column), (0, 0))
            if dots:
                text.append(chr(BRAILLE + dots) if unicode else MARKS[place], style=COLOURS[place])
            else:
                text.append(" ")
        lines.append(text)
    end = f"{last} of {max(run.rounds for run in shown)}"
    axis = f"round 1{end:>{WIDTH - len('round 1')}}"
    return Group(Text("test accuracy (%) of running runs"), *lines, Text(f"{'':>8}{axis}"))


def _dots(run: RunStatus, low: float, high: float, last: int) -> set[tuple[int, int]]:
    """Place the curve on the grid of dots, with straight lines between measured rounds; y counts downwards."""
    width, height = 2 * WIDTH - 1, 4 * HEIGHT - 1
    points = [
        ((number - 1) / max(1, last - 1) * width, (high - 100 * value) / ((high - low) or 1.0) * height)
        for number, value in run.curve
    ]
    dots = set()
    for (x, y), (next_x, next_y) in zip(points, points[1:], strict=False):
        steps = max(1, round(max(abs(next_x - x), abs(next_y - y))))
        for step in range(steps + 1):
            share = step / steps
            dots.add((round(x + share * (next_x - x)), round(y + share * (next_y - y))))
    return dots
