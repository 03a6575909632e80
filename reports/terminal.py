"""An item on the terminal, 100 columns wide.

It can be read without colours, too.
"""

import re
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from benchmark.papers.item import Item
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.open_claims import looks_in_words, looks_of
from benchmark.verdicts.results import Records
from reports.arena import arena_tables, is_arena
from reports.claims import estimate_text, interval_text, quote_text, reason_text
from reports.formatting import count
from reports.paper_table import item_tables, ladder_table, notes_of
from reports.reported import Reported
from reports.scope import context_lines, scope_text
from reports.tables import TERMINAL_STYLES, WIDTH, Table, plain, print_table, say, width_of

MOST_DECIDED = 6  # of the other claims, at the end of what is printed
LAYOUTS = (8, 0)  # most methods as columns: the first that fits; 0 is a list


def print_item(item: Item, records: Records, console: Console, report: str | None = None) -> None:
    """Prints tables, ladder, claims, notes and where the report lies."""
    reported = Reported(item, records)
    say(console, f"{item.name}  {item.title}", "bold")
    tables = _tables(reported, console)
    for table in tables:
        say(console, re.sub(r"^\((.*)\)$", r"\1", table.caption.removeprefix(item.title).lstrip(", ")))
        print_table(table, console)
    ladder = ladder_table(reported)
    if ladder is not None:
        say(console, ladder.caption, "bold")
        print_table(ladder, console)
    for number, judged in enumerate(reported.judged, start=1):
        _print_claim(reported, judged, number, console)
    for note in notes_of(reported):
        say(console, f"note: {note}")
    for line in verdict_lines(reported):
        say(console, line)
    where = f"report: {report}" if report else "report: not built; `fssl report` builds it"
    console.print(Text(plain(where, console)), soft_wrap=True)  # a path is not broken over lines


def _tables(reported: Reported, console: Console) -> list[Table]:
    """In the widest layout that the terminal has room for; at last as lists, one a metric where there are several."""
    item = reported.item
    if is_arena(item):
        return arena_tables(reported)
    for widest in LAYOUTS:
        tables = item_tables(reported, widest)
        if all(width_of(table, console) <= min(WIDTH, console.width) for table in tables):
            return tables
    if len(item.metrics) == 1:
        return tables
    alone = [Reported(replace(item, metrics=(metric,), drawing=None), reported.records) for metric in item.metrics]
    return [table for part in alone for table in _tables(part, console)]


def verdict_lines(reported: Reported) -> list[str]:
    """Lines on main, decided and open claims.

    A line for each main claim and for the first others that are decided, then how many seeds the open ones need.
    Empty without claims that have seeds.
    """
    verdicts = reported.judged
    if all(judged.estimate is None for judged in verdicts):
        return []
    main = [judged for judged in verdicts if judged.claim.main and not judged.claim.withdrawn]
    decided = [judged for judged in verdicts if judged.is_decided]
    others = [judged for judged in decided if judged not in main and not judged.claim.withdrawn]
    more = len(others) - MOST_DECIDED
    left = f"{len(verdicts) - len(decided)} of {count(len(verdicts), 'claim')} not decided"
    return [
        *(["main claims:"] if main else []),
        *map(_verdict_line, main),
        *([f"{'other' if main else 'decided'} claims:"] if others else []),
        *map(_verdict_line, others[:MOST_DECIDED]),
        *([f"  {more} more are decided"] if more > 0 else []),
        "; ".join(filter(None, [left, looks_in_words(looks_of(verdicts))])),
    ]


def _verdict_line(judged: Judged) -> str:
    """ "undecided: Grouping beats FedAvg (+1.2 points, 9 seeds; --seeds 16 can decide it)"."""
    seen = [f"{estimate_text(judged)}, {count(judged.n, 'seed')}"] if judged.estimate is not None else []
    look = [f"--seeds {judged.could_decide} can decide it"] if judged.could_decide else []
    return f"  {judged.verdict}: {judged.claim.name} ({'; '.join([*seen, *look])})"


def _print_claim(reported: Reported, judged: Judged, number: int, console: Console) -> None:
    heading = Text(f"claim {number}: ")
    heading.append(judged.verdict, style=TERMINAL_STYLES.get(judged.verdict, "bold"))
    heading.append(plain(f"  {judged.claim.name}, {scope_text(reported.item, judged.claim)}", console))
    console.print(heading, soft_wrap=True)
    say(console, quote_text(judged.claim), indent="  ")
    text = f"{estimate_text(judged)}, {interval_text(judged)}, n={judged.n}: {reason_text(judged)}"
    say(console, text, indent="  ")
    for line in context_lines(reported, judged):
        say(console, line, indent="  ")
    if judged.claim.withdrawn:
        say(console, f"withdrawn from the boards: {judged.claim.withdrawn}", indent="  ")
