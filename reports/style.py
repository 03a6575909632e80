"""The look of a method: one colour, dash and marker for it on every page and in every figure.

Colours are told apart with any colour vision, and dashes and markers in print without colour. Names that are not in
the list below get the look that a hash of the name gives, the next free one where a figure has it already.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Okabe and Ito's colours and six more, the first eight told apart with any colour vision and in print.
PALETTE = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d1f", "#6a51a3",
    "#a50f15", "#5b6770", "#66a61e", "#17a2b8",
)  # fmt: skip
DASHES = ("", "6 2.5", "2 2", "7 2 2 2")  # stroke-dasharray; the first is a full line
MARKERS = ("circle", "square", "triangle", "diamond", "down", "plus", "cross")
MATPLOTLIB_MARKERS: Mapping[str, str] = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "plus": "P",
    "cross": "X",
}


@dataclass(frozen=True, kw_only=True)
class Look:
    """Places in PALETTE, DASHES and MARKERS."""

    colour: int
    dash: int = 0
    marker: int = 0

    @property
    def line(self) -> dict[str, Any]:
        """For matplotlib."""
        dashes = DASHES[self.dash]
        style = (0, tuple(float(part) for part in dashes.split())) if dashes else "-"
        return {"color": PALETTE[self.colour], "linestyle": style}


def _look(colour: int, dash: int, marker: int) -> Look:
    return Look(colour=colour, dash=dash, marker=marker)


# One paper's name for a method and the arena's have one look.
LOOKS: Mapping[str, Look] = {
    "FedAvg": _look(0, 0, 0),
    "CRL with GN": _look(0, 0, 0),
    "SSFL, FedAvg": _look(0, 0, 0),
    "Grouping": _look(1, 0, 1),
    "SSFL, grouping": _look(1, 0, 1),
    "Control": _look(2, 1, 2),
    "SemiFL": _look(2, 0, 3),
    "RSCFed": _look(3, 0, 4),
    "Fed-Consist": _look(4, 0, 5),
    "FedProx-FixMatch": _look(5, 0, 6),
    "TS-Server EMA": _look(6, 0, 2),
    "TS-Client EMA": _look(7, 0, 1),
    "FedSwitch": _look(8, 0, 0),
    "FedMatch": _look(10, 0, 3),
    "CRL with BN": _look(4, 1, 3),
    "Self-training": _look(6, 1, 4),
    "Supervised": _look(8, 1, 5),
    "Supervised FedAvg": _look(8, 1, 5),
    "FixMatch": _look(7, 1, 6),
    "Central FixMatch": _look(7, 1, 6),
    "Server only": _look(9, 2, 0),
    "DataSharing": _look(10, 1, 0),
    "EASGD": _look(11, 1, 1),
    "Overlap-SGD": _look(3, 1, 2),
}
# Colours that the arena's methods leave, so that what stands beside them does not change a name's look.
FREE = tuple(
    look
    for colour in (11, 9, 10)
    for dash in range(len(DASHES))
    for marker in range(len(MARKERS))
    if (look := _look(colour, dash, marker)) not in LOOKS.values()
)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, no two of the same. A known name has the same one wherever it stands; so has any other,
    unless it stands beside another unknown one that came before it and has its line."""
    names = list(dict.fromkeys(names))
    chosen = {name: LOOKS[name] for name in names if name in LOOKS}
    taken = set(chosen.values())
    found: dict[str, Look] = {}
    for name in names:
        if name not in chosen:
            start = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % len(FREE)
            order = [*FREE[start:], *FREE[:start]]
            lines = {(look.colour, look.dash) for look in taken}
            unlike = [look for look in order if (look.colour, look.dash) not in lines] or [
                x for x in order if x not in taken
            ]
            chosen[name] = (unlike or order)[0]
            taken.add(chosen[name])
        found[name] = chosen[name]
    return found


def series_looks(number: int) -> list[Look]:
    """Looks for lines that are not methods (seeds, settings), by their place."""
    return [_look(i % 12, i // 12 % len(DASHES), i % len(MARKERS)) for i in range(number)]
