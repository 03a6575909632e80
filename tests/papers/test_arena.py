"""The arena: one environment for all methods, an equal budget, and no test image that anything is chosen on."""

from dataclasses import replace

import pytest

from benchmark.papers.arena import AT_CLIENTS, ENTRIES, TRIAL_SEED
from benchmark.papers.catalogue import items
from benchmark.papers.item import Choice

NAMES = ["arena/digits", "arena/mnist", "arena/cifar10", "arena/alpha"]
AT_SERVER = [entry for entry in ENTRIES if entry.setting != AT_CLIENTS]


@pytest.mark.parametrize("profile", ["demo", "laptop", "gpu", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_all_methods_share_one_environment(name, profile):
    """Only the method, its optimizer, who holds labels and (in arena/alpha) alpha differ."""
    (item,) = items([name], profile)
    seen = {
        (
            replace(cell.experiment.data, label_setting="server"),
            cell.experiment.partition if "alpha" not in cell.setting else None,
            cell.experiment.model,
            cell.experiment.federation,
            cell.experiment.evaluation,
            cell.experiment.seed,
        )
        for cell in item.cells
    }
    assert len(seen) == 1
    assert len({cell.cell_key for cell in item.cells}) == len(item.cells)
    assert {cell.setting["method"] for cell in item.cells} == {entry.name for entry in AT_SERVER}
    assert item.methods_are_rows and all(cell.experiment.profile == item.profile for cell in item.cells)


@pytest.mark.parametrize("name", ["arena/digits", "arena/mnist"])
def test_the_budget_is_equal(name):
    """Six trials a ranked method, on held-out labels, on one seed that the table does not use, all equally long."""
    (item,) = items([name], "laptop")
    assert {choice.setting["method"] for choice in item.choices} == {e.name for e in AT_SERVER if not e.bound}
    for choice in item.choices:
        assert len(choice.trials) == 6
        assert all(t.evaluation.validation and t.seed == TRIAL_SEED for t in choice.trials.values())
        assert {t.federation.rounds for t in choice.trials.values()} == {30 if name == "arena/digits" else 40}
        assert not any(final.evaluation.validation for final in choice.finals.values())
        rates = sorted({t.optimizer.lr for t in choice.trials.values()})
        assert rates == [0.01, 0.02, 0.05] and len({t.cell_key for t in choice.trials.values()}) == 6
    assert TRIAL_SEED not in range(item.seeds)


@pytest.fixture
def one_choice() -> Choice:
    return items(["arena/digits"], "demo")[0].choices[0]


def test_the_best_trial_becomes_the_cell(one_choice):
    names = list(one_choice.trials)
    scores = dict(zip(one_choice.trials.values(), [0.5, 0.9, 0.9, 0.1, -1.0, 0.3], strict=True))
    cell = one_choice.cell(scores.get)
    assert cell is not None and cell.experiment == one_choice.finals[names[1]]  # the first of equals
    assert names[1] in cell.note and "best of 6" in cell.note
    assert cell.label == one_choice.label and cell.setting["hyperparameters"] == "tuned"


def test_a_choice_waits_for_all_its_trials(one_choice):
    done = list(one_choice.trials.values())[:5]
    assert one_choice.cell(lambda trial: 0.5 if trial in done else None) is None


def test_a_resolved_item_has_the_chosen_cells_and_the_waiting_ones():
    (item,) = items(["arena/digits"], "demo")
    first = set(item.choices[0].trials.values())
    resolved = item.resolved(lambda trial: 0.5 if trial in first else None)
    assert len(resolved.cells) == len(item.cells) + 1 and len(resolved.choices) == len(item.choices) - 1
