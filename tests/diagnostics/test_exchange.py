"""What is sent and kept, seen on runs of methods whose behaviour is known, and on calls made by hand."""

import json
from dataclasses import replace

import pytest
import torch

from benchmark.diagnostics.exchange import Exchange
from benchmark.errors import Stopped
from benchmark.methods.central import FixMatch
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Outcome, Stream
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.shared import ServerUpdate
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.records.state import save
from tests.conftest import record_of, tiny_experiment
from tests.records.equality import saved
from tests.records.test_run import Interrupt

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


def test_a_warm_start_does_not_hide_parallel_training(tiny, tmp_path):
    """Rounds of the server alone come first; the calls with both are what counts."""
    assert seen(replace(tiny, method=replace(tiny.method, warm_start_rounds=2)), tmp_path)["training"] == "parallel"
    alone = replace(tiny, method=replace(tiny.method, warm_start_rounds=3))
    assert seen(alone, tmp_path)["training"] == "none"


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


def test_methods_without_clients(tmp_path):
    alone = seen(replace(BASE, method=ServerOnly(batch_size=8)), tmp_path)
    assert alone["training"] == "none" and alone["holders"].keys() == {"server"} and not alone["pseudo_labels"]
    central = seen(replace(BASE, method=FixMatch(batch_size=8, unlabelled_ratio=1)), tmp_path)
    assert central["holders"].keys() == {"central"} and central["pseudo_labels"]


def outcomes(exchange: Exchange, *calls: tuple[int, ...]) -> str:
    """Calls of `fit` as the orchestrator passes them by: all jobs of a call, then its outcomes."""
    for holders in calls:
        jobs = [
            Job(
                key=Key(client=holder), update=ServerUpdate(), receives={"student": {"w": torch.zeros(2)}},
                data={"labelled": Stream(part="labelled", batch_size=1, views=("weak",))}, limit=Limit(steps=1),
            )
            for holder in holders
        ]  # fmt: skip
        for job in jobs:
            exchange.on_job(job, 1)
        for job in jobs:
            exchange.on_outcome(job, Outcome(key=job.key, sends=job.receives, steps=1))
    return exchange.summary()["training"]


def test_the_largest_bytes_count_and_what_was_seen_before_stays():
    """A summary written, read and added to: the larger of two sizes, and both halves' holders."""
    first = Exchange()
    outcomes(first, (SERVER,))
    second = Exchange(json.loads(json.dumps(first.summary())))
    job = Job(
        key=Key(client=3), update=ServerUpdate(), receives={"student": torch.zeros(9)}, data={}, limit=Limit(steps=0)
    )
    for size in (5, 2):
        second.on_job(job, 2)
        second.on_outcome(
            job, Outcome(key=job.key, sends={"student": torch.zeros(size)}, private={"n": 1, "gone": None})
        )
    holders = second.summary()["holders"]
    assert holders["server"]["sent"] == {"student": 8} and holders["server"]["trains"]
    assert holders["client"]["received"] == {"student": 36} and holders["client"]["sent"] == {"student": 20}
    assert holders["client"]["kept"] == {"n": 8} and not holders["client"]["trains"]


def test_a_run_that_goes_on_has_the_summary_of_an_unbroken_one(tmp_path):
    """What only the first rounds saw (here a name put into their notes) is there in the end; the rest is the same."""
    experiment = replace(BASE, method=SemiFL(threshold=0.0, order="released_code"))
    whole = seen(experiment, tmp_path / "whole")
    with pytest.raises(Stopped):
        run(experiment, tmp_path / "broken", callbacks=[Interrupt(2)])
    folder = run_folder(tmp_path / "broken", experiment)
    found = saved(folder, experiment)
    found.exchange["holders"]["client"]["kept"]["of the first rounds"] = 5
    save(folder, found, f"{experiment.cell_key}/seed={experiment.seed}")
    resumed = seen(experiment, tmp_path / "broken")
    assert resumed["holders"]["client"]["kept"].pop("of the first rounds") == 5
    assert resumed == whole
    assert record_of(folder).result["exchange"]["training"] == "alternate"
