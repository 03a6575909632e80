"""What methods do, as tables: from what their runs handed over ("exchange" in a result), never typed in.

Sources of the columns: FedSwitch (2023), Table 1: privacy, statelessness, EMA smoothing; SemiFL (NeurIPS 2022),
Table 2: pseudo-labels, consistency, augmentation, training, normalisation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmark.papers.item import Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import Records, seeds_of
from reports.tables import Column, Entry, Row, Table

NORMS = {"gn": "GN", "bn": "BN", "sbn": "sBN", "none": "None"}
EVERYWHERE = ("server", "client", "central")
PRIVACY = (
    "Privacy: yes where clients send nothing but updates of what they received. Statelessness: yes where clients keep "
    "nothing between rounds. EMA smoothing: yes where anyone holds a teacher."
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What all runs of one method handed over, put together."""

    received: frozenset[str]  # by clients
    sent: frozenset[str]
    kept: frozenset[str]
    anywhere: frozenset[str]  # names at any holder and in the server's state
    views: frozenset[str]  # of whoever has unlabelled images
    has_clients: bool
    pseudo_labels: bool
    training: frozenset[str]
    norms: frozenset[str]


def seen_of(runs: Iterable[RunRecord]) -> Seen | None:
    """None where no run's record says what it handed over."""
    runs = [run for run in runs if run.result.get("exchange")]
    if not runs:
        return None
    found = [run.result["exchange"] for run in runs]

    def names(way: str, *holders: str) -> frozenset[str]:
        places = [exchange["holders"].get(holder, {}) for exchange in found for holder in holders]
        return frozenset(name for place in places for name in place.get(way, ()))

    held = names("received", *EVERYWHERE) | names("sent", *EVERYWHERE) | names("kept", *EVERYWHERE)
    return Seen(
        received=names("received", "client"),
        sent=names("sent", "client"),
        kept=names("kept", "client"),
        anywhere=held | {name for exchange in found for name in exchange["state"]},
        views=names("views", "client", "central") or names("views", "server"),
        has_clients=any("client" in exchange["holders"] for exchange in found),
        pseudo_labels=any(exchange["pseudo_labels"] for exchange in found),
        training=frozenset(str(exchange["training"]) for exchange in found),
        norms=frozenset(str(run.experiment["model"]["norm"]) for run in runs),
    )


def exchanged(seen: Seen) -> tuple[Entry, ...]:
    """Privacy, statelessness, EMA smoothing; with what was seen that says so."""
    ema = _yes("teacher" in seen.anywhere)
    if not seen.has_clients:
        nobody = Entry(text="-", below=("no client takes part",))
        return nobody, nobody, ema
    further = seen.sent - seen.received
    said = f"clients also send {_list(further)}" if further else f"clients send {_list(seen.sent)}"
    keeps = (f"clients keep {_list(seen.kept)}",) if seen.kept else ()
    return Entry(text="no" if further else "yes", below=(said,)), Entry(text="no" if keeps else "yes", below=keeps), ema


def learned(seen: Seen) -> tuple[Entry, ...]:
    """Pseudo-labels, consistency, augmentation, training, normalisation."""
    views = {name.split("/")[1] for name in seen.views}
    strongest = next((view for view in ("strong", "weak2", "weak") if view in views), "none")
    mixed = " + Mixup" if any(name.split("/")[0] == "mix" for name in seen.views) else ""
    return (
        _yes(seen.pseudo_labels),
        _yes(seen.pseudo_labels and "strong" in views),
        Entry(text={"weak2": "Weak"}.get(strongest, strongest.capitalize()) + mixed),
        Entry(text=" or ".join(name.capitalize() for name in sorted(seen.training))),
        Entry(text=" or ".join(NORMS.get(name, name) for name in sorted(seen.norms))),
    )


def _yes(value: bool) -> Entry:
    return Entry(text="yes" if value else "no")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def arena_properties(item: Item, records: Records) -> list[Table]:
    """Both tables, a row a ranked method; empty where no run says what it handed over."""
    found: dict[str, list[RunRecord]] = {}
    for cell in item.cells:
        if cell.role not in ("bound", "ladder"):
            found.setdefault(str(cell.setting.get("method", cell.label)), []).extend(seeds_of(records, cell))
    seen = {method: one for method, runs in found.items() if (one := seen_of(runs)) is not None}
    if not seen:
        return []
    first = ("Method", "Privacy", "Statelessness", "EMA smoothing")
    second = ("Method", "Pseudo-labels", "Consistency", "Augmentation", "Training", "Normalisation")
    return [
        _table("exchanged", PRIVACY, first, [Row(entries=(Entry(text=m), *exchanged(one))) for m, one in seen.items()]),
        _table("learned", "", second, [Row(entries=(Entry(text=m), *learned(one))) for m, one in seen.items()]),
    ]


def _table(name: str, caption: str, heads: Sequence[str], rows: Sequence[Row]) -> Table:
    columns = tuple(Column(name=head, left=True) for head in heads)
    return Table(name=name, caption=caption, columns=columns, rows=tuple(rows))
