"""Our own engine on the common work: what `fssl run` does with work A, evaluation and records left out.

    python -m tests.performance.peers.ours --processes 2 --channels-last

Every round goes through Lightning's Trainer, the method and the ledger of what is sent.
"""

import numpy as np
import pytorch_lightning as pl
import torch

from benchmark.data.datasets import DataSet
from benchmark.data.labelling import Held
from benchmark.data.split import Split
from benchmark.experiment import Evaluation, Experiment, Federation
from benchmark.federated.environment import Environment
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule, Rounds
from benchmark.federated.trainer import build_trainer
from benchmark.federated.workers import CpuEngine
from benchmark.methods.objectives import CRL
from benchmark.methods.protocol import Weights
from benchmark.methods.ssfl import SSFL
from benchmark.optim.sgd import SGD, Constant
from tests.performance.peers.laps import Laps, arguments, report, say
from tests.performance.peers.work import (
    LEARNING_RATE,
    MEAN,
    MODEL,
    MOMENTUM,
    NUM_CLASSES,
    STD,
    THRESHOLD,
    WEIGHT_DECAY,
    Work,
    images_of,
)


def experiment_of(work: Work, rounds: int) -> Experiment:
    """The common work as an experiment; one round longer than is run, because the last round is always tested."""
    return Experiment(
        model=MODEL,
        method=SSFL(objective=CRL(threshold=THRESHOLD), batch_size=work.batch, server_batch_size=work.batch),
        federation=Federation(K=work.clients, C=work.clients, T=work.steps, rounds=rounds + 1),
        optimizer=SGD(lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, schedule=Constant()),
        evaluation=Evaluation(every=10**6),
        seed=work.seed,
    )


def environment_of(work: Work, rounds: int) -> Environment:
    """The holders' synthetic images one after another, the server's first."""
    parts = [images_of(work, holder) for holder in work.holders]
    images_NCHW = torch.cat([images for images, _ in parts])
    labels_N = torch.cat([labels for _, labels in parts])
    server_N, *clients = np.split(np.arange(len(labels_N)), len(work.holders))
    experiment, none_N = experiment_of(work, rounds), np.zeros(0, dtype=np.int64)
    data = DataSet(
        name="synthetic",
        train_images_NCHW=images_NCHW,
        train_labels_N=labels_N,
        test_images_NCHW=images_NCHW[:1],
        test_labels_N=labels_N[:1],
        classes=tuple(map(str, range(NUM_CLASSES))),
        mean=MEAN,
        std=STD,
        content_hash="",
    )
    split = Split(
        server_N=server_N,
        validation_N=none_N,
        clients=tuple(clients),
        num_classes=NUM_CLASSES,
        partition=experiment.partition,
        seed=work.seed,
    )
    held = Held(labelled=(none_N,) * work.clients, unlabelled=tuple(clients), hidden=True)
    return Environment(experiment=experiment, data=data, split=split, held=held)


class Clock(pl.Callback):
    """Notes when a round has ended, and the first mean."""

    def __init__(self, laps: Laps) -> None:
        self._laps = laps
        self.after_first: Weights | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._laps.lap()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        self._laps.lap()
        if self.after_first is None:
            assert isinstance(pl_module, FederatedModule)
            self.after_first = next(iter(pl_module.models().values()))


def main() -> None:
    options = arguments(__doc__)
    options.setup.apply()
    keep_freed_memory()
    environment = environment_of(options.work, options.rounds)
    clock = Clock(laps := Laps())
    with CpuEngine(environment, workers=options.processes, confident_only=False) as engine:
        trainer = build_trainer([clock])
        trainer.fit(FederatedModule(environment, engine), Rounds(range(1, options.rounds + 1)))
    assert clock.after_first is not None
    say({"peer": "ours", **report(options, laps, dict(clock.after_first), ["pytorch-lightning"])})


if __name__ == "__main__":
    main()
