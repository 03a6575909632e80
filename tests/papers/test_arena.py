"""The arena: one environment, an equal budget, a method outside the package; and cells that run on request alone."""

from dataclasses import replace

import pytest

from benchmark.cli.main import main
from benchmark.cli.sweep import file_of_item
from benchmark.papers.arena import AT_CLIENTS, ENTRIES, OPEN, TRIAL_SEED
from benchmark.papers.item import Item
from benchmark.papers.items import items
from benchmark.records.record import run_folder
from reports.exports import item_result
from sweeps.launcher import launch
from sweeps.plan import Seeds, plan, restricted
from sweeps.workers import LocalWorkers
from tests.conftest import record_of
from tests.papers.conftest import item_of
from tests.reports.fakes import make_record
from tests.test_readme import method_of_readme  # noqa: F401 - a fixture

AT_SERVER = [entry for entry in ENTRIES if entry.setting not in (AT_CLIENTS, OPEN)]


@pytest.mark.parametrize(("name", "rounds"), [("arena/digits", 30), ("arena/mnist", 40)])
def test_the_budget_is_equal(name, rounds):
    """Six trials a ranked method, on held-out labels, on one seed that the table does not use, all equally long."""
    item = item_of(name, "laptop")
    ranked = {entry.name for entry in AT_SERVER if not entry.bound}
    assert {choice.setting["method"] for choice in item.choices} == ranked
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
    assert cell.trials == 6 and not any(untuned.trials for untuned in item.cells)
    done = list(scores)[:5]
    assert choice.cell(lambda trial: 0.5 if trial in done else None) is None
    resolved = item.resolved(scores.get)
    assert resolved.cells == (*item.cells, cell) and resolved.choices == item.choices[1:]


def shortened(item: Item) -> Item:
    """Shorten the method comparison to one method, two rounds long, and two trials of one round."""

    def short(experiment, rounds):
        return replace(experiment, federation=replace(experiment.federation, rounds=rounds, T=1))

    (choice,) = (choice for choice in item.choices if choice.setting["method"] == "ServerLast")
    trials = {name: short(trial, 1) for name, trial in list(choice.trials.items())[:2]}
    finals = {name: short(final, 2) for name, final in list(choice.finals.items())[:2]}
    choice = replace(choice, trials=trials, finals=finals)
    cells = [replace(c, experiment=short(c.experiment, 2)) for c in item.cells if c.setting["method"] == "ServerLast"]
    return replace(item, cells=tuple(cells), choices=(choice,), seeds=1)


def test_a_method_outside_the_package_is_compared_in_worker_processes(method_of_readme, tmp_path, monkeypatch):  # noqa: F811
    """Trials of its own hyperparameters and a seed first; then a seed of the setting chosen."""
    monkeypatch.syspath_prepend(tmp_path)  # where the method's file is
    item = shortened(items(["arena/digits"], "demo", [method_of_readme])[0])
    first = plan([item], tmp_path)
    assert len(first.missing) == 2 + 1 and len(first.waiting) == 1
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


def test_other_items_take_no_more_methods(method_of_readme, capsys):  # noqa: F811
    assert main(["reproduce", "ssfl/tab2", "--profile", "demo", "--also", method_of_readme]) == 65
    assert "arena/digits" in capsys.readouterr().err


def test_quoted_cells_run_on_request_alone_and_show_where_somebody_ran_them(tmp_path):
    """Table 3: 4 cells of grouping and 3 bounds are trained, 4 of FedMatch shown; a record of one of those is there."""
    (plain,), (asked,) = (items(["ssfl/tab3"], "demo", also_quoted=also) for also in (False, True))
    two = Seeds(pilots=2)
    runs, with_quoted = (plan([item], tmp_path, seeds=two).runs for item in (plain, asked))
    assert (len(runs), len({run.cell_key for run in runs})) == (14, 7)
    assert len({run.cell_key for run in with_quoted}) == 11
    assert "FedMatch" not in file_of_item(plain)
    quoted = next(cell for cell in plain.cells if cell.role == "quoted")

    def recorded(*_: object, **__: object) -> dict:
        return {quoted.cell_key: {0: make_record(quoted, 0, {"test/accuracy": 0.5})}}

    planned = plan([plain], tmp_path, seeds=Seeds(pilots=1), read=recorded)
    one = replace(plain, seeds=1)
    shown = {c["cell_key"]: c for c in item_result(one, {})["cells"]}
    assert len(shown) == 11 and sum(cell["published"] is not None for cell in shown.values()) == 8
    cells = item_result(one, restricted(planned.records, planned.shown))["cells"]
    assert [cell["mean"] for cell in cells if cell["cell_key"] == quoted.cell_key] == pytest.approx([0.5])
