"""What Lightning and the orchestrator cost: rounds through the Trainer against a bare PyTorch loop of the same steps.

    python -m tests.performance.lightning_overhead [--rounds 12]

Both train SSFL Table 2's full cohort at the laptop profile, on the same batches; rounds alternate in one process. The
bare loop knows no Lightning, no jobs, no records: a network, `torch.optim.SGD`, a mean in float64.
"""

import argparse
import copy
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytorch_lightning as pl
import torch
from torch.nn import functional

from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.federated.batches import JobBatches
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.trainer import build_trainer, fit
from benchmark.methods.protocol import SERVER, Job, Key, Limit, Stream, Weights
from benchmark.papers.catalogue import items
from benchmark.records.lease import Lease
from benchmark.records.recorder import Recorder


class BareLoop:
    """The same local steps without Lightning."""

    def __init__(self, environment: Environment) -> None:
        self.environment, self.sgd = environment, environment.experiment.optimizer
        self.network = environment.network().train()
        self.average: Weights = {name: value.clone() for name, value in self.network.state_dict().items()}

    def round(self, number: int) -> None:
        method, federation = self.environment.experiment.method, self.environment.experiment.federation
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self.average.items()}
        for holder in (SERVER, *range(federation.C)):
            part: Literal["labelled", "unlabelled"] = "labelled" if holder == SERVER else "unlabelled"
            views = ("weak",) if holder == SERVER else ("weak", "strong")
            stream = Stream(part=part, batch_size=method.batch_size, views=views)
            job = Job(
                key=Key(client=holder),
                update=None,  # type: ignore[arg-type]  # JobBatches does not ask for it
                receives={},
                data={part: stream},
                limit=Limit(steps=federation.T),
            )
            self.network.load_state_dict(self.average)
            self.steps(JobBatches(self.environment, job, number), part, number)
            for name, value in self.network.state_dict().items():
                total[name] += value
        self.average = {name: (value / (federation.C + 1)).float() for name, value in total.items()}

    def steps(self, batches: JobBatches, part: str, number: int) -> None:
        T, rounds = self.environment.experiment.federation.T, self.environment.experiment.federation.rounds
        optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=self.sgd.lr,
            momentum=self.sgd.momentum,
            nesterov=True,
            weight_decay=self.sgd.weight_decay,
            foreach=True,
        )
        for index, batch in enumerate(batches):
            streams = batch.streams[part]
            factor = self.sgd.schedule.factor((number - 1) * T + index, T * rounds)
            optimizer.param_groups[0]["lr"] = self.sgd.lr * factor
            if streams.labels_N is not None:
                loss = functional.cross_entropy(self.network(streams.views["weak"]), streams.labels_N)
            else:
                with torch.no_grad():
                    confidence, labels = self.network(streams.views["weak"]).softmax(dim=1).max(dim=1)
                losses = functional.cross_entropy(self.network(streams.views["strong"]), labels, reduction="none")
                loss = (losses * (confidence >= 0.95)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Alternate(pl.Callback):
    """After every round through the Trainer, one of the bare loop; notes the CPU seconds of both."""

    def __init__(self, bare: BareLoop) -> None:
        self.bare = bare
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self._ended = time.process_time()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        now = time.process_time()
        self.ours.append(now - self._ended)  # from the bare loop's end: all of Lightning's bookkeeping is in it
        self.bare.round(pl_module.rounds_done)
        self.theirs.append(time.process_time() - now)
        self._ended = time.process_time()


def measure(rounds: int) -> dict[str, float]:
    """Medians over rounds (the first two dropped), CPU seconds on one thread, and the median of paired ratios."""
    torch.set_num_threads(1)
    keep_freed_memory()
    (item,) = items(["ssfl/tab2"], "laptop")
    cell = item.cell("FedAvg/full").experiment
    experiment = replace(
        cell,
        method=replace(cell.method, warm_start_rounds=0),
        federation=replace(cell.federation, rounds=rounds),
        evaluation=replace(cell.evaluation, every=10**6),
    )
    environment = prepare(experiment)
    module = FederatedModule(environment, ReferenceEngine(environment))
    alternate = Alternate(BareLoop(copy.copy(environment)))
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Lease(Path(folder), 1), experiment)
        with recorder.opened({}):
            fit(module, build_trainer([GradientDiversity(), recorder, alternate]))
    ours, theirs = alternate.ours[2:-1], alternate.theirs[2:-1]  # the last round is tested on the test set
    ratios = [mine / bare for mine, bare in zip(ours, theirs, strict=True)]
    difference = max(
        float((module.state.server["average"][name] - value).abs().max())
        for name, value in alternate.bare.average.items()
    )
    return {
        "rounds": len(ours),
        "ours_cpu_seconds": statistics.median(ours),
        "bare_cpu_seconds": statistics.median(theirs),
        "ratio_median": statistics.median(ratios),
        "ratio_least": min(ratios),
        "ratio_most": max(ratios),
        "largest_weight_difference": difference,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    print(json.dumps(measure(parser.parse_args().rounds), indent=1))
