"""A made-up arena: methods of different costs, a bound, a diverged run, one that waits."""

from collections.abc import Sequence
from dataclasses import replace

from benchmark.papers.item import Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import Records
from tests.reports.fakes import make_cell, make_record

ONE_MORE_CLIENT = "the server's labels are one more client's"


def run_of(cell: Cell, seed: int, ends: Sequence[float], steps: float, up: float, **more: str) -> RunRecord:
    """A finished run of rounds with these accuracies, and so many local steps and bytes up in each."""
    costs = {"local_steps": steps, "comm/bytes_up": up, "comm/bytes_down": 0.0}
    rounds = [{"round": t, **costs, "test/accuracy": end} for t, end in enumerate(ends, start=1)]
    record = make_record(cell, seed, {**costs, "test/accuracy": ends[-1]}, rounds=rounds, **more)
    cost = {"local_steps": steps * len(ends), "bytes_up": up * len(ends), "bytes_down": 0.0}
    return replace(record, result={**record.result, "cost": cost})


def arena_cell(method: str, value: object, key: int, varies: str = "hyperparameters", **more: str) -> Cell:
    """A cell of the arena; its experiment has `key` rounds so that no two cells share a key."""
    return make_cell(f"{method}/{value}", {"method": method, varies: value}, key, **more)  # type: ignore[dict-item]


def small() -> tuple[Item, Records]:
    """Two rounds a run. A: 10 steps and 1 MB a round, .5 then .90 .91 .92; B: 20 steps and .5 MB, .7 then .80 .82 .81;
    C was not run, D diverged, S is a bound that tuning does not touch, E/tuned waits for its trials."""
    cells = [
        arena_cell("A", "own", 700),
        arena_cell("B", "own", 701, note=ONE_MORE_CLIENT),
        arena_cell("C", "own", 702),
        arena_cell("D", "own", 703),
        arena_cell("S", "own", 704, role="bound", note="labels alone"),
    ]
    a, b, _, d, s = cells
    records = {
        a.cell_key: {i: run_of(a, i, [0.5, end], 10, 1e6) for i, end in enumerate((0.90, 0.91, 0.92))},
        b.cell_key: {i: run_of(b, i, [0.7, end], 20, 5e5) for i, end in enumerate((0.80, 0.82, 0.81))},
        d.cell_key: {0: run_of(d, 0, [0.1, 0.2], 1, 1, status="diverged")},
        s.cell_key: {i: run_of(s, i, [0.6, 0.65], 10, 0) for i in range(3)},
    }
    trials = {name: make_cell(name, {}, 900 + i).experiment for i, name in enumerate(("lr 0.01", "lr 0.02"))}
    setting = {"method": "A", "hyperparameters": "tuned"}
    waiting = Choice(label="A/tuned", setting=setting, trials=trials, finals=trials)
    item = Item(
        name="arena/toy",
        title="Toy",
        profile="demo",
        cells=tuple(cells),
        choices=(waiting,),
        seeds=3,
        notes=("Six settings a method.",),
        rows=("method",),
        columns=("hyperparameters",),
    )
    return item, records
