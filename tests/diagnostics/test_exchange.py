"""What is sent and kept, seen on runs of methods whose behaviour is known."""

from dataclasses import replace

from benchmark.methods.semifl import SemiFL
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.state import save
from tests.conftest import record_of, tiny_experiment
from tests.records.conftest import stopped_after
from tests.records.equality import saved

BASE = tiny_experiment()
BYTES = 4 * 38_378  # the tiny network's weights; all of them are trained
STUDENT = {"student": BYTES}


def seen(experiment, tmp_path):
    return run(experiment, tmp_path)["exchange"]


def test_ssfl_trains_in_parallel_and_its_clients_keep_nothing(tiny, tmp_path):
    found = seen(tiny, tmp_path)
    assert found["training"] == "parallel" and found["pseudo_labels"]
    client, server = found["holders"]["client"], found["holders"]["server"]
    assert (client["received"], client["sent"], client["kept"]) == (STUDENT, STUDENT, {})
    assert client["views"] == ["unlabelled/strong", "unlabelled/weak"] and server["views"] == ["labelled/weak"]
    assert found["state"] == {"average": BYTES, "groups": BYTES, "last_group": 4 * 8}


def test_released_momentum_is_kept(tiny, tmp_path):
    """A momentum buffer for each weight, as large as the weights."""
    found = seen(replace(tiny, method=replace(tiny.method, momentum="released_code")), tmp_path)
    assert found["holders"]["client"]["kept"] == found["holders"]["server"]["kept"] == {"momentum": BYTES}


def test_semifl_trains_in_turn_and_its_static_norms_ask_for_more(tmp_path):
    """tau = 0: every client trains. Static norms: clients also send statistics and a count of images."""
    found = seen(replace(BASE, method=SemiFL(threshold=0.0)), tmp_path)
    assert found["training"] == "alternate" and found["pseudo_labels"]
    assert found["holders"]["client"]["sent"] == STUDENT
    assert found["holders"]["client"]["views"] == ["fix/strong", "fix/weak", "mix/weak"]
    static = replace(BASE, method=SemiFL(threshold=0.0), model=replace(BASE.model, norm="sbn"))
    asked = seen(static, tmp_path)
    assert asked["training"] == "alternate"  # a pass over everyone's images is no training together
    assert asked["holders"]["client"]["sent"].keys() == {"student", "statistics", "count"}
    assert asked["holders"]["client"]["sent"]["count"] == 8


def test_a_run_that_goes_on_has_the_summary_of_an_unbroken_one(tmp_path):
    """What only the first rounds saw (here a name put into their notes) is there in the end; the rest is the same."""
    experiment = replace(BASE, method=SemiFL(threshold=0.0, order="released_code"))
    whole = seen(experiment, tmp_path / "whole")
    stopped_after(2, experiment, tmp_path / "broken")
    folder = run_folder(tmp_path / "broken", experiment)
    found = saved(folder, experiment)
    found.exchange["holders"]["client"]["kept"]["of the first rounds"] = 5
    save(folder, found, f"{experiment.cell_key}/seed={experiment.seed}")
    resumed = seen(experiment, tmp_path / "broken")
    assert resumed["holders"]["client"]["kept"].pop("of the first rounds") == 5
    assert resumed == whole
    assert record_of(folder).result["exchange"]["training"] == "alternate"
