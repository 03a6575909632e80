"""A page a method: its file's own words, who sends and keeps what, its results in all environments, and the table of
methods by data sets and label settings."""

import inspect
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from benchmark.errors import ConfigError
from benchmark.methods.catalogue import METHODS, method_class, method_name
from benchmark.papers.item import Cell
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import CellResult
from reports.articles import article
from reports.formatting import NONE, cell_address, megabytes, sentence, slug
from reports.paper_table import LABELS, mean_entry
from reports.properties import PRIVACY, properties_of
from reports.reported import Reported
from reports.tables import Column, Entry, Row, Table, table_of

HOLDERS = {"server": "The server", "client": "A client", "central": "The one holder"}
PRINTED_AT = re.compile(r"\b(?:19|20)\d\d\b|\barXiv\b")
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def method_page(kind: str) -> str:
    """From the site's root."""
    return f"methods/{slug(kind)}.html"


def kind_of(cell: Cell) -> str:
    """ "ssfl"; "my_module:MyMethod" for a user's own."""
    return method_name(cell.experiment.method)


def described(kind: str) -> dict[str, Any]:
    """What the method's file says: name, what it is, citation, how it works, departures. Empty for a method that cannot
    be imported here."""
    try:
        cls = method_class(kind)
        needs = cls().needs
    except (ConfigError, TypeError):  # not here, or not to be made without its fields
        return {"name": kind, "what": "", "citation": "", "arxiv": "", "box": "", "departures": "", "needs": []}
    doc = inspect.getdoc(inspect.getmodule(cls)) or ""
    if sum(other.__module__ == cls.__module__ for other in METHODS.values()) > 1:  # a file of several methods
        doc = f"{inspect.getdoc(cls)}\n\n{doc}"
    head, *parts = doc.split("\n\n")
    name, _, what = " ".join(head.split()).partition(": ")
    cited = parts.pop(0) if parts and PRINTED_AT.search(parts[0]) else ""
    told = [part for part in parts if part.startswith("Departures")]
    kept = [part for part in parts if part not in told and not part.startswith("Legend")]
    arxiv = ARXIV.search(cited)
    return {
        "name": name if what else kind,
        "what": what or name,
        "citation": " ".join(cited.split()),
        "arxiv": arxiv[1] if arxiv else "",
        "box": "\n\n".join(kept),
        "departures": article("\n\n".join(part.partition("\n")[2] for part in told)) if told else "",
        "needs": [setting for setting in LABELS if setting in needs],
    }


def kinds_of(shown: Iterable[Reported]) -> list[str]:
    """Every method of the suite, and those of others that have records."""
    seen = (kind_of(result.cell) for one in shown for result in one.results.values() if result.values)
    return list(dict.fromkeys((*METHODS, *seen)))


def by_kind(shown: Sequence[Reported]) -> dict[str, list[tuple[Reported, CellResult]]]:
    """Method -> its cells with a finished run, each once."""
    found: dict[str, dict[str, tuple[Reported, CellResult]]] = {kind: {} for kind in kinds_of(shown)}
    for one in shown:
        for result in one.results.values():
            if result.values:
                found[kind_of(result.cell)].setdefault(result.cell.cell_key, (one, result))
    return {kind: list(cells.values()) for kind, cells in found.items()}


def method_values(kind: str, cells: Sequence[tuple[Reported, CellResult]]) -> dict[str, Any]:
    """What the method's template shows."""
    runs = [run for _, result in cells for run in result.runs]
    seen = properties_of(runs)
    return {
        "kind": kind,
        **described(kind),
        "exchange": exchange_table(runs),
        "properties": seen or {},
        "privacy": PRIVACY,
        "results": _results(cells),
        "papers": list(dict.fromkeys(one.paper for one, _ in cells)),
        "command": f"fssl run --method {kind}",
    }


def _results(cells: Sequence[tuple[Reported, CellResult]]) -> Table:
    rows = []
    for one, result in cells:
        data, seen = result.cell.experiment.data, result.summary
        assert seen is not None
        entries = (
            Entry(text=f"{one.item.name}: {result.cell.label}", href=cell_address(result.cell, has_runs=True)),
            *(Entry(text=text) for text in (data.name, LABELS.get(data.label_setting, data.label_setting))),
            Entry(text=one.item.profile),
            mean_entry(seen, below=(result.counts,), look=result.status),
        )
        rows.append(
            Row(entries=entries, values={"data": data.name, "labels": data.label_setting, "profile": one.item.profile})
        )
    heads = [Column(name=name, left=True) for name in ("Cell", "Data set", "Labels", "Profile")]
    return Table(
        name="results",
        caption="Test accuracy in percent: mean ± standard deviation over seeds",
        columns=(*heads, Column(name="Accuracy (%)")),
        rows=tuple(rows),
    )


def overview(cells: dict[str, list[tuple[Reported, CellResult]]]) -> Table:
    """Methods by label settings and data sets: finished runs. Links from the site's root."""
    counts = pd.DataFrame(
        [
            (kind, result.cell.experiment.data.label_setting, result.cell.experiment.data.name, result.n)
            for kind, found in cells.items()
            for _, result in found
        ],
        columns=["kind", "labels", "data", "n"],
    )
    counts["labels"] = pd.Categorical(counts["labels"], list(LABELS))
    runs = counts.pivot_table(index="kind", columns=["labels", "data"], values="n", aggfunc="sum", observed=True)
    rows = []
    for kind in cells:
        told = described(kind)
        entries = [Entry(text=told["name"], href=method_page(kind))]
        for labels, data in runs.columns:
            n = runs[labels, data].get(kind, float("nan"))
            text = f"{n:.0f}" if n == n else "can" if labels in told["needs"] else NONE
            entries.append(Entry(text=text, look="" if n == n else "missing", sort=n if n == n else 0.0))
        rows.append(Row(entries=tuple(entries)))
    heads = [Column(name=data, group=LABELS.get(labels, labels)) for labels, data in runs.columns]
    return Table(
        name="methods",
        caption="Finished runs of each method, by who has labels and by data set. “can”: the method can use such "
        "labels, and has not been run with them. A dash: it cannot use them",
        columns=(Column(name="Method", left=True), *heads),
        rows=tuple(rows),
    )


def listed(cells: dict[str, list[tuple[Reported, CellResult]]]) -> Table:
    """Every method: what it is, which labels it can use, how many runs there are."""
    rows = []
    for kind, found in cells.items():
        told = described(kind)
        name = Entry(text=told["name"], href=method_page(kind), below=(sentence(told["what"]),))
        labels = Entry(text="; ".join(LABELS[setting] for setting in told["needs"]))
        rows.append((name, labels, Entry(text=str(n := sum(result.n for _, result in found)), sort=float(n))))
    return table_of("list", "Methods", ("Method", "Works where", "Finished runs"), rows, words=2)


def exchange_table(runs: Sequence[RunRecord]) -> Table | None:
    """Who received, sent and kept what, by the names that the method gives it; from the first run that says so."""
    exchange = next((found for run in runs if (found := run.result.get("exchange"))), None)
    if exchange is None:
        return None
    rows = [
        (HOLDERS.get(name, name), *(_names(ways.get(way)) for way in ("received", "sent", "kept")))
        for name, ways in exchange["holders"].items()
    ]
    heads = ("Who", "Received", "Sent", "Kept between rounds")
    return table_of("exchange", "What was handed over in a run", heads, rows, words=4)


def _names(sizes: dict[str, float] | None) -> str:
    """ "student (154 kB), sigma (1.2 MB)"; records hold name -> bytes."""
    found = (
        f"{name} ({f'{megabytes(size)} MB' if size >= 1e6 else f'{size / 1e3:.3g} kB'})"
        for name, size in (sizes or {}).items()
    )
    return ", ".join(found) or "nothing"
