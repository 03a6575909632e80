"""Launchers beside each other: each run is trained once. `python -m tests.soak.once` is the same at full size."""

from benchmark.tracking.leases import claimed
from benchmark.tracking.recorder import run_folder
from sweeps.local import Standing, launch
from tests.soak.once import race


def test_two_launchers_share_eight_cells_and_a_killed_process_costs_no_cell(tmp_path):
    found = race(tmp_path, workers=2, number=8, rounds=6, kills=1)
    assert found["wrong"] == [], found
    assert found["killed"] == 1 and found["attempts"] == 9  # one cell was taken over, no other was begun twice


def test_what_another_process_is_at_is_left_to_it(tiny, tmp_path):
    """Without waiting: the launch ends, having started no process and touched nothing."""
    folder, seen = run_folder(tmp_path, tiny), list[Standing]()
    with claimed(folder):
        end = launch([tiny], tmp_path, data_root=None, workers=1, watch=seen.append, wait=False)
        assert (end.trained, list(end.finished)) == (0, [])
        assert [path.name for path in folder.iterdir()] == ["leases"]
    assert seen[-1].running == {tiny}
