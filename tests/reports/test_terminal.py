"""What `fssl reproduce --main` prints: few lines, and the counts of the page."""

import io
import re

from rich.console import Console

from reports.findings import statuses
from reports.item_results import ItemResults
from reports.pages import progress
from reports.terminal import print_item, print_primary
from tests.reports.snapshots import decided, open_main


def lines_of(printer, example):
    file = io.StringIO()
    printer(*example, Console(file=file, width=100), report="site/x.html")
    return file.getvalue().splitlines()


def test_primary_claims_have_a_line_each_and_nothing_more_is_printed():
    item, records = open_main()
    lines = lines_of(print_primary, (item, records))
    primary = [claim.name for claim in item.claims if claim.main]
    assert primary and len(lines) <= 25 and lines[-1].endswith("site/x.html")
    for name in primary:
        assert sum(name in line for line in lines) == 1
    for cell in item.cells:
        assert sum(line.startswith(cell.label) for line in lines) == 1


def test_the_terminal_counts_as_the_page_does():
    for example in (decided(), open_main()):
        reported = ItemResults(*example)
        page = progress(reported)
        on_page = page["verdicts"] + page["questions"]
        assert on_page and page["verdicts"] + page["questions"] == sum(statuses(reported).values(), type(on_page)())
        for printer in (print_item, print_primary):
            text = " ".join(lines_of(printer, example))
            for status, number in on_page.items():
                assert re.search(rf"{status} {number}\b", text)
