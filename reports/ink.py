"""Lines, areas and text on a plate of paper, written as SVG or as PDF: the same plate always gives the same bytes.

Lengths are points (1/72 inch), y grows downwards. Text is Helvetica (in SVG: or what stands for it), one of the fonts
that every PDF reader has; characters outside of Western European ones become "?" in the PDF.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import escape

Point = tuple[float, float]
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# Widths of Helvetica's characters in thousandths of the size (Adobe's font metrics); others about as wide as an "n".
NARROW = dict.fromkeys("iljtfI.,:;'| /\\!", 265) | dict.fromkeys("-()[]r", 333) | dict.fromkeys("mwMW%@", 850)
NARROW |= dict.fromkeys("ABCDEGHKNOPQRSTUVXYZ&", 690) | dict.fromkeys("+=<>", 584)


@dataclass(frozen=True, kw_only=True)
class Stroke:
    """Polylines of one look; filled where they enclose an area."""

    lines: Sequence[Sequence[Point]]
    colour: str  # "#rrggbb"
    width: float = 0.0  # 0: no outline
    dash: tuple[float, ...] = ()
    filled: bool = False
    alpha: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Text:
    """A line of text; `anchor` 0: begins at x, 0.5: has its middle there, 1: ends there."""

    x: float
    y: float
    text: str
    size: float = 8.0
    anchor: float = 0.0
    bold: bool = False
    turned: bool = False  # reads upwards
    colour: str = "#1f2933"


@dataclass(frozen=True, kw_only=True)
class Plate:
    """A figure for print."""

    width: float
    height: float
    marks: list[Stroke | Text] = field(default_factory=list)


def text_width(text: str, size: float) -> float:
    return sum(NARROW.get(character, 556) for character in text) * size / 1000


def svg(plate: Plate) -> bytes:
    size = f'width="{plate.width:g}pt" height="{plate.height:g}pt" viewBox="0 0 {plate.width:g} {plate.height:g}"'
    body = "\n".join(_svg_mark(mark) for mark in plate.marks)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{FONT}">\n{body}\n</svg>\n'.encode()


def _svg_mark(mark: Stroke | Text) -> str:
    if isinstance(mark, Text):
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[mark.anchor]
        turn = f' transform="rotate(-90 {mark.x:.2f} {mark.y:.2f})"' if mark.turned else ""
        bold = ' font-weight="bold"' if mark.bold else ""
        place = f'x="{mark.x:.2f}" y="{mark.y:.2f}" font-size="{mark.size:g}" text-anchor="{anchor}"'
        return f'<text {place}{bold}{turn} fill="{mark.colour}">{escape(_printable(mark.text))}</text>'
    data = "".join(["M" + "L".join([f"{x:.2f} {y:.2f}" for x, y in line]) for line in mark.lines if line])
    fill = f'fill="{mark.colour}"' if mark.filled else 'fill="none"'
    stroke = f' stroke="{mark.colour}" stroke-width="{mark.width:g}" stroke-linejoin="round"' if mark.width else ""
    dash = f' stroke-dasharray="{" ".join(f"{part:g}" for part in mark.dash)}"' if mark.dash else ""
    alpha = f' opacity="{mark.alpha:g}"' if mark.alpha < 1 else ""
    return f'<path {fill}{stroke}{dash}{alpha} d="{data}{"Z" if mark.filled else ""}"/>'


def _printable(text: str) -> str:
    """XML knows no control characters."""
    return "".join(character for character in text if character.isprintable())


def pdf(plate: Plate) -> bytes:
    alphas = sorted({mark.alpha for mark in plate.marks if isinstance(mark, Stroke)} | {1.0})
    names = {alpha: f"A{place}" for place, alpha in enumerate(alphas)}
    drawn = "\n".join(_pdf_mark(mark, plate.height, names) for mark in plate.marks)
    stream = zlib.compress(drawn.encode("cp1252", "replace"))
    states = " ".join(f"/{names[alpha]} << /ca {alpha:g} /CA {alpha:g} >>" for alpha in alphas)
    fonts = " ".join(
        f"/{name} << /Type /Font /Subtype /Type1 /BaseFont /{font} /Encoding /WinAnsiEncoding >>"
        for name, font in (("F0", "Helvetica"), ("F1", "Helvetica-Bold"))
    )
    resources = f"<< /Font << {fonts} >> /ExtGState << {states} >> >>"
    box = f"[0 0 {plate.width:g} {plate.height:g}]"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox {box} /Resources {resources} /Contents 4 0 R >>".encode(),
        f"<< /Length {len(stream)} /Filter /FlateDecode >>\nstream\n".encode() + stream + b"\nendstream",
    ]
    return _pdf_file(objects)


def _pdf_file(objects: Iterable[bytes]) -> bytes:
    found, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(found))
        found += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    start = f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}"
    end = f"trailer\n<< /Size {len(places) + 1} /Root 1 0 R >>\nstartxref\n{len(found)}\n%%EOF\n"
    return found + start.encode() + end.encode()


def _pdf_mark(mark: Stroke | Text, height: float, names: dict[float, str]) -> str:
    if isinstance(mark, Text):
        return _pdf_text(mark, height)
    paths = []
    for line in mark.lines:
        if line:
            (x, y), *rest = line
            paths.append(f"{x:.2f} {height - y:.2f} m " + " ".join([f"{a:.2f} {height - b:.2f} l" for a, b in rest]))
    colour = _rgb(mark.colour)
    dash = f"[{' '.join(f'{part:g}' for part in mark.dash)}] 0 d"
    paint = ("b" if mark.width else "f") if mark.filled else ("S" if mark.width else "n")
    look = f"q /{names[mark.alpha]} gs {colour} rg {colour} RG {mark.width:g} w 1 j {dash}"
    return f"{look} {' '.join(paths)} {paint} Q"


def _pdf_text(mark: Text, height: float) -> str:
    shown = _printable(mark.text).encode("cp1252", "replace").decode("cp1252")
    escaped = shown.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    shift = text_width(shown, mark.size) * (1.06 if mark.bold else 1.0) * mark.anchor
    x, y = (mark.x, height - mark.y - shift) if mark.turned else (mark.x - shift, height - mark.y)
    turn = "0 1 -1 0" if mark.turned else "1 0 0 1"
    font = f"/F{int(mark.bold)} {mark.size:g} Tf {_rgb(mark.colour)} rg"
    return f"BT {font} {turn} {x:.2f} {y:.2f} Tm ({escaped}) Tj ET"


def _rgb(colour: str) -> str:
    return " ".join(f"{int(colour[place : place + 2], 16) / 255:.3f}" for place in (1, 3, 5))
