"""2,000 of the inputs of `tests.faults.fuzz`: each is read, or refused by an error of ours; none hangs."""

import random
import time

import pytest

from tests.faults import fuzz


@pytest.mark.fault(6, 27, 34, counts="broken inputs of the fuzz in the tests", each=2000)
def test_two_thousand_broken_inputs():
    found = fuzz.fuzz(2000, seed=0)
    assert found["wrong"] == [] and sum(found["by_reader"].values()) == 2000
    refused = sum(count for name, count in found["by_reader"].items() if name.endswith("refused"))
    assert refused > 800, "most changes break something"
    assert {name.rpartition(":")[0] for name in found["by_reader"]} == set(fuzz.READERS)


def test_what_is_no_error_of_ours_is_told_with_its_number(monkeypatch):
    """A reader that raises, or takes longer than it may, every time."""

    def raises(bench: fuzz.Bench, draw: random.Random) -> None:
        raise KeyError("lost")

    def sleeps(bench: fuzz.Bench, draw: random.Random) -> None:
        time.sleep(5)

    monkeypatch.setattr(fuzz, "READERS", {"raises": raises, "sleeps": sleeps})
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    first, second = fuzz.fuzz(2, seed=0)["wrong"]
    assert first.startswith("input 0, raises: KeyError at test_fuzz.py") and "lost" in first
    assert second.startswith("input 1, sleeps: Hung at") and "longer than 1 s" in second


def test_the_same_number_gives_the_same_input(tmp_path):
    draws = [random.Random(7) for _ in range(2)]
    made = [fuzz.changed_text(draw, {"a": [1, {"b": 2}]}) for draw in draws]
    assert made[0] == made[1] != b'{"a": [1, {"b": 2}]}'
