"""Describe seeds of runs as text."""

from collections.abc import Iterable


def seed_spans(seeds: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last seed of each span of consecutive seeds, in ascending order."""
    spans: list[tuple[int, int]] = []
    for seed in sorted(seeds):
        if spans and seed == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], seed)
        else:
            spans.append((seed, seed))
    return spans


def span_text(first: int, last: int) -> str:
    """Write one span: "100 to 103", or "107"."""
    return f"{first} to {last}" if last > first else f"{first}"


def seeds_text(seeds: Iterable[int]) -> str:
    """Write "seed 3" or "seeds 0 to 2, 100 to 131"."""
    text = ", ".join(span_text(first, last) for first, last in seed_spans(seeds))
    return f"seed {text}" if text.isdigit() else f"seeds {text}"
