"""What methods do, as tables: from what their runs handed over ("exchange" in a result), never typed in.

A property holds where it holds in all runs of the method.
"""

from collections.abc import Iterable

from benchmark.records.record import RunRecord
from benchmark.verdicts.metrics import OF_OTHERS, is_private, is_smoothed, is_stateless
from reports.formatting import WORDS
from reports.paper_table import method_of
from reports.reported import Reported
from reports.tables import Entry, Table, table_of

EXCHANGED = ("Privacy", "Statelessness", "EMA smoothing")
LEARNED = ("Pseudo-labels", "Consistency", "Augmentation", "Training", "Normalisation")
PRIVACY = WORDS["texts"]["privacy"]


def properties_of(runs: Iterable[RunRecord]) -> dict[str, Entry]:
    """Each of EXCHANGED and LEARNED, with what was seen that says so. Empty where no run says what it handed over."""
    runs = [run for run in runs if run.result.get("exchange")]
    if not runs:
        return {}
    exchanges = [run.result["exchange"] for run in runs]

    def names(way: str, *holders: str) -> set[str]:
        places = [exchange["holders"].get(holder, {}) for exchange in exchanges for holder in holders]
        return {name for place in places for name in place.get(way, ())}

    received, sent, kept = (names(way, "client") for way in ("received", "sent", "kept"))
    further, of_others = sent - received, received & OF_OTHERS
    privacy = stateless = Entry(text="-", below=("no client takes part",))
    if any("client" in exchange["holders"] for exchange in exchanges):
        reasons = [f"clients also send {_list(further)}"] if further else []
        reasons += [f"clients receive {_list(of_others)}"] if of_others else []
        privacy = Entry(
            text=_yes(all(map(is_private, exchanges))), below=tuple(reasons or [f"clients send {_list(sent)}"])
        )
        stateless = Entry(
            text=_yes(all(map(is_stateless, exchanges))), below=(f"clients keep {_list(kept)}",) if kept else ()
        )

    views = names("views", "client", "central") or names("views", "server")  # of whoever has unlabelled images
    kinds = {name.partition("/")[2] for name in views}
    strongest = next((kind for kind in ("strong", "weak2", "weak") if kind in kinds), "none")
    mixed = " + Mixup" if any(name.startswith("mix/") for name in views) else ""
    pseudo_labels = any(exchange["pseudo_labels"] for exchange in exchanges)
    training = {str(exchange["training"]).capitalize() for exchange in exchanges}
    norms = {str(run.experiment["model"]["norm"]) for run in runs}
    texts = (
        _yes(pseudo_labels),
        _yes(pseudo_labels and "strong" in kinds),
        {"weak2": "Weak"}.get(strongest, strongest.capitalize()) + mixed,
        " or ".join(sorted(training)),
        " or ".join(WORDS["norms"].get(norm, norm) for norm in sorted(norms)),
    )
    return {
        **dict(zip(EXCHANGED, (privacy, stateless, Entry(text=_yes(any(map(is_smoothed, exchanges))))), strict=True)),
        **{name: Entry(text=text) for name, text in zip(LEARNED, texts, strict=True)},
    }


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def property_table(reported: Reported) -> Table | None:
    """What methods hand over and, in an arena, how they learn: a row a ranked method; None where no run says it."""
    runs: dict[str, list[RunRecord]] = {}
    for result in reported.results.values():
        if result.cell.role not in ("bound", "ladder"):
            runs.setdefault(method_of(result.cell), []).extend(result.runs)
    seen = {method: properties for method, own in runs.items() if (properties := properties_of(own))}
    asked = any(metric.startswith("exchange/") for metric in reported.item.metrics)
    heads = EXCHANGED if asked else (*EXCHANGED, *LEARNED)
    rows = [(method, *(properties[head] for head in heads)) for method, properties in seen.items()]
    return table_of("properties", PRIVACY, ("Method", *heads), rows, words=1 + len(heads)) if rows else None
