"""Plans: each run once, seeds evenly, only what is missing; and what runs cost, by hand and by their records."""

import json
from dataclasses import replace

import pytest
import torch

from benchmark.data.datasets import DATASETS
from benchmark.experiment import Evaluation, Experiment
from benchmark.federated.engines import EngineOptions
from benchmark.methods.central import FixMatch
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.protocol import Method
from benchmark.methods.semifl import SemiFL
from benchmark.methods.ssfl import CRL, Grouping
from benchmark.models.build import Model
from benchmark.papers.item import Cell, Item
from benchmark.records.copies import write_reference
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.blank_data import blank_environment
from sweeps.cards import KERNELS, LAUNCH_MS
from sweeps.cost import RUN_SECONDS, cost_of, count
from sweeps.counting import Cost, pass_of
from sweeps.plan import Seeds, plan, restricted, wanted
from sweeps.speed import seconds_on, timed_step
from tests.conftest import record_of, tiny_experiment
from tests.methods.golden import FOLDER, TRACES

BASE = tiny_experiment()
FIRST = 2 * 9 * 16 * 8 * 8  # FLOPs of the first convolution, 3 x 3 from one channel to 16


def flops_of(experiment: Experiment, trained: int, labelled: int) -> int:
    """Return the FLOPs of a backward pass: two products for each one, except for the images, which need no gradient."""
    data = blank_environment(experiment).data
    forward, _ = pass_of(experiment.model, data.image_shape, data.num_classes)
    return trained * (3 * forward - FIRST) + labelled * forward


@pytest.mark.parametrize(
    ("method", "trained", "labelled"),
    [
        # K = C = 4, T = 2, 3 rounds, batches of 8: the server trains 3 x 2 x 8 images, clients 3 x 2 x 4 x 8.
        (BASE.method, 48 + 192, 192),
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


PLANNED_OTHERWISE = [name for name, trace in TRACES.items() if type(trace.method).planned is not Method.planned]


@pytest.mark.parametrize("name", PLANNED_OTHERWISE)
def test_a_method_with_less_work_at_the_server_costs_what_the_method_costs(name, monkeypatch):
    trace = TRACES[name]
    with monkeypatch.context() as patched:
        patched.setattr(type(trace.method), "planned", Method.planned)
        whole = count(trace)
    assert whole == count(trace)


def test_counted_costs_are_those_of_the_record_and_a_finished_run_knows_the_time_better(tmp_path):
    """tau = 0: every pseudo-label counts as confident, as a count takes them."""
    method = SemiFL(threshold=0.0, warm_start_rounds=1)
    experiment = replace(BASE, method=method, model=replace(BASE.model, norm="sbn"))
    cost = cost_of(experiment, tmp_path)
    real = run(experiment, tmp_path, engine=EngineOptions(engine="pool", workers=1))
    counted = {"local_steps": cost.local_steps, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    assert real["cost"] == counted and cost.local_steps > 0
    assert cost_of(experiment.with_seed(1), tmp_path) == replace(cost, seconds=real["cpu_seconds"])


def test_seconds_of_a_device_are_those_of_its_speed(tiny, tmp_path, monkeypatch):
    """A core that needs twice the reference's time for a step needs it for a run; a GPU needs what its FLOPs take.

    The GPU is not known: its rate is that of the timed step, 1 TFLOP/s, besides the launches of a small step.
    """
    monkeypatch.setattr("sweeps.speed.timed_step", lambda *step: (0.002, 0.001, 2_000_000_000))
    monkeypatch.setattr("sweeps.speed.card_name", lambda device: "A card that nobody has measured")
    cost = Cost(local_steps=1000, flops=1e12, seconds=5.0)
    assert seconds_on("cpu", tiny, cost, tmp_path) == 10.0
    launches = 1000 * KERNELS * LAUNCH_MS / 1000
    assert seconds_on("cuda:0", tiny, cost, tmp_path) == pytest.approx(1.0 + launches)


def test_a_timed_step_is_counted_as_it_is_trained(tiny):
    """The reference's FLOPs are those of 16 images: three passes, but for the images' own gradient."""
    network = Model(network="small_cnn", norm="gn", norm_groups=4)
    seconds, reference_seconds, flops = timed_step(network, (1, 8, 8), 10, "fp32", "cpu")
    forward, _ = pass_of(network, (1, 8, 8), 10)
    assert 2 * forward * 16 < flops < 3 * forward * 16
    assert seconds > 0 and reference_seconds > 0


@pytest.mark.parametrize("name", TRACES)
def test_every_method_costs_about_what_is_counted(name):
    """Compare the two rounds of its golden trace: as counted to a tenth, or at most so much if a note says so.

    FedSwitch sends one model or two by what its clients report, an estimate; FedMatch only what has changed.
    """
    if name in ("feddure", "flfl") and torch.__version__ < "2.12":
        pytest.xfail("torch's meta device cannot differentiate a group norm twice")
    counted = count(TRACES[name]).of_first(2)
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    for key in ("local_steps", "bytes_up", "bytes_down"):
        is_bytes = key.startswith("bytes")
        value = sum(line[f"comm/{key}" if is_bytes else key] for line in golden)
        expected = getattr(counted, key)
        at_most = {name for note in counted.notes for name in note.at_most}
        about = {name for note in counted.notes for name in note.about}
        factor = 2 if key in about else 1.1
        assert (expected > 0 or not value) and value <= factor * expected
        assert value >= expected / factor or key in at_most


@pytest.mark.parametrize("name", ["cifar10", "ham10000_64", "stl10"])  # large, of uneven classes, with images beside
def test_a_stand_in_holds_every_image_once(name, tiny, monkeypatch, tmp_path):
    """The server's labels, and clients as large as each other up to one image of each class; no data is at hand."""
    monkeypatch.setenv("FSSL_DATA", str(tmp_path))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path))
    environment = blank_environment(
        replace(tiny, data=replace(tiny.data, name=name, N_s=2 * DATASETS[name].num_classes))
    )
    sizes = environment.sizes
    d = environment.data.num_classes
    assert sum(sizes.values()) == DATASETS[name].train
    assert len(environment.data.test_labels_N) == DATASETS[name].test
    of_clients = [sizes[k] for k in range(4)]
    assert max(of_clients) - min(of_clients) <= d


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
    (note,) = count(run).whole.notes
    assert {"flops", "bytes_up"} & note.about
    everyone = replace(run, federation=replace(federation, C=4))
    assert count(everyone).whole.notes == ()


def test_seconds_grow_with_the_rounds_and_with_what_is_measured(tiny):
    """Six rounds take twice what three do, but for a run's start."""
    short = count(tiny).whole.seconds
    longer = replace(tiny, federation=replace(tiny.federation, rounds=6))
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


def item_of(**experiments) -> Item:
    cells = tuple(Cell(label=name, setting={"name": name}, experiment=e) for name, e in experiments.items())
    return Item(name="test/item", title="t", profile="demo", cells=cells, seeds=2)


def test_shared_runs_count_once_and_seeds_fill_evenly(tiny):
    other = replace(tiny, method=replace(tiny.method, averaging=Grouping(S=2)))
    runs = wanted([item_of(a=tiny, b=other), item_of(c=tiny)])
    assert list(runs) == [one.with_seed(seed) for seed in (0, 1) for one in (tiny, other)]


def test_committed_runs_are_enough_wherever_results_are_written(tiny, tmp_path, monkeypatch):
    """One committed pilot of two, and one confirming seed: nothing is missing, and both are counted. A run that is
    merely here stands for one of the two: a stopped command goes on."""
    item, checkout, results = item_of(a=tiny), tmp_path / "checkout", tmp_path / "results"
    monkeypatch.setattr("benchmark.records.copies.COMMITTED", checkout)
    here, *committed = (tiny.with_seed(seed) for seed in (101, 0, 100))
    run(here, results)
    planned = plan([item], results)
    assert [one.seed for one in planned.runs] == [0, 101]
    assert [one.seed for one in planned.missing] == [0]
    for one in committed:
        run(one, tmp_path)
        write_reference(checkout, record_of(run_folder(tmp_path, one)))
    planned = plan([item], results)
    assert [one.seed for one in planned.runs] == [0, 100, 101] and planned.missing == ()
    assert len(plan([item], results, with_reference=False).missing) == 1
    assert [one.seed for one in plan([item], results, seeds=Seeds(pilots=2)).missing] == [1]


def test_a_table_of_one_seed_shows_one(tiny, tmp_path):
    item = item_of(a=tiny)
    for seed in (0, 1):
        run(tiny.with_seed(seed), tmp_path)
    planned = plan([item], tmp_path, seeds=Seeds(pilots=1))
    assert list(restricted(planned.records, planned.runs)[tiny.cell_key]) == [0]
