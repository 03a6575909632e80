"""What is measured moves no number and no cell key; who asks for more has the run trained again, and compared."""

import json
from dataclasses import replace

import pytest
from pytorch_lightning import Callback

from benchmark.errors import DataError, Stopped
from benchmark.experiment import Evaluation, Experiment
from benchmark.records.record import covers, disagreement, run_folder
from benchmark.records.run import AGAIN, run
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


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ((4, 0), (6, 0), (2, 0)),
        ((1, 0), (5, 0), (1, 0)),
        ((2, 0), (100, 0), (2, 0)),  # as long as the run: only the last round
        ((100, 0), (200, 4), (100, 4)),
        ((2, 4), (2, 6), (2, 2)),
    ],
)
def test_the_measurements_of_two(one, other, both):
    asked = [
        replace(measuring(*pair), federation=replace(tiny_experiment().federation, rounds=100)) for pair in (one, other)
    ]
    merged = asked[0].measuring_also(asked[1]).evaluation
    assert (merged.every, merged.gradient_diversity_every) == both


@pytest.fixture(scope="module")
def often(tmp_path_factory):
    """Three rounds, evaluated in each; exact gradient diversity in the second."""
    results = tmp_path_factory.mktemp("often")
    run(measuring(1, 2), results)
    return results


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ((1, 0), True),
        ((2, 0), True),
        ((3, 4), True),
        ((1, 2), True),
        ((1, 1), False),
        ((1, 3), False),
    ],
)
def test_a_record_serves_who_asks_for_no_more(often, asked, served):
    record = record_of(run_folder(often, measuring(1)))
    assert record.measured == {"every": 1, "gradient_diversity_every": 2}
    assert covers(record, measuring(*asked)) is served


@pytest.mark.parametrize("every", [2, 3, 50])
def test_a_record_evaluated_more_seldom_serves_the_last_round_alone(often, every):
    record = record_of(run_folder(often, measuring(1)))
    seldom = replace(record, result={**record.result, "measured": {"every": every, "gradient_diversity_every": 0}})
    assert not covers(seldom, measuring(1)) and covers(seldom, measuring(3))
    unfinished, older = replace(record, result={}), {k: v for k, v in record.result.items() if k != "measured"}
    assert not covers(unfinished, measuring(3)) and covers(replace(record, result=older), measuring(1, 2))
    junk = replace(record, result={**record.result, "measured": {"every": "1", "gradient_diversity_every": None}})
    assert not covers(junk, measuring(1))


def test_more_is_measured_in_place_and_no_number_moves(often, tmp_path, capsys):
    """First the last round alone, then each round and the gradients: what takes its place is the run that measured all
    from the start."""
    seldom = measuring(3)
    first = run(seldom, tmp_path)
    folder = run_folder(tmp_path, seldom)
    assert "test/accuracy" not in record_of(folder).rounds[0]
    second = run(measuring(1, 2), tmp_path)
    assert "more is to be measured than it has" in capsys.readouterr().err
    assert second["measured"] == {"every": 1, "gradient_diversity_every": 2}
    assert second["last"]["test/accuracy"] == first["last"]["test/accuracy"]
    assert untimed(folder) == untimed(run_folder(often, seldom))
    assert not record_of(folder).edited and not list((tmp_path / AGAIN).rglob("*.json"))
    before = (folder / "rounds.jsonl").stat().st_mtime_ns
    assert run(seldom, tmp_path) == second and (folder / "rounds.jsonl").stat().st_mtime_ns == before


def test_what_was_measured_before_is_measured_again_with_it(tmp_path):
    run(measuring(3, 2), tmp_path)
    assert run(measuring(1), tmp_path)["measured"] == {"every": 1, "gradient_diversity_every": 2}


def test_other_numbers_are_refused_and_both_records_kept(tmp_path):
    """The first record says that it was made with another loss: by an edit here, by a fault elsewhere."""
    seldom = measuring(3)
    run(seldom, tmp_path)
    folder = run_folder(tmp_path, seldom)
    path = folder / "rounds.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["client/loss"] += 1e-3
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = path.read_text()
    for _ in range(2):  # the second time without training
        with pytest.raises(DataError, match=r"not equal bit by bit \(round 2: client/loss is .*both are kept"):
            run(measuring(1), tmp_path)
    assert path.read_text() == text and record_of(run_folder(tmp_path / AGAIN, seldom)).status == "done"


def test_another_processor_need_agree_to_six_digits_only(often):
    record = record_of(run_folder(often, measuring(1)))
    rounds = [{**line, "client/loss": line["client/loss"] * (1 + 2e-7)} for line in record.rounds]
    other = replace(record, rounds=rounds)
    assert disagreement(record, other, exact=False) is None
    why = disagreement(record, other, exact=True)
    assert why is not None and why.startswith("round 1: client/loss is ")
    fewer = replace(record, rounds=rounds[:2])
    assert disagreement(record, fewer, exact=False) == "done after 2 rounds, it was done after 3"


def test_an_unfinished_run_that_measured_less_begins_anew(often, tmp_path, capsys):
    with pytest.raises(Stopped):
        run(measuring(3), tmp_path, callbacks=[Interrupt(2)])
    run(measuring(1, 2), tmp_path)
    assert "more is to be measured now: the run starts from round 1" in capsys.readouterr().err
    assert untimed(run_folder(tmp_path, measuring(1))) == untimed(run_folder(often, measuring(1)))


def test_checkpoints_that_measured_less_are_never_gone_on_from(often, tmp_path):
    """The second attempt, which is to measure more, dies before its first checkpoint: the third begins anew, too."""

    class Dies(Callback):
        def on_train_batch_start(self, *_: object) -> None:
            raise ZeroDivisionError

    with pytest.raises(Stopped):
        run(measuring(3), tmp_path, callbacks=[Interrupt(2)])
    with pytest.raises(ZeroDivisionError):
        run(measuring(1, 2), tmp_path, callbacks=[Dies()])
    run(measuring(1, 2), tmp_path)
    folder = run_folder(tmp_path, measuring(1))
    assert untimed(folder) == untimed(run_folder(often, measuring(1)))
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [attempt["from_round"] for attempt in attempts] == [0, 0, 0]


def test_an_unfinished_run_that_measured_more_goes_on_with_that(often, tmp_path):
    with pytest.raises(Stopped):
        run(measuring(1, 2), tmp_path, callbacks=[Interrupt(2)])
    assert run(measuring(3), tmp_path)["measured"] == {"every": 1, "gradient_diversity_every": 2}
    folder = run_folder(tmp_path, measuring(1))
    assert untimed(folder) == untimed(run_folder(often, measuring(1)))
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [attempt["from_round"] for attempt in attempts] == [0, 2]


def test_killed_between_training_again_and_replacing(tmp_path):
    """Both records are finished and apart; the next call compares and replaces."""
    seldom, often = measuring(3), measuring(1)
    run(seldom, tmp_path)
    run(often, tmp_path / AGAIN)
    before = (run_folder(tmp_path / AGAIN, often) / "rounds.jsonl").read_text()
    run(often, tmp_path)
    assert (run_folder(tmp_path, often) / "rounds.jsonl").read_text() == before


def test_killed_between_the_two_renames_and_after_them(tmp_path):
    """First the new record alone is there, beside; then the old one is left there, and must not come back."""
    seldom, often = measuring(3), measuring(1)
    run(often, tmp_path / AGAIN)
    folder, beside = (run_folder(results, often) for results in (tmp_path, tmp_path / AGAIN))
    before = (beside / "rounds.jsonl").read_text()
    run(often, tmp_path)
    assert (folder / "rounds.jsonl").read_text() == before and not beside.exists()
    run(seldom, tmp_path / AGAIN)
    assert run(measuring(1, 1), tmp_path)["measured"] == {"every": 1, "gradient_diversity_every": 1}
