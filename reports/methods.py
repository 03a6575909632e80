"""A page a method: its file's own words, who sends and keeps what, and its results in all environments."""

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from benchmark.data.folder import public_name
from benchmark.errors import ConfigError
from benchmark.methods.catalogue import METHODS, method_class, method_name
from benchmark.papers.item import Cell
from benchmark.papers.own import OWN
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import CellResult
from reports.formatting import WORDS, cell_address, megabytes, sentence, slug
from reports.paper_table import LABELS, mean_entry
from reports.properties import PRIVACY, properties_of
from reports.reported import Reported
from reports.tables import Entry, Table, row_of, table_of

Results: TypeAlias = Sequence[tuple[Reported, CellResult]]  # of a method's cells


def method_page(kind: str) -> str:
    """From the site's root."""
    return f"methods/{slug(kind)}.html"


def kind_of(cell: Cell) -> str:
    """ "ssfl"; "my_module:MyMethod" for a user's own."""
    return method_name(cell.experiment.method)


@functools.cache
def described(kind: str) -> Mapping[str, Any]:
    """What the method's file says: name, what it is, and all else in its own words.

    Empty texts for a method that cannot be imported here, or not be made without its fields.
    """
    try:
        cls = method_class(kind)
        needs = cls().needs
    except (ConfigError, TypeError):
        return {"name": kind, "what": "", "words": "", "needs": []}
    doc = inspect.getdoc(inspect.getmodule(cls)) or ""
    if sum(other.__module__ == cls.__module__ for other in METHODS.values()) > 1:  # a file of several methods
        doc = f"{inspect.getdoc(cls)}\n\n{doc}"
    head, *parts = doc.split("\n\n")
    name, _, what = " ".join(head.split()).partition(": ")
    return {
        "name": name if what else kind,
        "what": what or name,
        "words": "\n\n".join(part for part in parts if not part.startswith("Legend")),
        "needs": [setting for setting in LABELS if setting in needs],
    }


def by_kind(every: Iterable[Reported]) -> dict[str, list[tuple[Reported, CellResult]]]:
    """Every method of the suite, and others that have records -> its cells with a finished run, each once."""
    cells: dict[str, dict[str, tuple[Reported, CellResult]]] = {kind: {} for kind in METHODS}
    for reported in every:
        for result in reported.results.values():
            if result.values:
                of_method = cells.setdefault(kind_of(result.cell), {})
                of_method.setdefault(result.cell.cell_key, (reported, result))
    return {kind: list(of_method.values()) for kind, of_method in cells.items()}


def method_values(kind: str, cells: Results) -> dict[str, Any]:
    """What the method's template shows."""
    runs = [run for _, result in cells for run in result.runs]
    return {
        "kind": kind,
        **described(kind),
        "exchange": exchange_table(runs),
        "properties": properties_of(runs),
        "privacy": PRIVACY,
        "results": _results_table(cells),
        "papers": list(dict.fromkeys(reported.paper for reported, _ in cells if reported.paper != OWN)),
        "command": f"fssl run --method {kind}",
    }


def _results_table(cells: Results) -> Table:
    rows = []
    for reported, result in cells:
        data, profile = result.cell.experiment.data, reported.item.profile
        name, labels = public_name(data.name), data.label_setting
        assert result.summary is not None
        entries = (
            Entry(text=f"{reported.item.name}: {result.cell.label}", href=cell_address(result)),
            *(name, LABELS.get(labels, labels), profile),
            mean_entry(result.summary, below=(result.counts,), look=result.status),
        )
        rows.append(row_of(entries, data=name, labels=labels, profile=profile))
    caption = "Test accuracy in percent: mean ± standard deviation over seeds"
    return table_of("results", caption, ("Cell", "Data set", "Labels", "Profile", "Accuracy (%)"), rows, words=4)


def methods_table(methods: Mapping[str, Results]) -> Table:
    """Every method: what it is, which labels it can use, how many runs there are."""
    rows = []
    for kind, cells in methods.items():
        about, n = described(kind), sum(result.n for _, result in cells)
        name = Entry(text=about["name"], href=method_page(kind), below=(sentence(about["what"]),))
        labels = "; ".join(LABELS[setting] for setting in about["needs"])
        rows.append((name, labels, Entry(text=str(n), sort=float(n))))
    return table_of("list", "Methods", ("Method", "Works where", "Finished runs"), rows, words=2)


def exchange_table(runs: Sequence[RunRecord]) -> Table | None:
    """Who received, sent and kept what, by the names that the method gives it. From the first run that has it."""
    exchange = next((run.result["exchange"] for run in runs if run.result.get("exchange")), None)
    if exchange is None:
        return None
    rows = [
        (WORDS["holders"].get(name, name), *(_names(ways.get(way)) for way in ("received", "sent", "kept")))
        for name, ways in exchange["holders"].items()
    ]
    heads = ("Who", "Received", "Sent", "Kept between rounds")
    return table_of("exchange", "What was handed over in a run", heads, rows, words=4)


def _names(sizes: dict[str, float] | None) -> str:
    """ "student (154 kB), sigma (1.2 MB)"; records hold name -> bytes."""
    texts = (
        f"{name} ({f'{megabytes(size)} MB' if size >= 1e6 else f'{size / 1e3:.3g} kB'})"
        for name, size in (sizes or {}).items()
    )
    return ", ".join(texts) or "nothing"
