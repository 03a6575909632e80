"""The terminal table character by character for one small item, and its behaviour at the edges."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from benchmark.papers.item import Claim, Item, Printed
from benchmark.verdicts.results import Records
from reports.terminal import print_item
from tests.reports.fakes import accuracies, make_cell, make_record, pair, table2


def printed(item: Item, records: Records, encoding: str = "utf-8", report: str | None = None) -> str:
    """What a log file receives: no colours, 100 columns; trailing blanks removed."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_item(item, records, Console(file=file, width=100), report)
    file.seek(0)
    return "\n".join(line.rstrip() for line in file.read().splitlines()) + "\n"


def small() -> tuple[Item, Records]:
    """FedAvg at C = 2: 0.60, 0.70, 0.80; grouping 0.85, 0.90, 0.95 (differences 0.25, 0.20, 0.15: mean 20 points, std
    5, half width 2.484 x 5 = 12.4). At C = 4 FedAvg has one seed of three, 0.5, and grouping none. One claim."""
    published = {"FedAvg": {2: 83.07, 4: 79.05}, "Grouping": {2: 84.43, 4: 83.12}}
    cells = [
        make_cell(f"{m}/{C}", {"method": m, "C": C}, 80 + 10 * C + len(m), published=published[m][C])
        for C in (2, 4)
        for m in ("FedAvg", "Grouping")
    ]
    rung = make_cell("Server only", {"rung": "Server only"}, 99, role="ladder")
    claim = Claim(
        name="grouping wins",
        quote="it is better",
        source="section 4.2",
        contrast={"Grouping/2": 1.0, "FedAvg/2": -1.0},
        form="improves",
        least=0.01,
    )
    records = dict(accuracies([(cells[0], [0.6, 0.7, 0.8]), (cells[1], [0.85, 0.9, 0.95]), (cells[2], [0.5])]))
    ends = {"test/accuracy": 0.55, "pseudo/kept": 0.9, "pseudo/accuracy": 0.987}
    records[rung.cell_key] = {0: make_record(rung, 0, ends)}
    item = Item(
        name="toy/tab2",
        title="Toy table",
        profile="demo",
        cells=(*cells, rung),
        claims=(claim,),
        seeds=3,
        notes=("Digits stand in.",),
    )
    return item, records


SMALL = """\
toy/tab2  Toy table
profile demo; test accuracy after the last round in percent, mean +-std; published numbers for
orientation only

        FedAvg  Grouping        FedAvg     Grouping       Grouping
 C       paper     paper          ours         ours       - FedAvg
 ─────────────────────────────────────────────────────────────────
 C = 2   83.07     84.43  70.00 ±10.00  90.00 ±5.00         +20.00
                                   n=3          n=3  [+7.6, +32.4]
 C = 4   79.05     83.12         50.00      not run              -
                                 n=1/3        (0/3)

Ladder: what each step adds

 rung         accuracy  share kept  accuracy of kept   runs
 ──────────────────────────────────────────────────────────
 Server only     55.00       90.00             98.70  n=1/3

claim 1: holds  grouping wins
  "it is better" (section 4.2)
  +20.00 points, 95.0 % interval [+7.58, +32.42], n=3: the interval lies above zero
note: Digits stand in.
report: site/index.html
"""


def test_small_item_character_by_character() -> None:
    assert printed(*small(), report="site/index.html") == SMALL


def test_differences_without_spread_have_no_interval() -> None:
    """0.05 in both seeds: an interval from +5.0 to +5.0 would look like certainty."""
    item = pair()
    a, b = (replace(cell, setting={**cell.setting, "C": 2}) for cell in item.cells)
    more = make_cell("c", {"method": "A", "C": 4}, 97)
    item = replace(item, cells=(a, b, more), claims=())
    text = printed(item, accuracies([(a, [0.6, 0.7]), (b, [0.65, 0.75])]))
    assert "+5.00" in text and "n=2, no spread" in text and "[" not in text


def test_ascii_console_gets_ascii() -> None:
    item, records = small()
    text = printed(replace(item, title="Größe"), records, encoding="ascii")
    assert "70.00 +-10.00" in text and "Gr??e" in text


@pytest.mark.parametrize("profile", ["demo", "laptop", "gpu", "paper"])
def test_fits_100_columns(profile: str) -> None:
    text = printed(*table2(profile))
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text  # rich's mark for text it cut off
    assert "not run" in text and "(0/3)" in text and "1 diverged" in text


def test_only_profile_paper_shows_differences_to_the_paper() -> None:
    """FedAvg at C = 2: 70.00 - 83.07 = -13.07."""
    item, records = small()
    assert "(-13.07)" in printed(replace(item, profile="paper"), records)
    assert "13.07" not in printed(item, records)


def test_other_items_print_one_line_a_cell() -> None:
    """Settings without a method; on profile paper the difference has a column of its own: 70.00 - 71.50."""
    cells = (
        make_cell("R = 0.0", {"R": 0.0}, 90, published={"test/accuracy": Printed(value=71.5)}),
        make_cell("R = 0.4", {"R": 0.4}, 91),
    )
    item = replace(pair(), cells=cells, claims=(), profile="paper")
    lines = [line.split() for line in printed(item, accuracies([(cells[0], [0.6, 0.7, 0.8])])).splitlines()]
    assert ["R", "=", "0.0", "71.50", "70.00", "±10.00", "n=3", "-1.50"] in lines
    assert ["R", "=", "0.4", "-", "-", "not", "run", "(0/3)", "-"] in lines


def test_names_are_neither_markup_nor_escape_sequences() -> None:
    """rich would take [red] for a colour; a terminal would take ESC for a command."""
    item, records = small()
    text = printed(replace(item, title="[red]x[/red] \x1b[2J", notes=("[bold]n",)), records)
    assert "[red]x[/red] [2J" in text and "note: [bold]n" in text and "\x1b" not in text


def test_long_heads_of_rows_are_broken_and_numbers_are_not() -> None:
    """Rows whose heads take 90 characters: with both methods' 50 points and their difference, in 100 columns."""
    heads = [f"{word} " + "and more words of this kind " * 3 for word in ("first", "second")]
    cells = [
        make_cell(f"{m}/{i}", {"method": m, "switch": head}, 700 + 10 * i + len(m))
        for i, head in enumerate(heads)
        for m in ("FedAvg", "Grouping")
    ]
    records = {cell.cell_key: {0: make_record(cell, 0, {"test/accuracy": 0.5})} for cell in cells}
    item = Item(name="toy/tab9", title="Toy", profile="demo", cells=tuple(cells), claims=(), seeds=1)
    text = printed(item, records)
    assert text.count("50.00") == 4 and text.count("+0.00") == 2 and text.count("n=1, no spread") == 2
    assert max(map(len, text.splitlines())) <= 100 and text.count("of this kind") >= 1
