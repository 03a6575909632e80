"""A method of one file outside the package: through `fssl run`, in worker processes, and through the arena."""

import json
from dataclasses import replace

from benchmark.cli.main import main
from benchmark.papers.catalogue import items
from benchmark.papers.item import Choice, Item
from benchmark.records.record import run_folder
from benchmark.records.run import run
from reports.exports import item_result
from sweeps.launcher import launch
from sweeps.plan import plan
from sweeps.processes import LocalWorkers
from tests.conftest import record_of

NAME = "tests.methods.outside:ServerLast"


def test_it_runs_by_name(tmp_path, capsys):
    words = ["--federation.K=3", "--federation.C=2", "--federation.T=2", "--federation.rounds=2", "--data.N_s=20"]
    assert main(["run", "--json", "--results", str(tmp_path), "--method", NAME, *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["status"] == "done" and result["cost"]["bytes_up"] > 0


def shortened(item: Item) -> Item:
    """The arena with this method alone, two rounds long; its trials one round."""

    def short(experiment, rounds):
        federation = replace(experiment.federation, rounds=rounds)
        every = rounds if experiment.evaluation.validation else 1
        return replace(experiment, federation=federation, evaluation=replace(experiment.evaluation, every=every))

    def shorter(choice: Choice) -> Choice:
        return replace(
            choice,
            trials={name: short(trial, 1) for name, trial in choice.trials.items()},
            finals={name: short(final, 2) for name, final in choice.finals.items()},
        )

    cells = tuple(
        replace(c, experiment=short(c.experiment, 2)) for c in item.cells if c.setting["method"] == "ServerLast"
    )
    choices = tuple(shorter(choice) for choice in item.choices if choice.setting["method"] == "ServerLast")
    return replace(item, cells=cells, choices=choices, seeds=2)


def test_it_is_compared_in_the_arena_in_worker_processes(tmp_path):
    """Six trials and two seeds of its own hyperparameters first; then two seeds of the setting chosen."""
    item = shortened(items(["arena/digits"], "demo", [NAME])[0])
    first = plan([item], tmp_path)
    assert len(first.missing) == 6 + 2 and len(first.waiting) == 2
    launch(LocalWorkers(2, tmp_path), first.missing, tmp_path)
    scores = {
        name: record_of(run_folder(tmp_path, trial)).last("validation/accuracy")
        for name, trial in item.choices[0].trials.items()
    }
    second = plan([item], tmp_path)
    assert second.waiting == ()
    best = max(scores, key=lambda name: scores[name] or 0.0)
    assert {missing.cell_key for missing in second.missing} <= {item.choices[0].finals[best].cell_key}
    for experiment in second.missing:
        run(experiment, tmp_path)
    done = plan([item], tmp_path)
    assert not done.missing
    cells = {cell["label"]: cell for cell in item_result(done.items[0], done.records)["cells"]}
    assert {cell["n"] for cell in cells.values()} == {2} and "ServerLast/tuned" in cells


def test_other_items_take_no_more_methods(capsys):
    assert main(["reproduce", "ssfl/tab2", "--profile", "demo", "--also", NAME]) == 65
    assert "arena/digits" in capsys.readouterr().err
