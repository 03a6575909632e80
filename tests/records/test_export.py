"""The exported weights: what the model card says and how it says to load them."""

import json
import re
import runpy
from dataclasses import replace

import pytest
import torch

from benchmark.data.datasets import load
from benchmark.errors import CannotWrite, Diverged
from benchmark.methods.ts_server_ema import TSServerEMA
from benchmark.records.export import _safe
from benchmark.records.record import run_folder
from benchmark.records.run import run
from tests.conftest import tiny_experiment

TINY = tiny_experiment()
# A run that learns something, so that its accuracy tells one set of weights from another.
LEARNS = replace(
    TINY,
    federation=replace(TINY.federation, rounds=4, T=8),
    optimizer=replace(TINY.optimizer, lr=0.02),
    data=replace(TINY.data, N_s=200),
    method=replace(TINY.method, warm_start_rounds=4),
)


def test_the_card_s_code_gives_the_card_s_accuracy(tmp_path, monkeypatch):
    """On the test images as the card describes them: float32 in 0..1."""
    result = run(LEARNS, tmp_path)
    folder = run_folder(tmp_path, LEARNS) / "weights"
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(folder)
    (tmp_path / "as_the_card_says.py").write_text(code)
    found = runpy.run_path(str(tmp_path / "as_the_card_says.py"))
    data = load("digits", None)
    with torch.no_grad():
        logits_ND = found["classify"](data.test_images_NCHW.float() / 255)
    accuracy = float((logits_ND.argmax(1) == data.test_labels_N).double().mean())
    assert accuracy == pytest.approx(result["last"]["test/accuracy"], abs=1e-9) and accuracy > 0.3
    assert f"- test/accuracy: {accuracy:.4f}" in card
    assert LEARNS.cell_key in card and "ssfl" in card and "4 rounds" in card and "labels at: server" in card


def test_every_model_is_there_and_the_evaluated_one_is_named_first(tmp_path):
    method = TSServerEMA(threshold=0.13, batch_size=8, labelled_batch_size=4, server_batch_size=8, ratio=0.5)
    experiment = replace(TINY, method=method)
    run(experiment, tmp_path)
    folder = run_folder(tmp_path, experiment) / "weights"
    assert {path.name for path in folder.iterdir()} == {"README.md", "student.pt", "teacher.pt"}
    first = re.search(r"`(\w+)\.pt` after the last round", (folder / "README.md").read_text())
    assert first is not None and first.group(1) == method.evaluated
    for path in folder.glob("*.pt"):
        weights = torch.load(path, weights_only=True)
        assert all(tensor.is_contiguous() for tensor in weights.values()) and len(weights) > 4


def test_a_number_of_the_best_round_says_where_it_was_chosen(tmp_path):
    experiment = replace(TINY, evaluation=replace(TINY.evaluation, selection="best_on_test"))
    result = run(experiment, tmp_path)
    card = (run_folder(tmp_path, experiment) / "weights" / "README.md").read_text()
    assert f"The best round was {result['best']['round']} " in card and "chosen on the test set, the number" in card


def test_a_diverged_run_has_no_weights_to_use(tmp_path):
    wild = replace(TINY, optimizer=replace(TINY.optimizer, lr=1e30))
    with pytest.raises(Diverged):
        run(wild, tmp_path)
    assert json.loads((run_folder(tmp_path, wild) / "result.json").read_text())["status"] == "diverged"
    assert not (run_folder(tmp_path, wild) / "weights").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "/root"])
def test_a_model_s_name_leads_nowhere_else(name):
    with pytest.raises(CannotWrite, match="cannot be a file.s name"):
        _safe(name)
    assert _safe("student") == "student"
