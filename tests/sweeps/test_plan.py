"""Plans: each run once, seeds evenly, only what is missing; costs counted by hand."""

import json
from dataclasses import replace

import pytest

from benchmark.methods.averaging import Grouping
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.objectives import Supervised
from benchmark.methods.server_only import ServerOnly
from benchmark.papers.catalogue import items
from benchmark.papers.item import Cell, Item
from benchmark.tracking.reading import write_reference
from benchmark.tracking.recorder import run_folder
from benchmark.tracking.run import run
from sweeps.cost import Cost, Speed, cost_of, measure
from sweeps.plan import plan, restricted, wanted
from tests.conftest import record_of


def item_of(**experiments) -> Item:
    cells = tuple(Cell(label=name, setting={"name": name}, experiment=e) for name, e in experiments.items())
    return Item(name="test/item", title="t", profile="demo", cells=cells, seeds=2)


def test_shared_runs_count_once_and_seeds_fill_evenly(tiny):
    other = replace(tiny, method=replace(tiny.method, averaging=Grouping(S=2)))
    runs = wanted([item_of(a=tiny, b=other), item_of(c=tiny)], None)
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
    write_reference(tmp_path, replace(record_of(run_folder(tmp_path, tiny)), seed=1))
    assert plan([item], tmp_path).missing == ()
    assert [missing.seed for missing in plan([item], tmp_path, with_reference=False).missing] == [1]


def test_a_table_of_one_seed_shows_one(tiny, tmp_path):
    item = item_of(a=tiny)
    for seed in (0, 1):
        run(tiny.with_seed(seed), tmp_path)
    planned = plan([item], tmp_path, seeds=1)
    assert list(restricted(planned.records, planned.runs)[tiny.cell_key]) == [0]


SPEED = Speed(forward=1e-3, forward_backward=2e-3, augmented=1e-4, forward_flops=1000, weight_bytes=400)


def test_the_cost_of_crl_by_hand(tiny):
    """K = C = 4, T = 2, 3 rounds, batches of 8: the server 3 x 2 steps, clients 3 x 2 x 4 = 24 steps.

    Trained: 6 x 8 + 24 x 8 = 240 images, 3 forward costs each; pseudo-labelled: 192 images, 1 each: 912 x 1000 FLOPs.
    Bytes each way: 3 rounds x 4 clients x 400.
    """
    cost = cost_of(tiny, SPEED)
    assert (cost.local_steps, cost.flops, cost.bytes_up, cost.bytes_down) == (30, 912_000, 4800, 4800)
    assert cost.core_seconds == pytest.approx(192 * 1e-3 + 240 * 2e-3 + (240 + 192) * 1e-4)


def test_counted_costs_are_those_of_the_record(tiny, tmp_path):
    """Local steps and bytes, as `plan` counts them and as the run's ledger did; every kind of method."""
    everywhere = replace(tiny.data, label_setting="everywhere")
    for experiment in (
        tiny,
        replace(tiny, method=replace(tiny.method, warm_start_rounds=1, averaging=Grouping(S=2))),
        replace(tiny, method=replace(tiny.method, averaging=Grouping(S=2), server_models="released_code")),
        replace(tiny, data=everywhere, method=replace(tiny.method, objective=Supervised())),
        replace(tiny, method=ServerOnly(batch_size=8)),
        replace(tiny, method=FixMatch(batch_size=8, unlabelled_ratio=2)),
    ):
        result = run(experiment, tmp_path)
        parameters = 4 * 38_378  # the tiny network's, in bytes
        counted = cost_of(experiment, replace(SPEED, weight_bytes=parameters))
        assert result["cost"]["local_steps"] == counted.local_steps
        assert (result["cost"]["bytes_up"], result["cost"]["bytes_down"]) == (counted.bytes_up, counted.bytes_down)


def test_measuring_needs_no_data(tiny):
    speed = measure(replace(tiny, data=replace(tiny.data, name="emnist_balanced")), repeats=1)
    assert 0 < speed.forward < speed.forward_backward and speed.augmented > 0


def test_costs_add_up():
    total = Cost(local_steps=1, flops=2.0, core_seconds=3600.0) + Cost(local_steps=2, bytes_up=5)
    plain = total.to_json()
    assert (plain["local_steps"], plain["flops"], plain["bytes_up"]) == (3, 2.0, 5)
    assert plain["hours"] == pytest.approx(1 / plain["cores"])


def test_the_paper_s_table_2_is_counted():
    """6 runs of 100 x 1024 steps for C clients and one server: 102400 x (2 x (10 + 30 + 47) + 6) = 18,432,000."""
    (item,) = items(["ssfl/tab2"], "paper")
    six = [cell.experiment for cell in item.cells if cell.role == "published"]
    assert sum(cost_of(run, SPEED).local_steps for run in six) == 102_400 * (2 * 87 + 6) == 18_432_000
    json.dumps(cost_of(six[0], SPEED).to_json())
