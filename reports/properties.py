"""What methods do, as tables of properties: generated from what runs handed over, never typed in.

FedSwitch (arXiv 2023), Table 1: privacy, statelessness, EMA smoothing. SemiFL (NeurIPS 2022), Table 2: pseudo-labels,
consistency regularisation, augmentation, training, normalisation. Everything comes from the "exchange" of finished
runs (`benchmark/diagnostics/exchange.py`) and the experiment's model.

Departures: "privacy" is the first half of FedSwitch section 3.1 only (clients send nothing but updates of what they
received); whether a client received another client's update cannot be seen from names, so the names are shown.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.records.record import RunRecord

YES, NO = "yes", "no"
NORMS = {"gn": "GN", "bn": "BN", "sbn": "sBN", "none": "None"}
TRAINING = {"parallel": "Parallel", "alternate": "Alternate", "none": "None"}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One entry of a table: what is said, and what was seen that says it."""

    text: str
    seen: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.seen})" if self.seen else self.text


@dataclass(frozen=True, kw_only=True)
class Properties:
    """A table: a corner, the heads of its columns, and its rows by name."""

    corner: str
    columns: tuple[str, ...]
    rows: Mapping[str, Sequence[Mark]]

    def markdown(self) -> str:
        """A table in Markdown, with what was seen in brackets."""
        lines = [[self.corner, *self.columns], ["---"] * (len(self.columns) + 1)]
        lines += [[name, *map(str, marks)] for name, marks in self.rows.items()]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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


def fedswitch_table1(records: Iterable[RunRecord]) -> Properties:
    """FedSwitch Table 1: a column a method; a row a property."""
    methods = seen_by_method(records)
    judged = {"Privacy": _privacy, "Statelessness": _statelessness, "EMA smoothing": _ema_smoothing}
    rows = {name: tuple(judge(seen) for seen in methods.values()) for name, judge in judged.items()}
    return Properties(corner="Property", columns=tuple(methods), rows=rows)


def semifl_table2(records: Iterable[RunRecord]) -> Properties:
    """SemiFL Table 2: a row a method."""
    columns = ("Pseudo-labeling", "Consistency regularization", "Data augmentation", "Training", "Normalization")
    judges = (_pseudo_labels, _consistency, _augmentation, _training, _normalisation)
    rows = {name: tuple(judge(seen) for judge in judges) for name, seen in seen_by_method(records).items()}
    return Properties(corner="Method", columns=columns, rows=rows)


def seen_by_method(records: Iterable[RunRecord]) -> dict[str, Seen]:
    """By the method's name, sorted; runs whose record says nothing of the exchange are passed over."""
    runs: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.result.get("exchange"):
            runs.setdefault(str(record.experiment["method"]["kind"]), []).append(record)
    return {name: _together(found) for name, found in sorted(runs.items())}


def _together(records: Sequence[RunRecord]) -> Seen:
    found = [record.result["exchange"] for record in records]

    def names(way: str, *holders: str) -> frozenset[str]:
        return frozenset(
            name
            for exchange in found
            for holder in holders
            for name in exchange["holders"].get(holder, {}).get(way, ())
        )

    everywhere = ("server", "client", "central")
    at_holders = names("received", *everywhere) | names("sent", *everywhere) | names("kept", *everywhere)
    return Seen(
        received=names("received", "client"),
        sent=names("sent", "client"),
        kept=names("kept", "client"),
        anywhere=at_holders | {name for exchange in found for name in exchange["state"]},
        views=names("views", "client", "central") or names("views", "server"),
        has_clients=any("client" in exchange["holders"] for exchange in found),
        pseudo_labels=any(exchange["pseudo_labels"] for exchange in found),
        training=frozenset(exchange["training"] for exchange in found),
        norms=frozenset(str(record.experiment["model"]["norm"]) for record in records),
    )


NO_CLIENTS = Mark(text="-", seen="no client takes part")


def _privacy(seen: Seen) -> Mark:
    """No where clients send what is no update of something they received."""
    if not seen.has_clients:
        return NO_CLIENTS
    further = seen.sent - seen.received
    if further:
        return Mark(text=NO, seen=f"clients also send {_list(further)}")
    return Mark(text=YES, seen=f"clients send {_list(seen.sent)}; receive {_list(seen.received)}")


def _statelessness(seen: Seen) -> Mark:
    if not seen.has_clients:
        return NO_CLIENTS
    return Mark(text=NO, seen=f"clients keep {_list(seen.kept)}") if seen.kept else Mark(text=YES)


def _ema_smoothing(seen: Seen) -> Mark:
    return Mark(text=YES if "teacher" in seen.anywhere else NO)


def _pseudo_labels(seen: Seen) -> Mark:
    return Mark(text=YES if seen.pseudo_labels else NO)


def _consistency(seen: Seen) -> Mark:
    """A strong view has to give what another view gave."""
    return Mark(text=YES if seen.pseudo_labels and "strong" in _views(seen) else NO)


def _augmentation(seen: Seen) -> Mark:
    """The strongest view; mixing shows in a stream of that name."""
    strongest = next((view for view in ("strong", "weak2", "weak") if view in _views(seen)), "none")
    mixed = any(name.split("/")[0] == "mix" for name in seen.views)
    return Mark(text={"weak2": "Weak"}.get(strongest, strongest.capitalize()) + (" + Mixup" if mixed else ""))


def _training(seen: Seen) -> Mark:
    return Mark(text=" or ".join(TRAINING[name] for name in sorted(seen.training)))


def _normalisation(seen: Seen) -> Mark:
    return Mark(text=" or ".join(NORMS.get(name, name) for name in sorted(seen.norms)))


def _views(seen: Seen) -> set[str]:
    return {name.split("/")[1] for name in seen.views}


def _list(names: Iterable[Any]) -> str:
    return ", ".join(sorted(names)) or "nothing"
