"""Puts what local steps cost on cards into the page on speed."""

from pathlib import Path

from sweeps.cards import Card, cards, estimated_cards, table_of

MARK = "<!-- cards -->"


def with_cards(text: str, results: Path | None) -> str:
    """Return the page with a table per card in place of its mark: measured cards first. Raises DataError."""
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
        return "not measured with this version. Times with ~ are estimates; the others are those of the section above."
    return "not measured. All times are estimates."


def _left_out(card: Card) -> list[str]:
    if not card.is_measured or card.facts.get("complete", True):
        return []
    return ["", "The time was up before all was measured."]
