"""Plans: each run once, seeds evenly, only what is missing. Costs: test_cost.py."""

from dataclasses import replace

from benchmark.methods.ssfl import Grouping
from benchmark.papers.item import Cell, Item
from benchmark.records.copies import write_reference
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.plan import Seeds, plan, restricted, wanted
from tests.conftest import record_of


def item_of(**experiments) -> Item:
    cells = tuple(Cell(label=name, setting={"name": name}, experiment=e) for name, e in experiments.items())
    return Item(name="test/item", title="t", profile="demo", cells=cells, seeds=2)


def test_shared_runs_count_once_and_seeds_fill_evenly(tiny):
    other = replace(tiny, method=replace(tiny.method, averaging=Grouping(S=2)))
    runs = wanted([item_of(a=tiny, b=other), item_of(c=tiny)])
    assert [(run.seed, run.cell_key) for run in runs] == [
        (0, tiny.cell_key),
        (0, other.cell_key),
        (1, tiny.cell_key),
        (1, other.cell_key),
    ]


def test_only_what_is_missing_is_planned(tiny, tmp_path):
    item = item_of(a=tiny)
    run(tiny, tmp_path)
    planned = plan([item], tmp_path)
    assert [missing.seed for missing in planned.missing] == [1] and planned.cells == 1
    run(other := tiny.with_seed(1), tmp_path / "elsewhere")
    write_reference(tmp_path, record_of(run_folder(tmp_path / "elsewhere", other)))
    assert plan([item], tmp_path).missing == ()
    assert [missing.seed for missing in plan([item], tmp_path, with_reference=False).missing] == [1]


def test_committed_runs_are_enough_wherever_results_are_written(tiny, tmp_path, monkeypatch):
    """One committed pilot of two, and one confirming seed: nothing is missing, and both are counted. A run that is
    merely here stands for one of the two: a stopped command goes on."""
    item, checkout, results = item_of(a=tiny), tmp_path / "checkout", tmp_path / "results"
    monkeypatch.setattr("benchmark.records.copies.COMMITTED", checkout)
    here, *committed = (tiny.with_seed(seed) for seed in (101, 0, 100))
    run(here, results)
    assert [(one.seed, one in plan([item], results).missing) for one in plan([item], results).runs] == [
        (0, True),
        (101, False),
    ]
    for one in committed:
        run(one, tmp_path)
        write_reference(checkout, record_of(run_folder(tmp_path, one)))
    planned = plan([item], results)
    assert [one.seed for one in planned.runs] == [0, 100, 101] and planned.missing == ()
    assert len(plan([item], results, with_reference=False).missing) == 1
    assert [one.seed for one in plan([item], results, seeds=Seeds(pilots=2)).missing] == [1]


def test_a_table_of_one_seed_shows_one(tiny, tmp_path):
    item = item_of(a=tiny)
    for seed in (0, 1):
        run(tiny.with_seed(seed), tmp_path)
    planned = plan([item], tmp_path, seeds=Seeds(pilots=1))
    assert list(restricted(planned.records, planned.runs)[tiny.cell_key]) == [0]
