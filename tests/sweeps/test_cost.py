"""What runs cost: counted by hand, held to the records of real runs, and timed."""

from dataclasses import replace

import pytest

from benchmark.data.datasets import DATASETS
from benchmark.errors import ConfigError
from benchmark.experiment import Evaluation, Experiment
from benchmark.federated.engines import EngineOptions
from benchmark.methods.central import FixMatch
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.semifl import SemiFL
from benchmark.methods.ssfl import CRL, Grouping
from benchmark.papers.catalogue import items
from benchmark.records.run import run
from sweeps import counting
from sweeps.cost import RUN_SECONDS, cost_of, count
from sweeps.counting import AT_LEAST, AT_MOST, BY_REPORTS, ESTIMATED, network_of, stand_in
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
    cost = count(tiny).whole
    assert cost.local_steps == 30 and cost.notes == ()
    assert cost.flops == flops_of(tiny, 240, 192)
    assert cost.bytes_up == cost.bytes_down == 12 * BYTES


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
    assert count(experiment).whole.flops == flops_of(experiment, trained, labelled)


def test_flops_are_counted_on_one_image_and_heavy_steps_are_not_timed(tiny, monkeypatch):
    """FLOPs are those of the whole batch; the time is that of as many FLOPs of an evaluation."""
    images = set()

    class Watching(counting._Runner):
        def run(self, job, round_number, private):
            images.add(max(stream.batch_size for stream in job.data.values()))
            return super().run(job, round_number, private)

    monkeypatch.setattr(counting, "_Runner", Watching)
    monkeypatch.setattr(counting, "HEAVY", 0.0)
    for known in ("_least", "_steps"):
        monkeypatch.setattr(counting, known, {})
    cost = counting.CountingEngine(tiny).play(1)
    assert cost.flops * 3 == flops_of(tiny, 240, 192) and images == {1} and cost.seconds > counting.ROUND_SECONDS


def test_counted_costs_are_those_of_the_record_and_a_finished_run_knows_the_time_better(tmp_path):
    """tau = 0: every pseudo-label counts as confident, as a count takes them."""
    method = SemiFL(threshold=0.0, warm_start_rounds=1)
    experiment = replace(BASE, method=method, model=replace(BASE.model, norm="sbn"))
    cost = cost_of(experiment, tmp_path)
    real = run(experiment, tmp_path, engine=EngineOptions(engine="pool", workers=1))
    counted = {"local_steps": cost.local_steps, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    assert real["cost"] == counted and cost.local_steps > 0
    assert cost_of(experiment.with_seed(1), tmp_path) == replace(cost, seconds=real["cpu_seconds"])


@pytest.mark.parametrize("name", TRACES)
def test_every_method_costs_about_what_is_counted(name):
    """The methods' golden settings: as counted to a tenth, or at most so much where the plan says that it is the most.
    FedSwitch sends one model or two by what its clients report, and FedMatch only what has changed."""
    module, counted = module_of(TRACES[name]), count(TRACES[name]).whole
    real = dict.fromkeys(("local_steps", "bytes_up", "bytes_down"), 0.0)
    for round_number in module.remaining_rounds():
        module.training_step(round_number, 0)
        real = {key: value + module.metrics[COLUMN.get(key, key)] for key, value in real.items()}
    for key, value in real.items():
        expected, is_bytes = getattr(counted, key), key.startswith("bytes")
        assert expected > 0 or not value
        assert value <= 1.1 * expected or (is_bytes and AT_LEAST in counted.notes)
        upper_bound = AT_MOST in counted.notes or (is_bytes and BY_REPORTS in counted.notes)
        assert value >= 0.9 * expected or upper_bound


COLUMN = {"bytes_up": "comm/bytes_up", "bytes_down": "comm/bytes_down"}


def test_a_setting_that_the_run_would_refuse_is_refused(tiny):
    with pytest.raises(ConfigError, match="images"):
        count(replace(tiny, federation=replace(tiny.federation, K=5000)))


@pytest.mark.parametrize("name", ["cifar10", "ham10000_64", "stl10"])  # large, of uneven classes, with images beside
def test_a_stand_in_holds_every_image_once(name, tiny, monkeypatch, tmp_path):
    """The server's labels, and clients as large as each other up to one image of each class; no data is at hand."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path))
    environment = stand_in(replace(tiny, data=replace(tiny.data, name=name, N_s=2 * DATASETS[name].num_classes)))
    sizes, d = environment.sizes, environment.data.num_classes
    assert sum(sizes.values()) == DATASETS[name].train
    assert len(environment.data.test_labels_N) == DATASETS[name].test
    assert max(sizes[k] for k in range(4)) - min(sizes[k] for k in range(4)) <= d


@pytest.mark.parametrize(("rounds", "warm"), [(1, 0), (1, 1), (2, 1), (3, 0), (100, 30)])
def test_rounds_of_a_warm_start_and_after_it(rounds, warm, tiny):
    """2 steps at the server in each, and 2 at each of 4 clients after the warm start."""
    federation = replace(tiny.federation, rounds=rounds)
    cost = count(replace(tiny, method=replace(tiny.method, warm_start_rounds=warm), federation=federation))
    for first in {0, rounds // 2, rounds}:
        assert cost.of_first(first).local_steps == 2 * first + 8 * max(0, first - warm)


def test_random_cohorts_are_estimated_and_said_to_be(tiny):
    """Two of four clients, one of which holds the labels: a cohort with it trains other jobs."""
    data = replace(tiny.data, label_setting="some_clients")
    federation = replace(tiny.federation, C=2, rounds=30)
    run = replace(tiny, data=data, method=FedConsist(batch_size=8), federation=federation)
    assert ESTIMATED in count(run).whole.notes
    everyone = replace(run, federation=replace(federation, C=4))
    assert ESTIMATED not in count(everyone).whole.notes


def test_seconds_grow_with_the_rounds_and_with_what_is_measured(tiny):
    """Six rounds take twice what three do, but for a run's start; each kind of job is timed once for both."""
    short, longer = count(tiny).whole.seconds, replace(tiny, federation=replace(tiny.federation, rounds=6))
    assert count(longer).whole.seconds - RUN_SECONDS == pytest.approx(2 * (short - RUN_SECONDS), rel=0.01)
    often = replace(tiny, evaluation=Evaluation(every=1, gradient_diversity_every=1))
    assert count(often).whole.seconds > short


@pytest.mark.parametrize(
    "method", [replace(BASE.method, objective=CRL(threshold=0.95)), SemiFL()], ids=["crl", "semifl"]
)
def test_images_below_the_threshold_are_timed_as_training(method):
    """An untrained network is sure of nothing: at tau = .95 SemiFL would train no client, and CRL no image."""
    all_kept = replace(method, objective=CRL(threshold=0.0)) if hasattr(method, "objective") else SemiFL(threshold=0.0)
    one, other = (count(replace(BASE, method=each)).later for each in (method, all_kept))
    assert one.local_steps == other.local_steps and one.seconds > 0.5 * other.seconds


def test_the_paper_s_table_2_is_counted():
    """6 runs of 100 x 1024 steps for C clients and one server: 102400 x (2 x (10 + 30 + 47) + 6) = 18,432,000."""
    (item,) = items(["ssfl/tab2"], "paper")
    six = [cell.experiment for cell in item.cells if cell.role == "published"]
    assert sum(count(run).whole.local_steps for run in six) == 102_400 * (2 * 87 + 6) == 18_432_000
