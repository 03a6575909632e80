"""Which runs tell most, on records made by hand: steps and their order are derived in each docstring."""

from collections.abc import Mapping
from dataclasses import replace

from benchmark.experiment import Experiment
from benchmark.methods.ssfl import FedAvg, Grouping
from benchmark.papers.item import Cell, Claim, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.judge import judge
from benchmark.verdicts.next_runs import left_out, steps
from benchmark.verdicts.results import Records
from sweeps.plan import wanted
from tests.conftest import tiny_experiment
from tests.reports.fakes import begun_under

BASE = tiny_experiment()
CELLS = {
    "a": BASE,
    "b": replace(BASE, method=replace(BASE.method, averaging=Grouping(S=2))),
    "c": replace(BASE, method=replace(BASE.method, averaging=FedAvg(server_weight=0.5))),
    "d": replace(BASE, method=replace(BASE.method, warm_start_rounds=1)),
}


def claim(name: str, contrast: Mapping[str, float]) -> Claim:
    return Claim(name=name, quote="", source="", contrast=contrast, form="improves", least=0.01)


ITEM = Item(
    name="test/item",
    title="t",
    profile="demo",
    cells=tuple(Cell(label=name, setting={"name": name}, experiment=e) for name, e in CELLS.items()),
    claims=(claim("b over a", {"b": 1.0, "a": -1.0}), claim("c over a", {"c": 1.0, "a": -1.0})),
    seeds=10,
)


def records(accuracies: Mapping[str, list[float]], first: int = 0) -> Records:
    """Done runs with these accuracies, from that seed on."""

    def record(experiment: Experiment, seed: int, accuracy: float) -> RunRecord:
        result = {"status": "done", "last": {"test/accuracy": accuracy}, "selection": "last"}
        key = experiment.cell_key
        return RunRecord(cell_key=key, seed=seed, experiment={}, manifest={}, result=result, rounds=())

    found = {
        CELLS[name].cell_key: {seed: record(CELLS[name], seed, value) for seed, value in enumerate(values, start=first)}
        for name, values in accuracies.items()
    }
    return begun_under(ITEM, found)


def planned(
    accuracies: Mapping[str, list[float]], cost: Mapping[str, float] | None = None, first: int = 0
) -> list[list[str]]:
    """The plan for the ten pilot seeds, or for the seeds of four looks from `first` on."""
    found = records(accuracies, first)
    pool = wanted([ITEM]) if first == 0 else [run.with_seed(first + n) for run in CELLS.values() for n in range(32)]
    missing = [run for run in pool if run.seed not in found.get(run.cell_key, {})]
    names = {experiment.cell_key: name for name, experiment in CELLS.items()}
    seconds = cost or dict.fromkeys(CELLS, 1.0)
    plan = steps([ITEM], found, missing, lambda run: seconds[names[run.cell_key]])
    assert sorted(names[r.cell_key] + str(r.seed) for step in plan for r in step) == sorted(
        names[run.cell_key] + str(run.seed) for run in missing
    )  # each missing run once
    return [[f"{names[run.cell_key]}{run.seed}" for run in step] for step in plan]


def test_every_cell_once_then_the_claims_seed_by_seed_then_the_rest():
    """Nothing is known: seed 0 of all four cells; then seeds 1 to 9 of a, b, c; d, of no claim, comes last."""
    found = planned({})
    assert found[0] == ["a0", "b0", "c0", "d0"]
    assert found[1:10] == [[f"a{seed}", f"b{seed}", f"c{seed}"] for seed in range(1, 10)]
    assert found[10:] == [[f"d{seed}"] for seed in range(1, 10)]


def test_a_cell_with_any_finished_run_has_had_its_turn():
    assert planned({"a": [0.5], "d": [0.5]})[0] == ["b0", "c0"]


# Nine confirming seeds. b - a is a loss of .01 in two of them, else gains: undecided. c - a is .1 and holds.
SEEN = {
    "a": [0.5] * 9,
    "b": [0.53, 0.49, 0.525, 0.49, 0.53, 0.52, 0.495, 0.53, 0.51],
    "c": [0.6 + 0.001 * seed for seed in range(9)],
    "d": [0.5],
}


def test_the_seeds_of_the_next_look_come_first_and_no_more():
    """b over a has had its look at 9: seeds 109 to 115 of a and b bring the one at 16. c over a is decided, and its
    seeds come with the rest."""
    first, second = judge(ITEM, records(SEEN, 100))
    assert (first.verdict, first.futile, second.verdict) == ("undecided", False, "holds")
    found = planned(SEEN, first=100)
    assert found[:7] == [[f"a{seed}", f"b{seed}"] for seed in range(109, 116)]
    assert found[7] == ["d101"]  # by seed: the least one that is missing


def test_of_two_claims_the_cheaper_one_comes_first():
    """c - a scatters as b - a does; a run of c costs less, or more, than one of b."""
    both = {**SEEN, "c": SEEN["b"]}
    assert planned(both, {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}, first=100)[0] == ["a109", "c109"]
    assert planned(both, {"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0}, first=100)[0] == ["a109", "b109"]


def test_a_claim_beyond_reach_waits_for_everything_else():
    """b - a is -.2 and .2 in turn: not even 32 seeds would be likely to tell. The other cells' seeds go first."""
    seen = {**SEEN, "b": [0.3, 0.7, 0.3, 0.7, 0.5, 0.7, 0.3, 0.7, 0.3]}
    (first, _) = judge(ITEM, records(seen, 100))
    assert first.verdict == "undecided" and first.futile
    found = planned(seen, first=100)
    assert found[0] == ["d101"] and found[-1] == ["a131", "b131"]


def test_pilot_seeds_bring_no_look_nearer():
    """Three pilot seeds of a, b, c: the cells of the claims go on seed by seed, and d comes last."""
    found = planned({name: values[:3] for name, values in SEEN.items()})
    assert found[0] == ["a3", "b3", "c3"] and found[-1] == ["d9"]


def test_what_is_left_out_by_its_name():
    runs = [CELLS["b"].with_seed(2), CELLS["b"].with_seed(1), replace(BASE, seed=3, optimizer=CELLS["a"].optimizer)]
    assert left_out([ITEM], runs) == {"test/item b": [1, 2], "test/item a": [3]}
