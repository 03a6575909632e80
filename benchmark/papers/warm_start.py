"""Check that a run is long enough to reach its clients: during a warm start, only labels are trained on.

The module also lists which rows of a custom table differ in their warm start or in another part of
their budget.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.bounds import is_bound
from benchmark.papers.item import Cell


def warm_start_rounds(e: Experiment) -> int:
    """Return the number of rounds of training on labels only, or 0 for a method without a warm start."""
    rounds = getattr(e.method, "warm_start_rounds", 0)  # a custom method may use this name for anything
    return rounds if isinstance(rounds, int) else 0


def ends_in_warm_start(e: Experiment) -> bool:
    """Return whether the run has no round left for the clients' unlabelled images."""
    return warm_start_rounds(e) >= e.federation.rounds


def check_reaches_clients(e: Experiment, start: Experiment | None = None) -> None:
    """Raise ConfigError if the run ends before its clients begin to train on unlabelled images.

    `start` is the cell that the experiment is built from. A start that itself ends in its warm
    start is a supervised baseline by design (SemiFL's), and the experiment then passes.
    """
    if ends_in_warm_start(e) and not (start is not None and ends_in_warm_start(start)):
        raise ConfigError(too_short_in_words(e))


def too_short_in_words(e: Experiment, assign: str = "{name} = {value}") -> str:
    """Return the message that the run ends in its warm start, with the number of rounds that it needs.

    `assign` is the pattern for setting a field.
    """
    warm = warm_start_rounds(e)
    rounds = e.federation.rounds
    longer = assign.format(name="federation.rounds", value=warm + 1)
    none = assign.format(name="method.warm_start_rounds", value=0)
    return (
        f"federation.rounds is {rounds}, but clients first train on unlabelled images in round {warm + 1}, after a "
        f"warm start of {warm} rounds only on labels; set {longer} or more, or {none}"
    )


# Name for readers -> the value that two rows should share.
BUDGETS: Mapping[str, Callable[[Experiment], int | str | None]] = {
    "warm start": warm_start_rounds,
    "rounds": lambda e: e.federation.rounds,
    "local steps (T)": lambda e: e.federation.T,
    "local epochs (E)": lambda e: e.federation.epochs,
    "label setting": lambda e: e.data.label_setting,
}


def notes_on_budgets(cells: Sequence[Cell]) -> Iterator[str]:
    """Return a note for each budget that differs between rows: "Rows differ in warm start: SemiFL 0, FedSwitch 15".

    Rows are compared within each column. A supervised baseline has no warm start, since it trains
    only on labels.
    """
    for words, value_of in BUDGETS.items():
        columns: dict[object, set[int | str | None]] = {}
        rows: dict[str, dict[int | str | None, None]] = {}
        for cell in cells:
            if words == "warm start" and is_bound(cell):
                continue
            value = value_of(cell.experiment)
            columns.setdefault(cell.setting.get("column"), set()).add(value)
            rows.setdefault(str(cell.setting["method"]), {})[value] = None
        if any(len(values) > 1 for values in columns.values()):
            parts = (f"{row} {' or '.join(map(_number, values))}" for row, values in rows.items())
            yield f"Rows differ in {words}: {', '.join(parts)}."


def _number(value: int | str | None) -> str:
    return "none" if value is None else f"{value}"
