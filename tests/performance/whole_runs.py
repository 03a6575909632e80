"""Measure the causes of whole runs' CPU seconds, for a run of each kind.

    python -m tests.performance.whole_runs [--rounds 6] [--json results/benchmarks/whole_runs.json]

One process and one thread do the work of one worker of the pool, with its record. The functions below are timed from
outside, each without those that it calls. "bare steps" is measured beside: one job in three is trained once more on
batches that are there already, by nothing but the method's loss, backward and SGD in one kernel.
"""

import argparse
import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from benchmark.experiment import Experiment
from benchmark.federated import batches, engines, evaluate, jobs, module
from benchmark.federated.batches import LocalBatch
from benchmark.federated.local import LocalModule
from benchmark.federated.trees import copied
from benchmark.papers.items import items
from benchmark.records import recorder
from benchmark.records import run as runs
from tests.performance.works import sgd_of

# Name of the run -> item, profile, cell.
RUNS = {
    "SSFL, demo": ("ssfl/tab2", "demo", "Grouping/full"),
    "SSFL, laptop": ("ssfl/tab2", "laptop", "Grouping/full"),
    "RSCFed, laptop": ("rscfed/tab6", "laptop", "RSCFed/clients=10"),
    "SemiFL, laptop": ("semifl/tab4", "laptop", "SemiFL/K=2"),
    "FedSwitch, laptop": ("fedswitch/fig4", "laptop", "FedSwitch/alpha=0.1"),
}
# What is timed -> the functions that do it.
TIMED: dict[str, list[tuple[Any, str]]] = {
    "start": [(runs, "prepare")],
    "views": [(batches, "make")],
    "labels on receipt": [(jobs.JobReader, "predict")],
    "statistics of norms": [(jobs.JobReader, "statistics")],
    "jobs": [(jobs.JobRunner, "run")],
    "averages": [(module, "play_round")],
    "evaluation": [(evaluate.Evaluator, "measure")],
    "records": [(recorder.Recorder, "on_train_batch_end"), (recorder.Recorder, "save"), (recorder.Recorder, "publish")],
}
EVERY = 3  # one job in so many is trained once more, bare


class Clock:
    """CPU seconds by name; a function's own are those without the timed functions that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.named(name):
                return function(*args, **kwargs)

        return wrapped

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        began = time.process_time()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = time.process_time() - began
            self.seconds[name] += whole - self._inner.pop()
            self._inner[-1] += whole


class Train:
    """`train`, and for one job in EVERY of its kind the same steps once more, bare, which are nobody's seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._train = clock, jobs.train
        self._jobs, self._steps, self._bare = 0, 0, (0, 0.0)

    def __call__(self, local: LocalModule, taken: Iterable[LocalBatch]) -> Any:
        with self._clock.named("steps"):
            held = list(taken)
            start = {name: tensor.clone() for name, tensor in local.trainable.state_dict().items()}
            found = self._train(local, held)
        self._jobs += 1
        self._steps += len(held)
        if self._jobs % EVERY == 1:
            with self._clock.named("beside"):
                trained = {name: tensor.clone() for name, tensor in local.trainable.state_dict().items()}
                local.trainable.load_state_dict(start)
                began = time.process_time()
                bare_steps(local, held)
                steps, seconds = self._bare
                self._bare = (steps + len(held), seconds + time.process_time() - began)
                local.trainable.load_state_dict(trained)
        return found

    @property
    def bare(self) -> float:
        """Return the CPU seconds of all steps if they were bare steps."""
        steps, seconds = self._bare
        return seconds / steps * self._steps


def bare_steps(local: LocalModule, held: Sequence[LocalBatch]) -> None:
    optimizer, draw = sgd_of(local.settings, local.trainable), torch.Generator()
    step = replace(local.step, private=copied(local.step.private), notes=copied(local.step.notes))
    for batch in held:
        optimizer.zero_grad(set_to_none=True)
        step.batch, step.drawn = batch.streams, local.update.draws(draw, batch.streams)
        loss, _ = getattr(local.update, local.update.phases[batch.phase])(step)
        loss.backward()
        optimizer.step()


def seconds_of(experiment: Experiment, folder: Path) -> dict[str, float]:
    """Return the CPU seconds of the run by cause: "bare steps", "around steps" and the names of TIMED. The time outside
    all timed functions is "other".
    """
    clock = Clock()
    train = Train(clock)
    began = time.process_time()
    with ExitStack() as patched:
        # The pool's local step, in this process.
        patched.enter_context(patch.object(engines, "JobRunner", partial(jobs.JobRunner, fast=True)))
        patched.enter_context(patch.object(jobs, "train", train))
        for name, functions in TIMED.items():
            for owner, function in functions:
                patched.enter_context(patch.object(owner, function, clock.timed(name, getattr(owner, function))))
        runs.run(experiment, folder)
    seconds = dict(clock.seconds)
    total = time.process_time() - began - seconds.pop("beside")
    around = seconds.pop("steps") - train.bare + seconds.pop("jobs")
    seconds = {"bare steps": train.bare, "around steps": around, **seconds}
    return {**seconds, "other": total - sum(seconds.values())}


def shortened(item: str, profile: str, label: str, rounds: int) -> Experiment:
    """Return the cell without its warm start, with only its first rounds."""
    (found,) = items([item], profile)
    cell = found.cell(label).experiment
    federation = replace(cell.federation, rounds=rounds)
    return replace(cell, method=replace(cell.method, warm_start_rounds=0), federation=federation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, help="file for the result")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name, (item, profile, cell) in RUNS.items():
        experiment = shortened(item, profile, cell, options.rounds)
        with TemporaryDirectory() as folder:
            found[name] = seconds_of(experiment, Path(folder))
        total = sum(found[name].values())
        print(f"{name}: {total:.1f} CPU s, {options.rounds} rounds")
        for part, seconds in found[name].items():
            print(f"  {part:20} {seconds:7.2f} s {100 * seconds / total:5.1f} %", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"rounds": options.rounds, "cpu_seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
