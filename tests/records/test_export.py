"""The exported weights give the recorded accuracy in plain PyTorch."""

import json
from dataclasses import replace

import pytest
import torch

from benchmark.data.datasets import load
from benchmark.experiment import from_json
from benchmark.methods.ts_server_ema import TSServerEMA
from benchmark.models.build import build
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


def test_the_weights_give_the_recorded_accuracy(tmp_path):
    """Loaded as plain PyTorch into the network of the record, on normalised test images."""
    result = run(LEARNS, tmp_path)
    folder = run_folder(tmp_path, LEARNS)
    data = load("digits", None)
    model = from_json(json.loads((folder / "experiment.json").read_text())).model
    network = build(model, data.image_shape, data.num_classes, seed=0).eval()
    (path,) = (folder / "weights").glob("*.pt")
    network.load_state_dict(torch.load(path, weights_only=True))
    mean_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    with torch.no_grad():
        logits_ND = network((data.test_images_NCHW.float() / 255 - mean_C11) / std_C11)
    accuracy = float((logits_ND.argmax(1) == data.test_labels_N).double().mean())
    assert accuracy == pytest.approx(result["last"]["test/accuracy"], abs=1e-9) and accuracy > 0.3


def test_every_model_is_there_in_plain_order(tmp_path):
    method = TSServerEMA(threshold=0.13, batch_size=8, labelled_batch_size=4, server_batch_size=8, ratio=0.5)
    experiment = replace(TINY, method=method)
    run(experiment, tmp_path)
    folder = run_folder(tmp_path, experiment) / "weights"
    assert {path.name for path in folder.iterdir()} == {"student.pt", "teacher.pt"}
    for path in folder.glob("*.pt"):
        weights = torch.load(path, weights_only=True)
        assert all(tensor.is_contiguous() for tensor in weights.values()) and len(weights) > 4
