"""Compute the tables of the page on speed: the cost of local steps per GPU, and the agreement of engines."""

import tomllib
from pathlib import Path

from benchmark.records.provenance import ROOT
from sweeps.cards import Card, cards, estimated_cards, table_of

MARK = "<!-- cards -->"
MEASURED = ROOT / "results" / "benchmarks" / "memory_order.toml"
PLACE = "[memory order]"
KINDS = {"memory_order": "reference engine, other memory format", "stacked": "engine stacked"}


def with_cards(text: str, results: Path | None) -> str:
    """Return the page with one table per GPU in place of `MARK`, measured GPUs first. Raise DataError if a file of
    measurements cannot be read.
    """
    known = estimated_cards() if results is None else cards(results)
    shown = sorted(known.values(), key=lambda card: (not card.is_measured, not _has_measured(card), card.name))
    return text.replace(MARK, "\n\n".join(_of(card) for card in shown))


def _has_measured(card: Card) -> bool:
    return any(row.measured for row in card.rows)


def _of(card: Card) -> str:
    return "\n".join([f"**{card.name}**: {_source(card)}", "", *table_of(card.rows), *_left_out(card)])


def _source(card: Card) -> str:
    if card.is_measured:
        return f"{card.source}. CUDA tests: {card.facts['tests'].get('result', 'not run')}."
    if _has_measured(card):
        return "not measured with this version. Times with ~ are estimates; the others are from the section above."
    return "not measured. All times are estimates."


def _left_out(card: Card) -> list[str]:
    if not card.is_measured or card.facts.get("complete", True):
        return []
    return ["", "The time was up before all was measured."]


def with_memory_order(text: str) -> str:
    """Replace `PLACE` by the table. The text stays as it is if the file of measurements does not exist."""
    return text.replace(PLACE, memory_order_table()) if MEASURED.is_file() else text


def memory_order_table() -> str:
    """Return a Markdown table of the differences per golden trace after the measured numbers of rounds."""
    measured = tomllib.loads(MEASURED.read_text())
    columns = [(kind, rounds) for kind in KINDS for rounds in measured["rounds"]]
    names = [f"{KINDS[kind]}, {rounds} round{'s' if rounds > 1 else ''}" for kind, rounds in columns]
    lines = [f"| trace, {measured['seeds']} seeds | {' | '.join(names)} |", f"| --- |{' ---: |' * len(columns)}"]
    for trace in measured["traces"]:
        cells = []
        for kind, rounds in columns:
            middle, largest = (trace[f"{kind}_{which}_after_{rounds}"] for which in ("median", "largest"))
            cells.append(f"{middle:.0e}, {largest:.0e}")
        lines.append(f"| {trace['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)
