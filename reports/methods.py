"""Compose the page of each method: its description, the values that it sends and keeps, and its results in all
environments.

The properties of a method are computed from its runs' communication, "exchange" in a result, and never typed in. A
method has a property if all of its runs have it.
"""

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmark.data.folder import public_name
from benchmark.errors import ConfigError
from benchmark.methods.registry import METHODS, method_class, method_name
from benchmark.papers.own import OWN
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import CellResult
from benchmark.verdicts.metrics import OF_OTHERS, is_private, is_smoothed, is_stateless
from reports.entries import LABELS, mean_entry, method_of
from reports.formatting import WORDS, cell_address, megabytes, sentence, slug
from reports.item_results import ItemResults, Places
from reports.tables import Table, TableEntry, row_of, table_of

EXCHANGED = ("Privacy", "Statelessness", "EMA smoothing")
LEARNED = ("Pseudo-labels", "Consistency", "Augmentation", "Training", "Normalisation")
AUGMENTATIONS = {"strong": "Strong", "weak2": "Weak", "weak": "Weak"}  # by kind of view, the strongest first
PRIVACY = WORDS["texts"]["privacy"]


def method_page(kind: str) -> str:
    """Return the path of the method's page from the site's root."""
    return f"methods/{slug(kind)}.html"


@functools.cache
def described(kind: str) -> Mapping[str, Any]:
    """Return the description in the method's file: name, kind of method, further text, and the labels it needs.

    The texts are empty if the method cannot be imported, or cannot be created without values for its fields.
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
    words = "\n\n".join(part for part in parts if not part.startswith("Legend"))
    return {
        "name": name if what else kind,
        "what": what or name,
        "words": words,
        "needs": [setting for setting in LABELS if setting in needs],
    }


def by_kind(cells: Iterable[Places]) -> dict[str, Places]:
    """Return the cells with a finished run by method, each cell once.

    The methods are all of the suite and any others that have records.
    """
    methods: dict[str, list[tuple[ItemResults, CellResult]]] = {kind: [] for kind in METHODS}
    for places in cells:
        finished = [(reported, result) for reported, result in places if result.values]
        if finished:
            reported, result = finished[0]
            kind = method_name(result.cell.experiment.method)
            methods.setdefault(kind, []).append((reported, result))
    return dict(methods)


def method_values(kind: str, cells: Places) -> dict[str, Any]:
    """Return the values of the method's page."""
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


def _results_table(cells: Places) -> Table:
    rows = []
    for reported, result in cells:
        data = result.cell.experiment.data
        profile = reported.item.profile
        name = public_name(data.name)
        labels = data.label_setting
        assert result.summary is not None
        entries = (
            TableEntry(text=f"{reported.item.name}: {result.cell.label}", href=cell_address(result)),
            name,
            LABELS.get(labels, labels),
            profile,
            mean_entry(result.summary, below=(result.counts,), look=result.status),
        )
        rows.append(row_of(entries, data=name, labels=labels, profile=profile))
    caption = "Test accuracy in percent: mean ± standard deviation over seeds"
    return table_of("results", caption, ("Cell", "Data set", "Labels", "Profile", "Accuracy (%)"), rows, words=4)


def methods_table(methods: Mapping[str, Places]) -> Table:
    """Return a row for each method: its description, the labels that it can use, and its number of runs."""
    rows = []
    for kind, cells in methods.items():
        about = described(kind)
        n = sum(result.n for _, result in cells)
        name = TableEntry(text=about["name"], href=method_page(kind), below=(sentence(about["what"]),))
        labels = "; ".join(LABELS[setting] for setting in about["needs"])
        rows.append((name, labels, TableEntry(text=str(n), sort=float(n))))
    return table_of("list", "Methods", ("Method", "Label settings", "Finished runs"), rows, words=2)


def exchange_table(runs: Sequence[RunRecord]) -> Table | None:
    """Return the values that each participant received, sent and kept, by the method's names, from the first run that
    has them.
    """
    exchange = next((run.result["exchange"] for run in runs if run.result.get("exchange")), None)
    if exchange is None:
        return None
    rows = []
    for name, ways in exchange["holders"].items():
        listed = [_names(ways.get(way)) for way in ("received", "sent", "kept")]
        rows.append((WORDS["holders"].get(name, name), *listed))
    heads = ("Who", "Received", "Sent", "Kept between rounds")
    return table_of("exchange", "Communication in a run", heads, rows, words=4)


def _names(sizes: dict[str, float] | None) -> str:
    """Write "student (154 kB), sigma (1.2 MB)" from sizes in bytes by name."""
    texts = (
        f"{name} ({f'{megabytes(size)} MB' if size >= 1e6 else f'{size / 1e3:.3g} kB'})"
        for name, size in (sizes or {}).items()
    )
    return ", ".join(texts) or "nothing"


def properties_of(runs: Iterable[RunRecord]) -> dict[str, TableEntry]:
    """Return each property of EXCHANGED and LEARNED with the observation behind it.

    Return nothing if no run recorded its communication.
    """
    runs = [run for run in runs if run.result.get("exchange")]
    if not runs:
        return {}
    exchanges = [run.result["exchange"] for run in runs]
    norms = {str(run.experiment["model"]["norm"]) for run in runs}
    return _exchange_properties(exchanges) | _learning_properties(exchanges, norms)


def _exchange_properties(exchanges: Sequence[Mapping[str, Any]]) -> dict[str, TableEntry]:
    """Return the properties of EXCHANGED with the names of the values that clients send, receive and keep."""
    smoothed = TableEntry(text=_yes(any(map(is_smoothed, exchanges))))
    if not any("client" in exchange["holders"] for exchange in exchanges):
        no_client = TableEntry(text="-", below=("no client takes part",))
        return {"Privacy": no_client, "Statelessness": no_client, "EMA smoothing": smoothed}
    received = _names_in(exchanges, "received", "client")
    sent = _names_in(exchanges, "sent", "client")
    kept = _names_in(exchanges, "kept", "client")
    further = sent - received
    of_others = received & OF_OTHERS
    reasons = []
    if further:
        reasons.append(f"clients also send {_list(further)}")
    if of_others:
        reasons.append(f"clients receive {_list(of_others)}")
    if not reasons:
        reasons.append(f"clients send {_list(sent)}")
    keeps = (f"clients keep {_list(kept)}",) if kept else ()
    return {
        "Privacy": TableEntry(text=_yes(all(map(is_private, exchanges))), below=tuple(reasons)),
        "Statelessness": TableEntry(text=_yes(all(map(is_stateless, exchanges))), below=keeps),
        "EMA smoothing": smoothed,
    }


def _learning_properties(exchanges: Sequence[Mapping[str, Any]], norms: Iterable[str]) -> dict[str, TableEntry]:
    """Return the properties of LEARNED. `norms`: the normalisation layers of the networks."""
    # The views are those of a participant with unlabelled images.
    views = _names_in(exchanges, "views", "client", "central") or _names_in(exchanges, "views", "server")
    kinds = {name.partition("/")[2] for name in views}
    strongest = next((word for kind, word in AUGMENTATIONS.items() if kind in kinds), "None")
    mixed = " + Mixup" if any(name.startswith("mix/") for name in views) else ""
    pseudo_labels = any(exchange["pseudo_labels"] for exchange in exchanges)
    training = {str(exchange["training"]).capitalize() for exchange in exchanges}
    texts = {
        "Pseudo-labels": _yes(pseudo_labels),
        "Consistency": _yes(pseudo_labels and "strong" in kinds),
        "Augmentation": strongest + mixed,
        "Training": " or ".join(sorted(training)),
        "Normalisation": " or ".join(WORDS["norms"].get(norm, norm) for norm in sorted(norms)),
    }
    return {name: TableEntry(text=text) for name, text in texts.items()}


def _names_in(exchanges: Iterable[Mapping[str, Any]], way: str, *holders: str) -> set[str]:
    """Return the names of the values that these participants received, sent, kept or viewed in any of the runs."""
    names = set[str]()
    for exchange in exchanges:
        for holder in holders:
            names.update(exchange["holders"].get(holder, {}).get(way, ()))
    return names


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def property_table(reported: ItemResults) -> Table | None:
    """Return the communication of methods and, in a method comparison, how they learn, with one row per method.

    Baselines have no row. Return None if no run recorded it.
    """
    runs: dict[str, list[RunRecord]] = {}
    for result in reported.results.values():
        if result.cell.role not in ("bound", "ladder"):
            runs.setdefault(method_of(result.cell), []).extend(result.runs)
    asked = any(metric.startswith("exchange/") for metric in reported.item.metrics)
    heads = EXCHANGED if asked else (*EXCHANGED, *LEARNED)
    rows = []
    for method, own in runs.items():
        properties = properties_of(own)
        if properties:
            rows.append((method, *(properties[head] for head in heads)))
    return table_of("properties", PRIVACY, ("Method", *heads), rows, words=1 + len(heads)) if rows else None
