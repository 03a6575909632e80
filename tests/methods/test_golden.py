"""The golden traces, and beside them one number derived without any of the suite's training code."""

import json

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from benchmark.data.augment import make_views
from benchmark.federated.batches import passes
from benchmark.federated.environment import prepare
from benchmark.methods.protocol import SERVER
from benchmark.streams import numpy_stream, torch_stream
from tests.methods.golden import BASE, FOLDER, TRACES, trace


@pytest.mark.parametrize("name", TRACES)
def test_the_trace_has_not_moved(name):
    """Equal up to what another processor's order of additions may change."""
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    for mine, theirs in zip(trace(TRACES[name]), golden, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(mine[key] == pytest.approx(theirs[key], rel=2e-4, abs=1e-7) for key in mine)


def test_no_trace_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TRACES)


def convolution(images_NCHW, weight_OIRS, bias_O):
    """A 3x3 convolution padded by one, in NumPy."""
    padded = np.pad(images_NCHW, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nihwrs,oirs->nohw", windows, weight_OIRS) + bias_O[None, :, None, None]


def group_norm(images_NCHW, groups, weight_C, bias_C):
    N, C, H, W = images_NCHW.shape
    grouped = images_NCHW.reshape(N, groups, -1)
    normal = (grouped - grouped.mean(axis=2, keepdims=True)) / np.sqrt(grouped.var(axis=2, keepdims=True) + 1e-5)
    return normal.reshape(N, C, H, W) * weight_C[None, :, None, None] + bias_C[None, :, None, None]


def forward(w, images_NCHW):
    """The tiny network in NumPy, float64: logits_ND."""
    hidden = np.maximum(group_norm(convolution(images_NCHW, w["conv1.weight"], w["conv1.bias"]), 4, *norm(w, 1)), 0)
    hidden = convolution(hidden, w["conv2.weight"], w["conv2.bias"])
    N, C, H, W = hidden.shape
    pooled = hidden.reshape(N, C, H // 2, 2, W // 2, 2).max(axis=(3, 5))
    hidden = np.maximum(group_norm(pooled, 4, *norm(w, 2)), 0).reshape(N, -1)
    hidden = np.maximum(hidden @ w["fc1.weight"].T + w["fc1.bias"], 0)
    return hidden @ w["fc2.weight"].T + w["fc2.bias"]


def norm(w, number):
    return w[f"norm{number}.weight"], w[f"norm{number}.bias"]


def test_the_server_s_first_loss_by_numpy():
    """Eq. 3 on the first batch at the initial weights: the network, the softmax and the mean in NumPy.

    Two local steps are averaged in the record; the experiment here takes one.
    """
    from dataclasses import replace

    from tests.federated.helpers import module_of

    experiment = replace(BASE, federation=replace(BASE.federation, T=1))
    environment = prepare(experiment)
    module = module_of(experiment, environment)
    weights = {name: value.double().numpy() for name, value in environment.network().state_dict().items()}
    module.training_step(1, 0)

    part = environment.part(SERVER, "labelled")
    names = ("train", "round", 1, "client", SERVER, "draw", 0, "labelled")
    (order,) = passes(len(part), 8, 1, True, numpy_stream(0, *names, "order"))
    at = part.positions_N[torch.from_numpy(order)]
    data = environment.data
    views = make_views(
        data.train_images_NCHW[at],
        ("weak",),
        environment.augmentation,
        data.mean,
        data.std,
        torch_stream(0, *names, "augmentation"),
    )
    log_probabilities_ND = log_softmax(forward(weights, views["weak"].double().numpy()), axis=1)
    expected = -log_probabilities_ND[np.arange(8), data.train_labels_N[at].numpy()].mean()
    assert module.metrics["server/loss"] == pytest.approx(expected, rel=1e-5)
