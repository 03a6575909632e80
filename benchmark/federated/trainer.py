"""The one file that builds Lightning's Trainer: one a run, one device, nothing of its own on disk."""

import logging
import warnings
from collections.abc import Sequence

import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import LightningEnvironment

from benchmark.federated.module import FederatedModule


def build_trainer(callbacks: Sequence[pl.Callback] = ()) -> pl.Trainer:
    """A Trainer whose epoch is the run. What watches a run is passed in; leaving it out changes no number.

    Lightning's own checkpoints, bars and distributed set-up are off: records, progress and engines are ours.
    """
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # A range of round numbers needs no loader workers, and the server never validates through Lightning.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`training_step` returned `None`.*")
    warnings.filterwarnings("ignore", message=".*configure_optimizers.*")
    warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\).*")  # Lightning 2.6 on torch 2.15
    return pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        # What a process sees of a scheduler is nothing to Lightning: the engines are ours.
        plugins=[LightningEnvironment()],
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )


def fit(module: FederatedModule, trainer: pl.Trainer) -> None:
    """Run the rounds that remain."""
    remaining = module.remaining_rounds()
    if len(remaining):
        trainer.fit(module, train_dataloaders=remaining)
