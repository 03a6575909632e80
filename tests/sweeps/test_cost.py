"""What runs cost: counted by hand, held to the records of real runs, and timed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmark.data.datasets import DATASETS
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment
from benchmark.methods.central import FixMatch
from benchmark.methods.semifl import SemiFL
from benchmark.methods.server_only import ServerOnly
from benchmark.methods.ssfl import Grouping
from benchmark.papers.catalogue import items
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.cost import (
    AT_LEAST,
    AT_MOST,
    MOST_ROUNDS,
    RUN_SECONDS,
    Cost,
    Counts,
    cost_of,
    count,
    measured,
    network_of,
    over_rounds,
    stand_in,
)
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of
from tests.methods.golden import TRACES

BASE = tiny_experiment()
BYTES = 4 * 38_378  # the tiny network's weights


FIRST = 2 * 9 * 16 * 8 * 8  # FLOPs of the first convolution, 3 x 3 from one channel to 16


def flops_of(experiment: Experiment, trained: int, labelled: int) -> int:
    """Of a backward pass: two products for each one, but for the images, which need no gradient."""
    _, forward = network_of(stand_in(experiment))
    return trained * (3 * forward - FIRST) + labelled * forward


def test_the_cost_of_crl_by_hand(tiny):
    """K = C = 4, T = 2, 3 rounds, batches of 8: the server 3 x 2 steps, clients 3 x 2 x 4 = 24 steps.

    Trained: 6 x 8 + 24 x 8 = 240 images; pseudo-labelled: 192 images, one forward pass each.
    Bytes each way: 3 rounds x 4 clients.
    """
    found = count(tiny)
    assert found.totals["local_steps"] == 30 and found.notes == ()
    assert found.totals["flops"] == flops_of(tiny, 240, 192)
    assert found.totals["bytes_up"] == found.totals["bytes_down"] == 12 * BYTES


@pytest.mark.parametrize(
    ("method", "trained", "labelled"),
    [
        # The warm start takes one round of four clients away: 128 unlabelled images, 48 labelled ones.
        (replace(BASE.method, warm_start_rounds=1), 128 + 48, 128),
        # Two servers, one for each group.
        (replace(BASE.method, averaging=Grouping(S=2), server_models="released_code"), 192 + 96, 192),
        # 6 steps of 8 labelled images, and of 16 others: those pass twice, once without gradient.
        (FixMatch(batch_size=8, unlabelled_ratio=2), 6 * (8 + 16), 6 * 16),
    ],
)
def test_flops_by_hand(method, trained, labelled):
    experiment = replace(BASE, method=method)
    assert count(experiment).totals["flops"] == flops_of(experiment, trained, labelled)


REAL = {
    "groups": replace(BASE, method=replace(BASE.method, warm_start_rounds=1, averaging=Grouping(S=2))),
    "batch norm": replace(BASE, model=replace(BASE.model, norm="bn")),
    "server only": replace(BASE, method=ServerOnly(batch_size=8)),
    # tau = 0: every pseudo-label counts as confident, as a count takes them.
    "semifl": replace(BASE, method=SemiFL(threshold=0.0, warm_start_rounds=1)),
    "static norm": replace(BASE, method=SemiFL(threshold=0.0), model=replace(BASE.model, norm="sbn")),
}


@pytest.mark.parametrize("name", REAL)
def test_counted_costs_are_those_of_the_record(name, tmp_path):
    real, cost = run(REAL[name], tmp_path)["cost"], cost_of(REAL[name], tmp_path)
    assert real == {"local_steps": cost.local_steps, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    assert cost.local_steps > 0


@pytest.mark.parametrize("name", TRACES)
def test_every_method_costs_about_what_is_counted(name):
    """The methods' golden settings: as counted to a tenth, or at most so much where the plan says that it is the most.
    FedSwitch sends one model or two by what its clients report, and FedMatch only what has changed."""
    module, found = module_of(TRACES[name]), count(TRACES[name])
    real = dict.fromkeys(("local_steps", "comm/bytes_up", "comm/bytes_down"), 0.0)
    for round_number in module.remaining_rounds():
        module.training_step(round_number, 0)
        real = {key: value + module.metrics[key] for key, value in real.items()}
    factors = {"comm/bytes_down": 2.0} if name.startswith("fedswitch") else {}
    for key, value in real.items():
        counted = found.totals[key.removeprefix("comm/")]
        assert counted > 0 or not value
        assert value <= 1.1 * factors.get(key, 1.0) * counted or (key != "local_steps" and AT_LEAST in found.notes)
        assert key != "local_steps" or AT_MOST in found.notes or value >= 0.9 * counted


def test_a_setting_that_the_run_would_refuse_is_refused(tiny):
    with pytest.raises(ConfigError, match="images"):
        count(replace(tiny, federation=replace(tiny.federation, K=5000)))


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_a_stand_in_holds_every_image_once(name, tiny, monkeypatch, tmp_path):
    """The server's labels, and clients as large as each other up to one image of each class; no data is at hand."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path))
    environment = stand_in(replace(tiny, data=replace(tiny.data, name=name, N_s=2 * DATASETS[name].num_classes)))
    sizes, d = environment.sizes, environment.data.num_classes
    assert sum(sizes.values()) == DATASETS[name].train
    assert len(environment.data.test_labels_N) == DATASETS[name].test
    assert max(sizes[k] for k in range(4)) - min(sizes[k] for k in range(4)) <= d


@pytest.mark.parametrize("rounds", [1, 2, 3, 100, 6400])
@pytest.mark.parametrize("warm", [0, 1, 30])
def test_a_warm_start_is_summed_from_few_rounds(rounds, warm):
    """A warm start of 3 steps a round, then 7: the sum, exactly where its end is found."""
    asked = []

    def count_round(number: int) -> Counts:
        asked.append(number)
        return Counts({"local_steps": 3 if number <= warm else 7})

    found, exact = over_rounds(count_round, rounds)
    assert exact and found["local_steps"] == 3 * min(warm, rounds) + 7 * max(0, rounds - warm)
    assert len(asked) == len(set(asked)) <= MOST_ROUNDS


def test_random_cohorts_are_estimated_and_said_to_be():
    """2000 rounds of 90 to 110 steps: within 5 % of their sum."""
    draws = np.random.default_rng(0).integers(90, 111, 2000)
    found, exact = over_rounds(lambda number: Counts({"local_steps": int(draws[number - 1])}), 2000)
    assert not exact and found["local_steps"] == pytest.approx(draws.sum(), rel=0.05)


def test_seconds_grow_with_the_rounds_and_with_what_is_measured(tiny):
    """Six rounds take twice what three do, but for a run's start; each kind of job is timed once for both."""
    short, longer = count(tiny).seconds(), replace(tiny, federation=replace(tiny.federation, rounds=6))
    assert count(longer).seconds() - RUN_SECONDS == pytest.approx(2 * (short - RUN_SECONDS), rel=0.01)
    often = replace(tiny, evaluation=Evaluation(every=1, gradient_diversity_every=1))
    assert count(often).seconds() > short


def test_a_client_that_waits_for_confident_labels_is_timed_as_training(tiny):
    """SemiFL at tau = .95 on an untrained network trains no client; its plan has to time clients at work."""
    found = count(replace(tiny, method=SemiFL()))
    (client,) = [sample for sample in found.samples.values() if sample.job.key.client >= 0 and sample.steps]
    assert AT_MOST in found.notes and client.seconds_a_step > 0.0005  # it takes over 2 ms where it trains


def test_a_long_step_is_trained_with_fewer_images(tiny, monkeypatch):
    """A quarter of the images: four times its FLOPs are those of the whole step."""
    whole = count(tiny).totals["flops"]
    _, forward = network_of(stand_in(tiny))
    monkeypatch.setattr("sweeps.cost.STEP_FLOPS", 3 * 8 * forward / 4)
    monkeypatch.setattr("sweeps.cost._trained", {})
    other = replace(tiny, federation=replace(tiny.federation, rounds=4))
    assert count(other).totals["flops"] == whole / 3 * 4


def test_a_finished_run_knows_better(tiny, tmp_path):
    before, result = cost_of(tiny, tmp_path), run(tiny, tmp_path, engine="pool", workers=1)
    assert cost_of(tiny.with_seed(1), tmp_path) == replace(before, core_seconds=result["cpu_seconds"])


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("manifest.json", {"hardware": {"cores": 999}}),
        ("manifest.json", {"engine": {"name": "reference"}}),
        ("result.json", {"status": "diverged"}),
    ],
    ids=["other hardware", "other engine", "diverged"],
)
def test_what_is_no_measure_of_this_machine(file, change, tiny, tmp_path):
    run(tiny, tmp_path, engine="pool", workers=1)
    path = run_folder(tmp_path, tiny) / file
    assert measured(path.parent) is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert measured(path.parent) is None


def test_costs_add_up_and_keep_each_note_once(monkeypatch):
    total = Cost(local_steps=1, flops=2.0, notes=("a", "b")) + Cost(core_seconds=7200.0, bytes_up=5, notes=("b",))
    monkeypatch.setattr("sweeps.cost.usable_cores", lambda: 4)
    plain = total.to_json()
    assert (plain["local_steps"], plain["flops"], plain["bytes_up"], plain["notes"]) == (1, 2.0, 5, ["a", "b"])
    assert plain["hours"] == 0.5 and plain["cores"] == 4


def test_the_paper_s_table_2_is_counted():
    """6 runs of 100 x 1024 steps for C clients and one server: 102400 x (2 x (10 + 30 + 47) + 6) = 18,432,000."""
    (item,) = items(["ssfl/tab2"], "paper")
    six = [cell.experiment for cell in item.cells if cell.role == "published"]
    assert sum(count(run).totals["local_steps"] for run in six) == 102_400 * (2 * 87 + 6) == 18_432_000
