"""The arena: one environment for all methods, an equal budget, a method of one file outside the package."""

from dataclasses import replace

import pytest

from benchmark.cli.main import main
from benchmark.papers.arena import AT_CLIENTS, ENTRIES, TRIAL_SEED
from benchmark.papers.catalogue import items
from benchmark.papers.item import Item
from benchmark.records.record import run_folder
from reports.exports import item_result
from sweeps.launcher import launch
from sweeps.plan import plan
from sweeps.processes import LocalWorkers
from tests.conftest import record_of
from tests.papers.conftest import item_of

AT_SERVER = [entry for entry in ENTRIES if entry.setting != AT_CLIENTS]


@pytest.mark.parametrize("profile", ["demo", "laptop", "gpu"])
@pytest.mark.parametrize("name", ["arena/digits", "arena/mnist", "arena/cifar10", "arena/alpha"])
def test_all_methods_share_one_environment(name, profile):
    """Only the method, its optimizer, who holds labels and (in arena/alpha) alpha differ."""
    item = item_of(name, profile)
    shared = {
        (
            replace(cell.experiment.data, label_setting="server"),
            cell.experiment.partition if "alpha" not in cell.setting else None,
            *(getattr(cell.experiment, part) for part in ("model", "federation", "evaluation", "seed")),
        )
        for cell in item.cells
    }
    assert len(shared) == 1
    assert {cell.setting["method"] for cell in item.cells} == {entry.name for entry in AT_SERVER}


@pytest.mark.parametrize(("name", "rounds"), [("arena/digits", 30), ("arena/mnist", 40)])
def test_the_budget_is_equal(name, rounds):
    """Six trials a ranked method, on held-out labels, on one seed that the table does not use, all equally long."""
    item = item_of(name, "laptop")
    assert {choice.setting["method"] for choice in item.choices} == {e.name for e in AT_SERVER if not e.bound}
    for choice in item.choices:
        trials = choice.trials.values()
        assert len({trial.cell_key for trial in trials}) == 6
        assert all(t.evaluation.validation and t.seed == TRIAL_SEED for t in trials)
        assert {t.federation.rounds for t in trials} == {rounds}
        assert not any(final.evaluation.validation for final in choice.finals.values())
        assert {t.optimizer.lr for t in trials} == {0.01, 0.02, 0.05}
    assert TRIAL_SEED not in range(item.seeds)


def test_the_best_trial_becomes_the_cell_once_all_are_done():
    item = item_of("arena/digits", "demo")
    choice = item.choices[0]
    names = list(choice.trials)
    scores = dict(zip(choice.trials.values(), [0.5, 0.9, 0.9, 0.1, -1.0, 0.3], strict=True))
    cell = choice.cell(scores.get)
    assert cell is not None and cell.experiment == choice.finals[names[1]]  # the first of equals
    assert names[1] in cell.note and "best of 6" in cell.note and cell.label == choice.label
    done = list(scores)[:5]
    assert choice.cell(lambda trial: 0.5 if trial in done else None) is None
    resolved = item.resolved(scores.get)
    assert resolved.cells == (*item.cells, cell) and resolved.choices == item.choices[1:]


NAME = "tests.methods.outside:ServerLast"


def shortened(item: Item) -> Item:
    """The arena with this method alone, two rounds long; its trials one round."""

    def short(experiment, rounds):
        return replace(experiment, federation=replace(experiment.federation, rounds=rounds, T=1))

    (choice,) = (choice for choice in item.choices if choice.setting["method"] == "ServerLast")
    choice = replace(
        choice,
        trials={name: short(trial, 1) for name, trial in choice.trials.items()},
        finals={name: short(final, 2) for name, final in choice.finals.items()},
    )
    cells = [replace(c, experiment=short(c.experiment, 2)) for c in item.cells if c.setting["method"] == "ServerLast"]
    return replace(item, cells=tuple(cells), choices=(choice,), seeds=1)


def test_a_method_outside_the_package_is_compared_in_worker_processes(tmp_path):
    """Six trials of its own hyperparameters and a seed first; then a seed of the setting chosen."""
    item = shortened(items(["arena/digits"], "demo", [NAME])[0])
    first = plan([item], tmp_path)
    assert len(first.missing) == 6 + 1 and len(first.waiting) == 1
    launch(LocalWorkers(2, tmp_path), first.missing, tmp_path)
    (choice,) = item.choices
    scores = {
        name: record_of(run_folder(tmp_path, trial)).last("validation/accuracy") or 0.0
        for name, trial in choice.trials.items()
    }
    second = plan([item], tmp_path)
    best = choice.finals[max(scores, key=scores.__getitem__)]
    assert second.waiting == () and {missing.cell_key for missing in second.missing} <= {best.cell_key}
    launch(LocalWorkers(1, tmp_path), second.missing, tmp_path)
    done = plan([item], tmp_path)
    assert not done.missing
    cells = {cell["label"]: cell["n"] for cell in item_result(done.items[0], done.records)["cells"]}
    assert cells == {"ServerLast/untuned": 1, "ServerLast/tuned": 1}


def test_other_items_take_no_more_methods(capsys):
    assert main(["reproduce", "ssfl/tab2", "--profile", "demo", "--also", NAME]) == 65
    assert "arena/digits" in capsys.readouterr().err
