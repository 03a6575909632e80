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


def test_every_model_is_there_and_the_weights_give_the_recorded_accuracy(tmp_path):
    """Loaded as plain PyTorch into the network of the record, on normalised test images.

    The run learns something, so that its accuracy tells one set of weights from another.
    """
    tiny = tiny_experiment()
    experiment = replace(
        tiny,
        federation=replace(tiny.federation, rounds=4, T=8),
        optimizer=replace(tiny.optimizer, lr=0.02),
        data=replace(tiny.data, N_s=200),
        method=TSServerEMA(threshold=0.13, batch_size=8, labelled_batch_size=4, server_batch_size=8, ratio=0.5),
    )
    result = run(experiment, tmp_path)
    folder = run_folder(tmp_path, experiment)
    data = load("digits", None)
    model = from_json(json.loads((folder / "experiment.json").read_text())).model
    mean_C11, std_C11 = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    accuracies = {}
    for path in (folder / "weights").iterdir():
        weights = torch.load(path, weights_only=True)
        assert all(tensor.is_contiguous() for tensor in weights.values())  # in plain order
        network = build(model, data.image_shape, data.num_classes, seed=0).eval()
        network.load_state_dict(weights)
        with torch.no_grad():
            logits_ND = network((data.test_images_NCHW.float() / 255 - mean_C11) / std_C11)
        accuracies[path.name] = float((logits_ND.argmax(1) == data.test_labels_N).double().mean())
    assert accuracies.keys() == {"student.pt", "teacher.pt"} and len({*accuracies.values()}) == 2
    recorded = result["last"]["test/accuracy"]
    assert recorded > 0.15 and any(value == pytest.approx(recorded, abs=1e-9) for value in accuracies.values())
