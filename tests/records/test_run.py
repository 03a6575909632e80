"""Runs on disk: the same twice, the same after any interruption, and nothing half-written."""

import json
import os
import signal
from functools import partial

import pytest
import pytorch_lightning as pl

from benchmark.errors import RunningElsewhere, Stopped
from benchmark.records.claim import claimed
from benchmark.records.record import run_folder
from benchmark.records.recorder import Recorder
from benchmark.records.run import run
from tests.conftest import record_of, tiny_experiment
from tests.records.equality import differences


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    results = tmp_path_factory.mktemp("unbroken")
    run(tiny_experiment(), results)
    return results


class Interrupt(pl.Callback):
    """Sends this process SIGTERM when the round after that one begins: the run's own handler has to answer."""

    def __init__(self, after):
        self._after = after

    def on_train_batch_start(self, trainer, pl_module, *args):
        if pl_module.rounds_done == self._after:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_that_goes_on_keeps_what_it_was_begun_under(tiny, tmp_path):
    """Begun before the rule had a version, it has none later; one that was begun under nothing gets what there is."""
    experiments = tiny, tiny.with_seed(1)
    first, second = ({"family": {"main": [name], "others": []}} for name in ("first", "second"))
    for experiment, entries in zip(experiments, ({"claims": first}, {}), strict=True):
        with pytest.raises(Stopped):
            run(experiment, tmp_path, callbacks=[Interrupt(1)], begun_under=partial(dict, entries))
    later = {"claims": second, "rule": {"version": 4, "constants": "0"}}
    for experiment in experiments:
        run(experiment, tmp_path, begun_under=lambda: later)
    kept, new = (record_of(run_folder(tmp_path, experiment)).manifest for experiment in experiments)
    assert kept["claims"] == first and "rule" not in kept
    assert {name: new[name] for name in later} == later


def test_an_unfinished_run_of_an_older_version_begins_anew_once(tiny, tmp_path, unbroken, capsys):
    """With its lease silent; all that it left is gone after it."""
    folder = run_folder(tmp_path, tiny)
    for name in ("checkpoints/round-000001-000001-0123456789abcdef.pt", "leases/000001", "attempts/1.jsonl"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    (folder / "rounds.jsonl").write_text('{"round": 1, "old": 1}\n{"round": 2, "ha')
    (folder / ".result.json.abcd1234.tmp").write_text("half")
    with pytest.raises(Stopped):
        run(tiny, tmp_path, callbacks=[Interrupt(1)])
    assert "an older version began this run; it starts from round 1" in capsys.readouterr().err
    names = {path.name for path in folder.iterdir()}
    assert names == {"experiment.json", "manifest.json", "progress.jsonl", "state.pt"}
    run(tiny, tmp_path)
    assert capsys.readouterr().err == ""
    # What such a process left that was killed just after it had published goes, too.
    for name in ("checkpoints/round-000003-000001-0123456789abcdef.pt", "state.pt", "progress.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    assert run(tiny, tmp_path)["status"] == "done"
    assert differences(tmp_path, unbroken, tiny) == []


def test_a_folder_that_is_removed_under_its_process_ends_it_with_75(tiny, tmp_path):
    """Also where it saves no more before the end; the folder is not made again."""
    folder = run_folder(tmp_path, tiny)

    class Removes(pl.Callback):
        def on_train_batch_start(self, trainer, pl_module, *args):
            if pl_module.rounds_done == 1:
                folder.rename(tmp_path / "elsewhere")

    with pytest.raises(RunningElsewhere, match="or its folder was removed") as error:
        run(tiny, tmp_path, callbacks=[Removes()])
    assert error.value.exit_code == 75 and not folder.exists()


def test_the_recorder_never_writes_nan(tiny, tmp_path):
    with claimed(tmp_path) as claim:
        line = json.loads(Recorder(claim, tiny)._line(1, {"test/loss": float("nan"), "test/accuracy": 0.5}))
    assert "test/loss" not in line and line["test/accuracy"] == 0.5
