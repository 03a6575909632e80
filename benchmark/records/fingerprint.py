"""Identify a custom network by its initial weights, since its constructor may read files that no source shows."""

import functools
import json
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from benchmark.config import from_plain
from benchmark.data.datasets import DATASETS, load
from benchmark.errors import FsslError
from benchmark.models.build import Model, build
from benchmark.records.sources import imported_class

INITIAL_WEIGHTS = "initial_weights"  # an entry of the manifest: the `fingerprint` of a custom network
SAME_WEIGHTS = 1e-5  # relative; processors differ less than this


def initial_weights(experiment: Mapping[str, Any]) -> dict[str, float]:
    """Return the `fingerprint` of a custom network's initial weights, with seed 0 for all runs.

    The result is empty if the network is not imported or fails.
    """
    name = str(experiment["model"].get("network", ""))
    if ":" not in name or imported_class(name) is None:
        return {}
    return dict(_initial_weights(json.dumps(experiment["model"], sort_keys=True), experiment["data"]["name"]))


@functools.cache
def _initial_weights(model: str, data: str) -> Mapping[str, float]:
    try:
        known = DATASETS.get(data) or load(data)
        return fingerprint(build(from_plain(Model, json.loads(model)), known.image_shape, known.num_classes, seed=0))
    except FsslError:  # training reports the error
        return {}


def fingerprint(network: nn.Module) -> dict[str, float]:
    """Return two numbers that change with the weights: their norm, and their sum weighted by position."""
    norm, moment, position = 0.0, 0.0, 0
    for value in network.state_dict().values():
        flat_N = value.detach().double().flatten()
        norm += float(flat_N @ flat_N)
        for index, total in enumerate(flat_N.abs().split(4096)):
            moment += float(total.sum()) * (1 + (position + index) % 97)
        position += 1 + len(flat_N) // 4096
    numbers = {"norm": math.sqrt(norm), "moment": moment} if math.isfinite(norm) else {}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def different_numbers(here: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """Return the names of the numbers of two fingerprints that differ by more than the rounding of processors."""
    return [name for name in here if not math.isclose(here[name], recorded.get(name, math.nan), rel_tol=SAME_WEIGHTS)]


def forget_weights() -> None:
    """Forget the initial weights that this process has computed, because files may have changed."""
    _initial_weights.cache_clear()
