"""Observe a method's own measures on test images (`Method.measures`), apart from the numbers of its rounds."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytorch_lightning as pl
import torch

from benchmark.federated.evaluate import TestImages
from benchmark.federated.module import FederatedModule, Observer
from benchmark.methods.calls import measures_of
from benchmark.methods.protocol import Method
from benchmark.streams import global_states, seed_globals, set_global_states

Values = Mapping[str, Sequence[float | None]]  # name -> a value for each measured round, or None if it is not finite


class OwnMeasures(Observer):
    """An observer that calls the method's `measures` after each round that is tested.

    It draws from a separate stream and does not change the global generators, so that no other number depends on
    it. `before` is the summary of the rounds before a resume.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        known = before or {}
        self._rounds: list[int] = list(known.get("round", ()))
        self._values: dict[str, list[float | None]] = {}
        for name, values in known.get("values", {}).items():
            self._values[name] = list(values)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        method, number, rounds = pl_module.experiment.method, pl_module.rounds_done, pl_module.experiment.federation
        is_tested = number % pl_module.experiment.evaluation.every == 0 or number == rounds.rounds
        if not is_tested or not measures_something(method):
            return
        states = global_states()
        seed_globals(pl_module.experiment.seed, "measures", number)
        try:
            images = TestImages(pl_module.environment, pl_module.engine.device)
            with torch.no_grad():
                measured = measures_of(method, pl_module.state, images)
        finally:
            set_global_states(states)
        for name in measured.keys() - self._values.keys():
            self._values[name] = [None] * len(self._rounds)
        self._rounds.append(number)
        for name, values in self._values.items():
            value = measured.get(name)
            values.append(value if value is not None and math.isfinite(value) else None)

    def summary(self) -> dict[str, Any]:
        """Return the measured rounds and the values of each measure as JSON values; empty if nothing was measured."""
        if not self._values:
            return {}
        values = {name: list(column) for name, column in sorted(self._values.items())}
        return {"round": list(self._rounds), "values": values}


def measures_something(method: Any) -> bool:
    """Return whether the method defines `measures`. A custom method need not inherit from `Method`."""
    return getattr(type(method), "measures", Method.measures) is not Method.measures
