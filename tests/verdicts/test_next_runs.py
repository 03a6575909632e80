"""Which runs tell most, on records made by hand: steps and their order are derived in each docstring."""

from collections.abc import Mapping
from dataclasses import replace

from benchmark.experiment import Experiment
from benchmark.methods.ssfl import FedAvg, Grouping
from benchmark.papers.item import Cell, Claim, Item
from benchmark.records.record import RunRecord
from benchmark.verdicts.judge import judge
from benchmark.verdicts.next_runs import left_out, steps
from sweeps.plan import wanted
from tests.conftest import tiny_experiment

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


def records(accuracies: Mapping[str, list[float]]) -> dict[str, dict[int, RunRecord]]:
    """Done runs of seeds 0, 1, ... with these accuracies."""

    def record(experiment: Experiment, seed: int, accuracy: float) -> RunRecord:
        result = {"status": "done", "last": {"test/accuracy": accuracy}, "selection": "last"}
        key = experiment.cell_key
        return RunRecord(cell_key=key, seed=seed, experiment={}, manifest={}, result=result, rounds=())

    return {
        CELLS[name].cell_key: {seed: record(CELLS[name], seed, value) for seed, value in enumerate(values)}
        for name, values in accuracies.items()
    }


def planned(accuracies: Mapping[str, list[float]], cost: Mapping[str, float] | None = None) -> list[list[str]]:
    found = records(accuracies)
    missing = [run for run in wanted([ITEM], None) if run.seed not in found.get(run.cell_key, {})]
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


# b - a is 0.02, 0.03, 0.07: undecided. c - a is 0.1, 0.1001, 0.0999: holds.
SEEN = {"a": [0.5, 0.5, 0.5], "b": [0.52, 0.53, 0.57], "c": [0.6, 0.6001, 0.5999], "d": [0.5]}


def test_the_seeds_that_would_decide_come_first_and_no_more():
    """The verdict says how many seeds b over a needs; so many less three of a and b come first; c over a is decided."""
    first, second = judge(ITEM, records(SEEN))
    assert (first.verdict, second.verdict) == ("undecided", "holds") and first.seeds_needed is not None
    more = first.seeds_needed - 3
    assert 0 < more < 7  # of the seven seeds that are missing
    found = planned(SEEN)
    assert found[:more] == [[f"a{seed}", f"b{seed}"] for seed in range(3, 3 + more)]
    assert found[more] == ["d1"]  # by seed: the least one that is missing


def test_of_two_claims_the_cheaper_one_to_decide_comes_first():
    """c - a scatters as b - a does, so that both need as many seeds; a run of c costs less, or more, than one of b."""
    both = {**SEEN, "c": SEEN["b"]}
    assert planned(both, {"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0})[0] == ["a3", "c3"]
    assert planned(both, {"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0})[0] == ["a3", "b3"]


def test_a_claim_beyond_reach_waits_for_everything_else():
    """b - a is -0.2, 0.2, 0.03: more than ten seeds would be needed. The other cells' seeds go first."""
    seen = {**SEEN, "b": [0.3, 0.7, 0.53]}
    (first, _) = judge(ITEM, records(seen))
    assert first.verdict == "undecided" and (first.seeds_needed or 1000) > 10
    found = planned(seen)
    assert found[0] == ["d1"] and found[-1] == ["a9", "b9"]
    assert found.index(["c3", "d3"]) < found.index(["a3", "b3"])


def test_what_is_left_out_by_its_name():
    runs = [CELLS["b"].with_seed(2), CELLS["b"].with_seed(1), replace(BASE, seed=3, optimizer=CELLS["a"].optimizer)]
    assert left_out([ITEM], runs) == {"test/item b": [1, 2], "test/item a": [3]}
