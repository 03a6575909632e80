"""Whether a call of `run` trained, or found the run finished."""

import pytorch_lightning as pl


class Begun(pl.Callback):
    """`here` turns true when the first round begins."""

    def __init__(self) -> None:
        self.here = False

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.here = True
