"""Make items and records by hand for the reports' tests, because tests of pages need no runs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmark.experiment import Experiment, Federation, to_json
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.item import CONFIRMING, Cell, Choice, Claim, Item, PublishedValue
from benchmark.records.record import RunRecord
from benchmark.verdicts.cell_results import Records

MANIFEST = {
    "code": {"commit": "4f1c2a9be07d5531c8a7e2b6f0d9134a5e6c7b80", "changes": None},
    "packages": {"torch": "2.15.0", "numpy": "2.4.6"},
    "python": "3.12.4",
    "hardware": {"processor": "Example CPU @ 2.10GHz", "cores": 2},
    "data": {"name": "digits", "hash": "77aa01", "partition": "c0ffee"},
}


def make_cell(label: str, setting: Mapping[str, str | int | float], key: int, **more: Any) -> Cell:
    """Make a cell with a separate experiment; it has `key` rounds, so that no two cells share a cell key."""
    return Cell(label=label, setting=setting, experiment=Experiment(federation=Federation(rounds=key)), **more)


def printed(value: float | None) -> dict[str, PublishedValue]:
    """Make a published accuracy in percent, or none."""
    return {} if value is None else {"test/accuracy": PublishedValue(value=value)}


def alone(cell: Cell) -> Cell:
    """Make the cell's supervised baseline with the same number of rounds."""
    method = ServerOnly(batch_size=cell.experiment.method.batch_size)
    return replace(cell, label="alone", role="bound", experiment=replace(cell.experiment, method=method))


def make_record(
    cell: Cell,
    seed: int,
    last: Mapping[str, float] | None = None,
    *,
    status: str = "done",
    rounds: list[dict[str, float]] | None = None,
) -> RunRecord:
    """Make a record of this cell. With status "unfinished" it has no result, like a killed run."""
    unfinished = status == "unfinished"
    result = {"status": status, "last": dict(last or {}), "selection": "last", "wall_seconds": 61.5}
    return RunRecord(
        cell_key=cell.cell_key,
        seed=seed,
        experiment=to_json(replace(cell.experiment, seed=seed)),
        manifest=MANIFEST,
        result={} if unfinished else result,
        rounds=[{"round": 1, **(last or {})}] if rounds is None else rounds,
    )


def accuracies(cells: Iterable[tuple[Cell, Sequence[float | None]]], first: int = 0) -> dict[str, dict[int, RunRecord]]:
    """Make finished runs with these last test accuracies, from that seed on; None: a run that diverged."""
    records: dict[str, dict[int, RunRecord]] = {}
    for cell, values in cells:
        runs: dict[int, RunRecord] = {}
        for seed, value in enumerate(values, first):
            if value is None:
                runs[seed] = make_record(cell, seed, {}, status="diverged")
            else:
                runs[seed] = make_record(cell, seed, {"test/accuracy": value})
        records[cell.cell_key] = runs
    return records


def begun_under(item: Item, records: Records, main: Sequence[str] = (), more: int = 0) -> Records:
    """Begin the confirmatory runs under all claims of the item and this number of the paper's other items.

    `main`: hashes.
    """
    hashes = [item.hash_of(claim) for claim in item.claims]
    others = [claim for claim in hashes if claim not in main]
    family = {"main": list(main), "others": [*others, *(f"of another item {n}" for n in range(more))]}
    claims = {"claims": {item.family: family}}
    begun: dict[str, dict[int, RunRecord]] = {}
    for key, runs in records.items():
        begun[key] = {
            seed: replace(run, manifest={**run.manifest, **claims}) if seed in CONFIRMING else run
            for seed, run in runs.items()
        }
    return begun


def pair(**claim: Any) -> Item:
    """Make an item of two cells "a" and "b" and one claim on a - b with a margin of one point."""
    filled: dict[str, Any] = {
        "name": "a beats b",
        "quote": "a is better",
        "source": "section 1",
        "contrasts": ({"a": 1.0, "b": -1.0},),
        "form": "improves",
        "least": 0.01,
        **claim,
    }
    return Item(
        name="toy/tab1",
        title="Toy",
        profile="demo",
        cells=(make_cell("a", {"method": "A", "C": 2}, 11), make_cell("b", {"method": "B", "C": 2}, 12)),
        claims=(Claim(**filled),),
        seeds=3,
    )


def gained(item: Item, gain: float, seeds: int = 1, first: int = 100, **family: Any) -> Records:
    """Make the records of a pair: b has .5, and a has this much more, and .001 more with each further seed."""
    a, b = item.cells
    ends = [(a, [0.5 + gain + s / 1e3 for s in range(seeds)]), (b, [0.5] * seeds)]
    return begun_under(item, accuracies(ends, first), **family)


COHORTS = {"small": (10, 83.07, 84.43), "middle": (30, 79.05, 83.12), "full": (47, 65.48, 82.95)}
ENDS = {  # last accuracy of the fake runs: (small, middle, full)
    "FedAvg": (0.971, 0.968, 0.905),
    "Grouping": (0.968, 0.972, 0.976),
    "Control": (0.970, 0.974, 0.977),
}


def table2(profile: str = "laptop") -> tuple[Item, Records]:
    """Make an item in the form of SSFL's Table 2 with made-up records: most cells with three seeds, one with two of
    three, one not run, one diverged run, a rung of a cumulative ablation, three claims.
    """
    cells: list[Cell] = []
    records: dict[str, dict[int, RunRecord]] = {}
    for place, (size, (C, *numbers)) in enumerate(COHORTS.items()):
        for method, number in zip(ENDS, (*numbers, None), strict=True):
            setting: dict[str, Any] = {"method": method, "cohort": size, "C": C}
            role = "published" if number else "control"
            cell = make_cell(f"{method}/{size}", setting, 100 + len(cells), published=printed(number), role=role)
            seeds = {"Control/small": range(2), "Control/middle": range(0)}.get(cell.label, range(3))
            records[cell.cell_key] = {seed: learning(cell, seed, ENDS[method][place]) for seed in seeds}
            cells.append(cell)
    broken = records[cells[6].cell_key]  # FedAvg/full: its third seed diverged in round 8
    broken[2] = replace(
        broken[2], result={"status": "diverged", "last": {}, "selection": "last"}, rounds=broken[2].rounds[:8]
    )
    rung = make_cell("Server only", {"rung": "Server only"}, 200, role="ladder")
    records[rung.cell_key] = {seed: learning(rung, seed, 0.915) for seed in range(3)}
    claims = {
        "grouping beats FedAvg with the whole cohort": ("Grouping/full", "FedAvg/full", "improves"),
        "grouping hardly falls with C": ("Grouping/small", "Grouping/full", "comparable"),
        "the server's weight explains it": ("Control/full", "Grouping/full", "comparable"),
    }
    item = Item(
        name="ssfl/tab2",
        title="Accuracy versus the number of communicating clients C on EMNIST",
        profile=profile,
        cells=(*cells, rung),
        claims=tuple(
            Claim(name=name, quote=name, source="toy", contrasts=({a: 1.0, b: -1.0},), form=form, least=0.01)  # type: ignore[arg-type]
            for name, (a, b, form) in claims.items()
        ),
        seeds=3,
        notes=("MNIST with 100 labels stands in for EMNIST; 10 clients, 120 rounds.",),
    )
    return item, records


def learning(cell: Cell, seed: int, end: float) -> RunRecord:
    """Make twelve rounds with a rising accuracy, evaluated in every third; later seeds end a little higher."""
    rounds = []
    for t in range(1, 13):
        line = {"round": t, "comm/bytes_up": 8.3e6, "comm/bytes_down": 8.3e6, "pseudo/kept": 0.8 + t / 100}
        line |= {"pseudo/accuracy": 0.5 + t / 30, "diversity/delta/l2/squared/clients": 1 / t + seed / 100}
        if t % 3 == 0:
            line |= {"test/accuracy": (end + seed / 1000) * t / 12, "test/loss": 2.2 - t / 8}
        rounds.append(line)
    return make_record(cell, seed, {k: v for k, v in rounds[-1].items() if k != "round"}, rounds=rounds)


def lean(profile: str = "laptop", **changes: Any) -> tuple[Item, Records]:
    """Make an item of two methods at two cohort sizes, without rounds to draw.

    A/4 has one seed of three, B/4 none; B/2 has a diverged third seed.
    """
    cells = [
        make_cell(f"{m}/{C}", {"method": m, "C": C}, 300 + 10 * C + ord(m), published=printed({"A": 83.07}.get(m)))
        for C in (2, 4)
        for m in "AB"
    ]
    start = accuracies([(cells[0], [0.6, 0.7, 0.8]), (cells[1], [0.85, 0.9]), (cells[2], [0.5])])
    records: dict[str, dict[int, RunRecord]] = {}
    for key, runs in start.items():
        records[key] = {seed: replace(run, rounds=()) for seed, run in runs.items()}
    records[cells[1].cell_key][2] = make_record(cells[1], 2, {}, status="diverged", rounds=[])
    claim = replace(pair().claims[0], contrasts=({"B/2": 1.0, "A/2": -1.0},))
    item = Item(
        name="toy/tab1", title="Toy table", profile=profile, cells=tuple(cells), claims=(claim,), seeds=3, notes=("N.",)
    )
    return replace(item, **changes), records


ONE_MORE_CLIENT = "the server's labels are one more client's"


def run_of(cell: Cell, seed: int, ends: Sequence[float], steps: float, up: float, **more: str) -> RunRecord:
    """Make a finished run of rounds with these accuracies, and this number of local steps and bytes up in each."""
    costs = {"local_steps": steps, "comm/bytes_up": up, "comm/bytes_down": 0.0}
    rounds = [{"round": t, **costs, "test/accuracy": end} for t, end in enumerate(ends, start=1)]
    record = make_record(cell, seed, {**costs, "test/accuracy": ends[-1]}, rounds=rounds, **more)
    cost = {"local_steps": steps * len(ends), "bytes_up": up * len(ends), "bytes_down": 0.0}
    return replace(record, result={**record.result, "cost": cost})


def arena_cell(method: str, value: object, key: int, varies: str = "hyperparameters", **more: str) -> Cell:
    """Make a cell of the method comparison; its experiment has `key` rounds, so that no two cells share a key."""
    return make_cell(f"{method}/{value}", {"method": method, varies: value}, key, **more)  # type: ignore[dict-item]


def small() -> tuple[Item, Records]:
    """Make a method comparison with two rounds per run.

    A: 10 steps and 1 MB per round, .5 then .90 .91 .92; B: 20 steps and .5 MB, .7 then .80 .82 .81; C was not run, D
    diverged, S is a bound that tuning does not change, E/tuned waits for its trials.
    """
    cells = [
        arena_cell("A", "own", 700),
        arena_cell("B", "own", 701, note=ONE_MORE_CLIENT),
        arena_cell("C", "own", 702),
        arena_cell("D", "own", 703),
        arena_cell("S", "own", 704, role="bound", note="labels alone"),
    ]
    a, b, _, d, s = cells
    of_a = {seed: run_of(a, seed, [0.5, end], 10, 1e6) for seed, end in enumerate((0.90, 0.91, 0.92))}
    of_b = {seed: run_of(b, seed, [0.7, end], 20, 5e5) for seed, end in enumerate((0.80, 0.82, 0.81))}
    of_d = {0: run_of(d, 0, [0.1, 0.2], 1, 1, status="diverged")}
    of_s = {seed: run_of(s, seed, [0.6, 0.65], 10, 0) for seed in range(3)}
    records = {a.cell_key: of_a, b.cell_key: of_b, d.cell_key: of_d, s.cell_key: of_s}
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
