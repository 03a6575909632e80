"""Devices: how they are named, which `auto` is, and what torch is told of them. No CUDA device is needed."""

import contextlib
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import get_args

import pytest
import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment, Precision
from benchmark.federated import devices, process_pool
from benchmark.federated.devices import Choice, auto_devices, choice_for, devices_named, memory_format, prepare_torch
from benchmark.federated.engines import EngineOptions
from benchmark.federated.environment import prepare
from benchmark.models.build import NETWORKS, Model
from benchmark.models.norms import NORMS
from benchmark.records.run import run
from tests.conftest import tiny_experiment

DEMO, PAPER = Experiment(profile="demo"), Experiment(profile="paper")
ON_CUDA = {"engine": {"name": "reference", "threads": 1, "device": "NVIDIA H200"}}


@pytest.fixture
def two_cards(monkeypatch):
    """Simulate a machine with two CUDA devices that are never used."""
    monkeypatch.setattr(devices, "cuda_devices", lambda: ("cuda:0", "cuda:1"))
    monkeypatch.setattr("benchmark.federated.engines.cuda_devices", lambda: ("cuda:0", "cuda:1"))


@pytest.fixture
def no_card(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.filterwarnings("default")
def test_lightning_is_silent_on_a_machine_with_a_gpu(monkeypatch, tmp_path, recwarn):
    """Its Trainer is told of no GPU, since engines choose devices, and would advise users to give it one."""
    monkeypatch.setattr("pytorch_lightning.accelerators.cuda.CUDAAccelerator.is_available", lambda: True)
    run(tiny_experiment(), tmp_path)
    assert [str(warning.message) for warning in recwarn] == []


def test_names(two_cards):
    assert devices_named("0,1") == devices_named("cuda:0, cuda:1") == devices_named("cuda,1") == ("cuda:0", "cuda:1")
    assert devices_named("cpu,cpu") == ("cpu", "cpu") and devices_named("1,1") == ("cuda:1", "cuda:1")
    assert devices_named("auto") is devices_named(None) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("7", "no device 'cuda:7' in '7'; choose cpu, cuda:0 or cuda:1"),
        ("0,tpu", "no device 'tpu' in '0,tpu'; choose cpu, cuda:0 or cuda:1"),
        ("", "no device '' in ''"),
        ("cpu,0", "'cpu,0', .* the CPU and CUDA devices"),
    ],
)
def test_a_wrong_name_says_what_is_there(two_cards, text, says):
    with pytest.raises(ConfigError, match=says):
        devices_named(text)


def test_without_a_card_the_cpu_is_named(no_card):
    with pytest.raises(ConfigError, match="no device 'cuda:0' in 'cuda'; this machine has no CUDA device; choose cpu"):
        devices_named("cuda")
    assert auto_devices([PAPER]) == ("cpu",)


def test_auto_leaves_small_networks_to_the_cores(two_cards):
    """One run takes one device; the runs of a launch take all."""
    assert auto_devices([DEMO, DEMO]) == ("cpu",)
    assert auto_devices([DEMO, PAPER]) == ("cuda:0", "cuda:1")
    auto = EngineOptions(engine="auto")
    assert (auto.devices_of(DEMO), auto.devices_of(PAPER)) == (("cpu",), ("cuda:0",))
    assert auto.processes(PAPER) == 1
    assert EngineOptions().devices_of(PAPER) == ("cpu",)


def test_a_pool_has_a_worker_for_each_device(two_cards, monkeypatch):
    """K = 10 clients and the server: eleven jobs a round. `cpu` alone is all cores."""
    monkeypatch.setattr("benchmark.federated.engines.usable_cores", lambda: 6)
    cards = ("cuda:0", "cuda:1")
    asked = [(4, cards, 4), (None, cards, 2), (None, ("cpu",) * 20, 11), (None, ("cpu",), 6), (None, None, 6)]
    for workers, names, count in asked:
        assert EngineOptions(engine="pool", workers=workers, devices=names).processes(PAPER) == count


def test_a_run_goes_on_where_it_began(two_cards):
    """On CUDA, whatever is asked for now; on the CPU likewise. The number of the device is the machine's own."""
    for asked, found in ((None, "cuda:0"), (("cpu", "cpu"), "cuda:0"), (("cuda:1",), "cuda:1")):
        assert EngineOptions(engine="auto", devices=asked).as_recorded(ON_CUDA).devices == (found,)
    on_cores = {"engine": {"name": "pool", "threads": 1, "workers": 3}}
    assert EngineOptions(engine="auto", devices=("cuda:0",)).as_recorded(on_cores).devices == ("cpu",)


def test_a_run_keeps_its_engine_on_a_card(two_cards):
    """`auto` is stacked on CUDA, but runs of tables are the pool's, and stay so; and the other way round."""
    auto = EngineOptions(engine="auto")
    assert auto.is_stacked(PAPER) and not auto.as_recorded(ON_CUDA).is_stacked(PAPER)
    on_card = {"engine": {"name": "stacked", "threads": 1, "bit_equal": False, "device": "NVIDIA H200"}}
    for asked in (auto, EngineOptions(engine="pool", workers=2, devices=("cuda:0", "cuda:1"))):
        resumed = asked.as_recorded(on_card)
        assert resumed.is_stacked(PAPER) and resumed.devices == ("cuda:0",)


def test_a_run_begun_on_cuda_says_why_it_cannot_go_on(no_card):
    with pytest.raises(ConfigError, match="this run was begun on NVIDIA H200, so only a CUDA device"):
        EngineOptions().as_recorded(ON_CUDA)


def test_tf32_is_refused_where_it_is_not_to_be_had(two_cards, monkeypatch):
    """The second GPU is of 2018, and has no units for it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda name: {"cuda:0": (8, 0), "cuda:1": (7, 5)}[name])
    rough = replace(PAPER, precision="tf32")
    assert EngineOptions(engine="auto").devices_of(rough) == ("cuda:0",)
    for name in ("cpu", "cuda:1"):
        with pytest.raises(ConfigError, match=f"precision is 'tf32', but {name} .* choose fp32"):
            EngineOptions(engine="pool", devices=(name,)).processes(rough)
    assert len({rough.cell_key, PAPER.cell_key, replace(PAPER, precision="bf16").cell_key}) == 3


@pytest.mark.parametrize("precision", ["fp32", "bf16", "tf32"])
def test_what_torch_is_told_of_a_cuda_device(precision, monkeypatch):
    flags = (torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        prepare_torch(torch.device("cuda:0"), precision)
        assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.empty(4096).fill_(1.0).new_empty(4096).isnan().all()  # what deterministic mode fills with
    finally:
        torch.use_deterministic_algorithms(False)
        devices.DETERMINISTIC.fill_uninitialized_memory = True
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = flags


def test_order_in_memory():
    places = [(kind, precision) for kind in ("cpu", "cuda") for precision in get_args(Precision)]
    found = {place: memory_format(torch.device(place[0]), place[1]) for place in places}
    plain = {place for place, order in found.items() if order is torch.contiguous_format}
    assert plain == {("cuda", "fp32"), ("cuda", "tf32")}
    assert set(found.values()) == {torch.contiguous_format, torch.channels_last}


def test_workers_on_cuda_are_started_anew_and_have_the_devices_in_turn(monkeypatch):
    """The record names only the type of the GPUs, and promises no equal bits."""
    given: list[tuple[str, bool]] = []

    @contextlib.contextmanager
    def process_context(*, fresh: bool = False):
        yield fresh

    monkeypatch.setattr(process_pool, "process_context", process_context)
    monkeypatch.setattr(process_pool, "Worker", lambda fresh, content, device: given.append((str(device), fresh)))
    monkeypatch.setattr(process_pool, "prepare_torch", lambda device, precision, model: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    pool = process_pool.ProcessPool(prepare(tiny_experiment()), 3, ("cuda:0", "cuda:1"))
    assert given == [("cuda:0", True), ("cuda:1", True), ("cuda:0", True)] and str(pool.device) == "cuda:0"
    assert (pool.settings["device"], pool.settings["workers"], pool.settings["bit_equal"]) == ("NVIDIA H200", 3, False)


CHOICES = """
[[choice]]
card = "NVIDIA H200"
network = "wresnet28x2"
norm = "gn"
precision = "tf32"
images = "channels last"
cudnn_benchmark = true
"""


@pytest.fixture
def with_choices(monkeypatch, tmp_path) -> Iterator[None]:
    """Write a `choices.toml` with one measured network."""
    path = tmp_path / "choices.toml"
    path.write_text(CHOICES)
    monkeypatch.setattr(devices, "CHOICES", path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    devices.measured_choices.cache_clear()
    yield
    devices.measured_choices.cache_clear()


def test_order_in_memory_is_the_measured_one_for_the_same_card_network_norm_and_precision(with_choices, monkeypatch):
    card = torch.device("cuda:0")
    model = Model(network="wresnet28x2", norm="gn", norm_groups=8)
    fastest = Choice(images="channels last", cudnn_benchmark=True)
    before = Choice(images="contiguous", cudnn_benchmark=False)
    assert choice_for(card, "tf32", model) == fastest
    assert memory_format(card, "tf32", model) is torch.channels_last
    others = [replace(model, norm="bn"), Model(network="resnet9", norm="gn", norm_groups=8), None]
    assert {choice_for(card, "tf32", other) for other in others} == {before} == {choice_for(card, "fp32", model)}
    assert choice_for(torch.device("cpu"), "fp32", model).memory_format is torch.channels_last
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    assert choice_for(card, "tf32", model) == before


def test_choices_are_of_known_networks_and_are_read_from_the_file() -> None:
    for (card, network, norm, precision), choice in devices.measured_choices().items():
        assert card and precision in get_args(Precision) and choice.images in get_args(devices.Images)
        assert network in NETWORKS and norm in NORMS


def test_cudnn_times_its_algorithms_where_that_was_faster_and_the_record_says_so(with_choices, monkeypatch):
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    card = torch.device("cuda:0")
    model = Model(network="wresnet28x2", norm="gn", norm_groups=8)
    experiment = replace(tiny_experiment(), model=model, precision="tf32")
    try:
        cases: list[tuple[Precision, bool]] = [("tf32", True), ("fp32", False)]
        for precision, timed in cases:
            prepare_torch(card, precision, model)
            assert torch.backends.cudnn.benchmark == timed
            settings = devices.engine_settings("stacked", [card], 1, replace(experiment, precision=precision))
            assert settings["cudnn_benchmark"] == timed
            assert settings["images"] == ("channels last" if timed else "contiguous")
    finally:
        torch.use_deterministic_algorithms(False)
        devices.DETERMINISTIC.fill_uninitialized_memory = True
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.benchmark = flags
    assert "images" not in devices.engine_settings("pool", [torch.device("cpu")], 1, experiment)


def test_precision_is_the_experiment_s_whatever_was_measured(with_choices):
    """A choice says nothing of the precision: it is in the key, and the fastest one is not taken by itself."""
    paper = replace(PAPER, model=Model(network="wresnet28x2", norm="gn", norm_groups=8))
    assert {field.name for field in fields(Choice)} == {"images", "cudnn_benchmark"}
    assert replace(paper, precision="tf32").cell_key != paper.cell_key and paper.precision == "fp32"
