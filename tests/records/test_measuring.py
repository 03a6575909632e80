"""What is measured moves no number and no cell key; a finished run is finished."""

import json
from dataclasses import replace

import pytest

from benchmark.cli.main import main
from benchmark.errors import Stopped
from benchmark.experiment import Evaluation, Experiment
from benchmark.papers.catalogue import items
from benchmark.records.record import measurements, run_folder
from benchmark.records.run import run
from benchmark.records.verify import disagreement
from tests.conftest import record_of, tiny_experiment
from tests.records.equality import untimed
from tests.records.test_run import Interrupt


def measuring(every: int, diversity: int = 0, **changes) -> Experiment:
    return tiny_experiment(evaluation=Evaluation(every=every, gradient_diversity_every=diversity, **changes))


def test_how_often_is_measured_is_no_part_of_the_key_but_under_best_on_test():
    assert measuring(1).cell_key == measuring(7).cell_key == measuring(2, 3).cell_key
    best = [measuring(every, selection="best_on_test").cell_key for every in (1, 2)]
    assert len({*best, measuring(1).cell_key}) == 3
    assert measuring(1, 2, selection="best_on_test").cell_key == best[0]
    held_out = replace(tiny_experiment(), data=replace(tiny_experiment().data, N_validation=20))
    assert replace(held_out, evaluation=Evaluation(validation=True)).cell_key != held_out.cell_key


@pytest.fixture(scope="module")
def often(tmp_path_factory):
    """Three rounds, evaluated in each; exact gradient diversity in the second."""
    results = tmp_path_factory.mktemp("often")
    run(measuring(1, 2), results)
    return results


def test_the_command_says_what_a_finished_run_was_measured_with(tmp_path, capsys):
    words = [f"--results={tmp_path}", "--wandb=off", "--federation.rounds=1", "--federation.K=4", "--federation.C=2"]
    words += ["--federation.T=1", "--json", "--evaluation.every"]
    results = []
    for every, says in (("10", ""), ("7", "is measured with every 10, not 7")):
        assert main(["run", *words, every]) == 0
        said = capsys.readouterr()
        assert says in said.err and ("measured" in said.err) == bool(says)
        results.append(said.out)
    assert results[0] == results[1]  # and is not trained again


def test_an_unfinished_run_that_is_to_measure_otherwise_begins_anew(often, tmp_path, capsys):
    """All rounds of a record measure the same."""
    with pytest.raises(Stopped):
        run(measuring(3), tmp_path, callbacks=[Interrupt(2)])
    run(measuring(1, 2), tmp_path)
    assert "the run starts from round 1" in capsys.readouterr().err
    folder = run_folder(tmp_path, measuring(1))
    assert untimed(folder) == untimed(run_folder(often, measuring(1)))
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [attempt["from_round"] for attempt in attempts] == [0, 0]


def test_another_processor_need_agree_to_six_digits_only(often):
    record = record_of(run_folder(often, measuring(1)))
    rounds = [{**line, "client/loss": line["client/loss"] * (1 + 2e-7)} for line in record.rounds]
    other = replace(record, rounds=rounds)
    assert disagreement(record, other, exact=False) is None
    why = disagreement(record, other, exact=True)
    assert why is not None and why.startswith("round 1: client/loss is ")
    fewer = replace(record, rounds=rounds[:2])
    assert disagreement(record, fewer, exact=False) == "done after 2 rounds, it was done after 3"


@pytest.mark.parametrize("profile", ["demo", "paper"])
def test_items_that_share_a_cell_measure_it_alike(profile):
    """Whoever trains it first measures what all of them show."""
    seen: dict[str, dict[str, int]] = {}
    for item in items(["all"], profile):
        for cell in item.cells:
            asked = measurements(cell.experiment.evaluation)
            assert seen.setdefault(cell.cell_key, asked) == asked, (item.name, cell.label)
