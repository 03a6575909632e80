"""How close runs come to the reference engine: a table for the page of performance."""

import tomllib

from benchmark.records.provenance import ROOT

MEASURED = ROOT / "results" / "benchmarks" / "memory_order.toml"
PLACE = "[memory order]"
KINDS = {"memory_order": "reference engine, other memory order", "stacked": "engine stacked"}


def with_memory_order(text: str) -> str:
    """Put the table in its place. The text stays as it is if nothing was measured here."""
    return text.replace(PLACE, memory_order_table()) if MEASURED.is_file() else text


def memory_order_table() -> str:
    """Return, in Markdown, the differences per golden trace after the measured numbers of rounds."""
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
