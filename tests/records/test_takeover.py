"""A process that stands still while it saves, and wakes when another one has done its run, takes nothing from it."""

import json
from dataclasses import replace

import pytest

from benchmark.experiment import Federation
from benchmark.records.record import run_folder
from benchmark.records.verify import troubles_of
from tests.conftest import record_of, tiny_experiment
from tests.records.equality import differences

TINY = tiny_experiment()
# State at the clients, in files of their own.
EXPERIMENT = replace(
    TINY, method=replace(TINY.method, momentum="released_code"), federation=Federation(K=4, C=4, T=2, rounds=6)
)
FILES = {"client_memory": 0}


@pytest.fixture(scope="module")
def whole(forks, tmp_path_factory):
    results = tmp_path_factory.mktemp("whole")
    assert forks.run(EXPERIMENT, results, options=FILES)["code"] == 0
    return results


PLACES = [5, 18, 31, 44, *range(51, 67)]  # 50 steps are in four clients' files, 10 in the checkpoint, 6 remove files
OFTEN = (18, 56, 57, 62)  # around the checkpoint's rename above all


@pytest.mark.parametrize("step", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in PLACES])
def test_stopped_inside_a_save_and_woken_after_the_takeover(forks, whole, tmp_path, step):
    """In the third round's: its successor ends with the unbroken run's record, the late one with 75."""
    end = forks.run(
        EXPERIMENT, tmp_path, options=FILES, faults={"stop_in_save": [3, step]}, successor={"patience": 0.2}
    )
    successor = end["successor"]
    assert successor["code"] == 0, successor["said"]
    assert end["code"] == 75 and "another process took this run over" in end["said"], end
    wrong = differences(tmp_path, whole, EXPERIMENT)
    assert set(wrong) <= {"checkpoints kept"}, wrong  # the late one's own may be there as well
    folder = run_folder(tmp_path, EXPERIMENT)
    assert troubles_of(record_of(folder), folder) == []
    attempts = json.loads((folder / "manifest.json").read_text())["attempts"]
    assert [attempt["from_round"] for attempt in attempts] == [0, 2 if step < 57 else 3]
    assert attempts[1]["after"] == "no heartbeat"
