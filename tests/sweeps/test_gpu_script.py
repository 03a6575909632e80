"""`python -m tests.performance.gpu` on a CPU: all it does but the GPU's own times."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmark.federated.devices import Choice, usual_choice
from sweeps.cards import ENGINES, Row, entries
from tests.performance import gpu
from tests.performance.gpu import SETTINGS, Bench, Setting, TimeUp, ending_after, main, run_tests, shrunk
from tests.performance.works import environment_of

LAPTOP = next(iter(SETTINGS))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Setting]:
    """Return the laptop's network only, with two jobs."""
    monkeypatch.setattr(gpu, "SETTINGS", {LAPTOP: shrunk(SETTINGS[LAPTOP])})
    return gpu.SETTINGS


def test_the_settings_are_the_papers() -> None:
    """The networks and batches of the issue, each with the data that it can be prepared with."""
    found = {(s.work.experiment.model.network, s.work.experiment.method.batch_size) for s in SETTINGS.values()}
    papers = {("emnist_cnn", 64), ("wresnet28x2", 10), ("rscfed_cnn", 64), ("resnet18_mlp", 12), ("resnet9", 100)}
    assert papers | {("resnet8x4", 256), ("small_cnn", 16)} <= found
    assert SETTINGS[LAPTOP].jobs == 160
    for setting in SETTINGS.values():
        assert setting.jobs == setting.work.experiment.federation.C


@pytest.mark.parametrize("label", SETTINGS)
def test_every_setting_can_be_prepared_whole_and_for_a_trial(label: str) -> None:
    for setting in (SETTINGS[label], shrunk(SETTINGS[label])):
        experiment = setting.work.experiment
        federation = replace(experiment.federation, K=setting.jobs, C=setting.jobs)
        environment = environment_of(replace(setting.work, experiment=replace(experiment, federation=federation)))
        assert all(environment.sizes[client] for client in range(setting.jobs))


@pytest.mark.slow
def test_a_trial_writes_rows_of_whole_rounds(small: Mapping[str, Setting], tmp_path: Any, capsys: Any) -> None:
    """A time per engine in the usual order, and the fastest engine's in the three other ways."""
    path = tmp_path / "gpu.json"
    for _ in range(2):  # the second replaces the first
        main(["--device", "cpu", "--quick", "--no-tests", "--json", str(path)])
    (entry,) = entries(path)
    assert entry["quick"] and entry["complete"] and {"torch", "cuda", "cudnn", "driver", "date", "code"} <= entry.keys()
    rows = entry["rows"]
    assert len(rows) == 2 + 3 and not any(row["error"] for row in rows)
    assert [row["engine"] for row in rows[:2]] == list(ENGINES[:2])
    usual = usual_choice("fp32")
    assert {(row["images"], row["cudnn_benchmark"]) for row in rows[:2]} == {(usual.images, False)}
    assert len({(row["images"], row["cudnn_benchmark"]) for row in rows}) == 4
    for row in rows:
        assert row["ms"] > 0 and row["steps_per_second"] == pytest.approx(1000 / row["ms"]) and row["peak_mib"] > 0
        assert row["gflop"] == rows[0]["gflop"] > 0 and row["launches"] > 10
    stacked = next(row for row in rows if row["engine"] == "stacked")
    assert stacked["jobs_at_once"] == 2 and rows[0]["jobs_at_once"] == 1
    assert "| " + LAPTOP in capsys.readouterr().out


def test_flops_are_those_of_one_jobs_step(small: Mapping[str, Setting]) -> None:
    """A pass without gradient, one with it, and one and a backward pass at the server: none is counted twice."""
    bench = Bench("cpu", quick=True)
    bench.measure(LAPTOP, "reference", "fp32", usual_choice("fp32"))
    (row,) = bench.rows
    experiment = small[LAPTOP].work.experiment
    federation = replace(experiment.federation, K=2, C=2)
    environment = environment_of(replace(small[LAPTOP].work, experiment=replace(experiment, federation=federation)))
    network = environment.network()
    images_NCHW = torch.zeros(4, *environment.data.image_shape)
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        network(images_NCHW)
    forward = counted.get_total_flops() / 1e9
    assert 2 * forward < row.gflop < 6 * forward


def test_an_order_in_memory_reaches_the_network(small: Mapping[str, Setting], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    built = gpu.ReferenceEngine

    def engine(environment: Any, device: str) -> Any:
        weight = next(tensor for tensor in environment.network(device=device).parameters() if tensor.dim() == 4)
        seen.append(weight.is_contiguous(memory_format=torch.channels_last))
        return built(environment, device)

    monkeypatch.setattr(gpu, "ReferenceEngine", engine)
    monkeypatch.setattr(
        gpu, "SETTINGS", {LAPTOP: shrunk(SETTINGS["RSCFed Table 1: its CNN, batch 64"])}
    )  # of images with several channels
    bench = Bench("cpu", quick=True)
    for images in ("contiguous", "channels last"):
        bench.measure(LAPTOP, "reference", "fp32", Choice(images=images))
    assert seen == [False, True] and not any(row.error for row in bench.rows)


@pytest.mark.slow
def test_an_error_is_a_row_and_the_others_are_measured(
    small: Mapping[str, Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(row: Row, environment: Any, device: str, plain: Any = gpu.engine_of) -> Any:
        if row.engine == "reference":
            return plain(row, environment, device)
        raise torch.OutOfMemoryError("too much") if row.engine == "captured" else RuntimeError("no\nkernel")

    monkeypatch.setattr(gpu, "engine_of", failing)
    bench = Bench("cpu", quick=True)
    bench.engines = ENGINES
    bench.measure_all([LAPTOP], ["fp32"])
    assert [row.error for row in bench.rows[:3]] == ["", "RuntimeError: no kernel", "out of memory"]
    assert bench.fastest(LAPTOP, "fp32") == "reference" and len(bench.rows) == 6


@pytest.mark.slow
def test_a_limit_of_jobs_at_once_is_tried_without(
    small: Mapping[str, Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that takes fewer jobs than half of a round's at once is measured with all of them, too."""
    monkeypatch.setattr("benchmark.federated.stacked.runner.FLOPS_PER_TICK", 1.0)
    monkeypatch.setattr(gpu, "shrunk", lambda setting: replace(shrunk(setting), jobs=3))
    bench = Bench("cpu", quick=True)
    bench.measure_all([LAPTOP], ["fp32"])
    plain, more = [row for row in bench.rows if row.engine == "stacked" and row.way == ("contiguous", False)]
    assert (plain.most, plain.jobs_at_once, more.most, more.jobs_at_once) == (None, 1, 3, 3)
    assert bench.fastest(LAPTOP, "fp32") in ("reference", "stacked")


def test_it_stops_by_the_clock_with_what_it_has(
    small: Mapping[str, Setting], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A measurement that never ends, after a first one: the file has the first."""

    def measure(self: Bench, label: str, engine: str, *rest: Any, whole: Any = Bench.measure) -> None:
        if engine != "reference":
            while True:
                try:
                    time.sleep(0.01)
                except Exception:  # as engines do
                    continue
        whole(self, label, engine, *rest)

    monkeypatch.setattr(Bench, "measure", measure)
    began = time.monotonic()
    main(["--device", "cpu", "--quick", "--no-tests", "--minutes", "0.15", "--json", str(tmp_path / "gpu.json")])
    assert time.monotonic() - began < 30
    (entry,) = entries(tmp_path / "gpu.json")
    assert not entry["complete"] and len(entry["rows"]) == 1


def test_time_up_passes_handlers_of_errors() -> None:
    with pytest.raises(TimeUp), ending_after(0.05):
        for _ in range(1000):
            with contextlib.suppress(Exception):
                time.sleep(0.01)


def test_tests_have_a_limited_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A test that sleeps is ended with its process; a failed one is named."""
    (tmp_path / "tests" / "federated").mkdir(parents=True)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    file = tmp_path / "tests" / "federated" / "test_cuda.py"
    file.write_text("def test_right():\n    assert True\n\n\ndef test_wrong():\n    assert False\n")
    found = run_tests(60)
    assert "1 failed, 1 passed" in found["result"] and [name.split("::")[1] for name in found["failed"]] == [
        "test_wrong"
    ]
    file.write_text("import time\n\n\ndef test_long():\n    time.sleep(600)\n")
    found = run_tests(3)
    assert found["seconds"] < 20 and "time" in found["result"]


def test_a_card_that_is_not_here_is_refused_before_anything_is_measured() -> None:
    command = [sys.executable, "-m", "tests.performance.gpu", "--device", "cuda:99"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=gpu.ROOT)
    assert done.returncode == 1 and "cuda:99" in done.stderr and not done.stdout


def test_the_file_is_json_that_reads_back(tmp_path: Any) -> None:
    path = tmp_path / "a" / "gpu.json"
    for card in ("one", "two", "one"):
        gpu.write(path, {"card": card, "rows": []})
    assert [entry["card"] for entry in json.loads(path.read_text())["cards"]] == ["two", "one"]
