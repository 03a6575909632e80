"""A made-up arena: methods that learn at different speeds and costs, bounds, a diverged run, one that waits."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmark.papers.item import Cell, Choice, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.results import Records
from tests.reports.fakes import make_cell, make_record

ONE_MORE_CLIENT = "the server's labels are one more client's"
METHODS = {  # name: (last accuracy, rounds to learn, local steps a round, MB a round)
    "SSFL": (0.953, 9, 112, 9.1),
    "SemiFL": (0.962, 14, 96, 8.4),
    "RSCFed": (0.921, 20, 60, 25.2),
    "FedSwitch": (0.957, 8, 112, 16.8),
    "FedMatch": (0.874, 25, 112, 12.6),
    "FedCon": (0.861, 22, 112, 8.4),
    "FedConsist": (0.902, 18, 60, 8.4),
    "CBAFed": (0.931, 12, 180, 16.8),
    "Fed-FixMatch": (0.944, 12, 112, 8.4),
    "FedAvg": (0.938, 15, 96, 8.4),
    "FedProx": (0.936, 15, 96, 8.4),
}
BOUNDS = {"Server only": 0.915, "Supervised": 0.985, "Central FixMatch": 0.972}
ROUNDS = 60


def line(accuracy: float | None, steps: float, up: float, down: float = 0.0) -> dict[str, float]:
    """One round's line: its costs, and an accuracy where it was evaluated."""
    costs = {"local_steps": steps, "comm/bytes_up": up, "comm/bytes_down": down}
    return costs if accuracy is None else {**costs, "test/accuracy": accuracy}


def run_of(cell: Cell, seed: int, lines: Sequence[Mapping[str, float]], **more: str) -> RunRecord:
    """A finished run of these rounds; its last values are those of the last line that has them."""
    rounds = [{"round": t, **line} for t, line in enumerate(lines, start=1)]
    last: dict[str, float] = {}
    for measured in lines:
        last |= measured
    return make_record(cell, seed, last, rounds=rounds, **more)


def arena_cell(method: str, value: object, key: int, varies: str = "hyperparameters", **more: str) -> Cell:
    """A cell of the arena; its experiment has `key` rounds so that no two cells share a key."""
    return make_cell(f"{method}/{value}", {"method": method, varies: value}, key, **more)  # type: ignore[dict-item]


def arena(seeds: int = 3, ended: int | None = None, varies: Mapping[str, Sequence[object]] | None = None) -> Item:
    """All METHODS and BOUNDS in two columns, as papers print them and tuned; one tuned method waits for its trials."""
    (key, values), *_ = (varies or {"hyperparameters": ("own", "tuned")}).items()
    cells: list[Cell] = []
    for column, value in enumerate(values):
        for number, method in enumerate(METHODS):
            if value == "tuned" and method == "FedMatch":
                continue
            notes = [f"best of 6 on held-out labels: lr 0.0{number}, tau 0.95"] if value == "tuned" else []
            notes += [ONE_MORE_CLIENT] if method in ("RSCFed", "CBAFed", "FedConsist") else []
            cells.append(arena_cell(method, value, 400 + 40 * column + number, key, note="; ".join(notes)))
        for number, bound in enumerate(BOUNDS if value != "tuned" else ()):
            cells.append(arena_cell(bound, value, 800 + number, key, role="bound"))
    return Item(
        name="arena/mnist",
        title="Every method under one environment: MNIST, 100 labels at the server",
        profile="laptop",
        cells=tuple(cells),
        choices=(_choice(),) if key == "hyperparameters" else (),
        seeds=seeds,
        rows=("method",),
        columns=("hyperparameters",),
        notes=("10 clients, 60 rounds; the budget of tuning is 6 settings a method, chosen on 1,000 held-out labels.",),
    )


def _choice() -> Choice:
    trials = {name: make_cell(name, {}, 900 + i).experiment for i, name in enumerate(("lr 0.01", "lr 0.02"))}
    return Choice(
        label="FedMatch/tuned", setting={"method": "FedMatch", "hyperparameters": "tuned"}, trials=trials, finals=trials
    )


def arena_records(item: Item) -> Records:
    """Runs of every seed; CBAFed's last one in the first column diverged, its FedProx was not run."""
    records: dict[str, dict[int, RunRecord]] = {}
    for number, cell in enumerate(item.cells):
        method = str(cell.setting["method"])
        first = cell.setting == item.cells[number % len(METHODS)].setting
        if method == "FedProx" and first:
            continue
        records[cell.cell_key] = {seed: _learning(cell, seed, method, number) for seed in range(item.seeds)}
        if method == "CBAFed" and first:
            broken = records[cell.cell_key][item.seeds - 1]
            records[cell.cell_key][item.seeds - 1] = replace(
                broken, result={"status": "diverged", "last": {}, "selection": "last"}, rounds=broken.rounds[:31]
            )
    return records


def _learning(cell: Cell, seed: int, method: str, number: int) -> RunRecord:
    rng = np.random.default_rng([number, seed])
    end, slow, steps, sent = METHODS.get(method, (BOUNDS.get(method, 0.9), 6, 60, 0.0))
    end += 0.004 * (seed % 3) + float(rng.normal(0, 0.004))
    lines = []
    for t in range(1, ROUNDS + 1):
        found = end * (1 - 0.75 * math.exp(-t / slow)) + float(rng.normal(0, 0.003))
        value = end if t == ROUNDS else found if t % 5 == 0 else None
        lines.append(line(value, steps, 0.5e6 * sent, 0.5e6 * sent))
    return run_of(cell, seed, lines)


def small(seeds: int = 3) -> tuple[Item, Records]:
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
        a.cell_key: {i: two_rounds(a, i, 0.5, end, 10, 1e6) for i, end in enumerate((0.90, 0.91, 0.92)[:seeds])},
        b.cell_key: {i: two_rounds(b, i, 0.7, end, 20, 5e5) for i, end in enumerate((0.80, 0.82, 0.81)[:seeds])},
        d.cell_key: {0: two_rounds(d, 0, 0.1, 0.2, 1, 1, status="diverged")},
        s.cell_key: {i: two_rounds(s, i, 0.6, 0.65, 10, 0) for i in range(seeds)},
    }
    (choice,) = arena().choices
    waiting = replace(choice, label="A/tuned", setting={"method": "A", "hyperparameters": "tuned"})
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


def two_rounds(cell: Cell, seed: int, first: float, end: float, steps: float, up: float, **more: str) -> Any:
    return run_of(cell, seed, [line(first, steps, up), line(end, steps, up)], **more)
