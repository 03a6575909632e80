"""A fall while training is in the record and told once."""

import json

from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.records.result import fall_in_words, fall_of


def rounds(*accuracies):
    return [{"round": number, "test/accuracy": value} for number, value in enumerate(accuracies, start=1)]


def test_by_hand():
    """.90 in round 2 is the best before .41 in round 4: .49 deep; from .95 on, .70 is .25 deep."""
    fall = fall_of([{"round": 0, "local_steps": 3}, *rounds(0.5, 0.9, 0.8, 0.41, 0.95, 0.7)])
    assert fall == {"depth": 0.9 - 0.41, "round": 4, "accuracy": 0.41, "from": 0.9, "best": 2}
    assert fall_in_words(fall) == "accuracy fell from 90.0 % (round 2) to 41.0 % (round 4)"
    assert fall_of(rounds(0.5, 0.9, 0.75, 0.95)) is None  # .15 deep


@given(st.lists(st.floats(0, 1), max_size=30))
def test_it_is_the_deepest_of_all_pairs(accuracies):
    deepest = max((a - b for i, a in enumerate(accuracies) for b in accuracies[i:]), default=0.0)
    fall = fall_of(rounds(*accuracies))
    assert (fall["depth"] if fall else None) == (deepest if deepest > 0.2 else None)


def test_a_run_that_falls_says_so_on_the_terminal_and_in_its_record(tmp_path, capsys):
    """Clients that believe every label of a network at a huge rate, after a warm start that learned."""
    words = ["--data.name=digits", "--federation.K=4", "--federation.C=4", "--federation.T=8", "--federation.rounds=14"]
    method = [
        "--method=ssfl",
        "--method.objective=crl",
        "--method.objective.threshold=0.0",
        "--method.warm_start_rounds=10",
        "--optimizer.lr=0.2",
    ]
    more = ["--evaluation.every=1", "--results", str(tmp_path), "--engine", "reference"]
    assert main(["run", *words, *method, *more]) in (0, 70)
    (result,) = tmp_path.glob("runs/*/seed=0/result.json")
    fall, err = json.loads(result.read_text())["fall"], capsys.readouterr().err
    assert fall["depth"] > 0.2 and fall["best"] < fall["round"]
    assert err.count("accuracy fell from") == 1 and "method.warm_start_rounds" in err
