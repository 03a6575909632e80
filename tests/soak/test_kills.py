"""The soak's own runs in small: engines that tests/records/test_kills.py has not, each under one method."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from benchmark.methods.catalogue import METHODS
from tests.soak import kills
from tests.soak.kills import ENGINES, Case, planned, soak, survived


def runs_of(engine: str) -> Iterator[dict[str, Any]]:
    for turn in count():
        yield survived(Case(trace="crl-released", engine=engine, turn=turn), seed=0)


@pytest.mark.fault(1, counts="kills in the tests", each=2)
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["gpu", "distributed"])
def test_killed_twice_or_more(engine):
    """A run is killed up to three times; where kills came too late, the next one is."""
    killed = 0
    for found in runs_of(engine):
        assert found["wrong"] == []
        killed += len(found["killed"])
        if killed >= 2:
            break
        assert found["turn"] < 3, "kills come too late again and again"


def test_every_method_is_planned_under_every_engine_and_label_settings_in_turn():
    pairs = [(method, engine) for method in METHODS for engine in ENGINES]
    cases = [case for turn in range(3) for case in planned(turn, pairs)]
    assert {tuple(case.pair.split(" x ")) for case in cases} == set(pairs) and len(pairs) == 4 * len(METHODS)
    for engine in ENGINES:
        settings = {case.setting for case in cases if case.engine == engine}
        assert settings >= {"server", "every_client", "some_clients", "share"}, engine


def test_a_campaign_goes_on_from_its_file(tmp_path, monkeypatch):
    """One method under four engines, the third run of which does not end: the same command begins after the second.
    Figures of another version of the code do not count."""
    begun: list[str] = []

    def one_run(case: Case, seed: int) -> dict[str, Any]:
        begun.append(case.engine)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return {"trace": case.trace, "engine": case.engine, "turn": case.turn, "killed": ["start", "write", "round"],
                "missed": 0, "wrong": [], "seconds": 1.0}  # fmt: skip

    monkeypatch.setattr(kills, "survived", one_run)
    file, header = tmp_path / "soak.json", {"command": "x", "code": "0"}
    with pytest.raises(KeyboardInterrupt):
        soak(3, 0, 1, "easgd", header, file)
    assert len(json.loads(file.read_text())["runs"]) == 2
    begun_before = len(begun)  # the pool may have begun the fourth
    found = soak(3, 0, 1, "easgd", header, file)
    assert found["by_pair"] == {f"easgd x {engine}": 3 for engine in ENGINES}
    assert begun[begun_before:] == ["gpu", "distributed"]
    soak(3, 0, 1, "easgd", header, file)
    assert len(begun) == begun_before + 2
    soak(3, 0, 1, "easgd", header | {"code": "1"}, file)
    assert len(begun) == begun_before + 6
