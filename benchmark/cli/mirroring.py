"""`--wandb` of the commands that train: a mirror beside the run, begun with it and ended with its exit code."""

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.tracking.folders import run_folder
from benchmark.tracking.mirror import WandbMirror, labels_of, mode_asked
from benchmark.tracking.reading import read_run


@contextlib.contextmanager
def mirrored(
    options: argparse.Namespace, experiment: Experiment, words: Mapping[str, Any]
) -> Iterator[list[pl.Callback]]:
    """The callbacks that mirror the run, none where no mirror is wanted; `words`: what it was asked for with.

    A run that another process has finished is mirrored from its record. Raises ConfigError.
    """
    mode = mode_asked(options.wandb)
    if mode is None:
        yield []
        return
    folder, place = run_folder(options.results, experiment), Path(options.results) / "wandb"
    mirror = WandbMirror(
        experiment, lambda: read_run(folder), labels=labels_of(experiment, words), mode=mode, place=place, folder=folder
    )
    try:
        yield [mirror]
    except FsslError as error:
        if mirror.begun:  # a run that was never begun here has nothing to show
            mirror.finish(error.exit_code)
        raise
    mirror.finish(0)
