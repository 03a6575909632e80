"""Find the kinds of jobs that train together on a GPU, without a GPU.

A cell's rounds run on noise with the shape of the data. Each kind of job runs one step on the CPU in float64,
separately and together with a second job, like the comparison of the stacked engine before it trains
(`benchmark.federated.stacked.guard`).
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.stacked.engine import waves
from benchmark.federated.stacked.kinds import Kind, Member, kind_of
from benchmark.federated.stacked.runner import GroupRunner
from benchmark.federated.trees import copied
from benchmark.methods.calls import first_state, play_round
from benchmark.methods.protocol import Job, Outcome, Reader, Tree
from sweeps.blank_data import SureReader, blank_environment

COHORT = 10  # most jobs per round, if the method allows it
ROUNDS = 2


class Examiner(GroupRunner):
    """Compares the first step of each kind of job, and trains each job on one batch."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.reasons: dict[str, str] = {}  # by kind: the reason why its jobs train one at a time; empty if none

    def play(self, job_of: Mapping[int, Job], number: int, kept: MutableMapping[str, Tree]) -> dict[int, Outcome]:
        """Compare the kinds of these jobs, and return the outcome of one batch for each job."""
        kinds: dict[Kind, list[Member]] = defaultdict(list)
        for index, job in job_of.items():
            begun = self._begin(index, job, number, copied(kept.get(job.state_key)), "train", ())
            if isinstance(begun, Member):
                kinds[kind_of(begun, self._environment.experiment.optimizer)].append(begun)
        for kind, members in kinds.items():
            self.examination.findings_of(kind, members)
            self.reasons[kind.name] = self.counts.reasons.get(kind.name, "")
        outcomes = {}
        for index, job in job_of.items():
            outcomes[index] = outcome = self.run(job, number, copied(kept.get(job.state_key)))
            if outcome.private is not None:
                kept[job.state_key] = outcome.private
        return outcomes

    def _training(self, job: Job, *arguments: Any, **named: Any) -> Any:
        module, batches = super()._training(job, *arguments, **named)
        return module, islice(iter(batches), len(job.update.phases))

    def _asking_reader(self, job: Job, *arguments: Any) -> None:
        """Return None, so that each job makes separate passes with `SureReader`."""

    def _reader(self, job: Job, round_number: int, purpose: str) -> Reader:
        return SureReader(self._environment, job, round_number)


def kinds_of(experiment: Experiment) -> dict[str, str]:
    """Return the kinds of jobs of a run, each with the reason why its jobs train one at a time.

    The reason is empty if they train together.
    """
    environment = on_noise(experiment)
    method = environment.experiment.method
    examiner = Examiner(environment)
    threads = torch.get_num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reasons are returned
        state = first_state(method, environment.setup())
        kept: dict[str, Tree] = dict(state.clients)
        for number in range(1, ROUNDS + 1):

            def fit(jobs: Sequence[Job], number: int = number) -> Iterator[Outcome]:
                outcomes: dict[int, Outcome] = {}
                for wave in waves(jobs):
                    outcomes |= examiner.play({index: jobs[index] for index in wave}, number, kept)
                return (outcomes[index] for index in range(len(jobs)))

            state, _ = play_round(method, replace(state, clients=dict(kept)), environment.world(number, fit))
    torch.set_num_threads(threads)
    return examiner.reasons


def one_at_a_time(experiments: Iterable[Experiment]) -> dict[str, str]:
    """Return the kinds of jobs of these runs that train one at a time, with the reasons."""
    reasons: dict[str, str] = {}
    seen = set()
    for experiment in experiments:
        what = repr((experiment.method, experiment.model, experiment.optimizer.rule, experiment.data.label_setting))
        if what not in seen:
            seen.add(what)
            reasons |= {kind: reason for kind, reason in kinds_of(experiment).items() if reason}
    return reasons


def on_noise(experiment: Experiment) -> Environment:
    """Return a `blank_environment` with noise as images, few jobs per round and equally large clients."""
    federation = experiment.federation
    small = replace(experiment, federation=replace(federation, C=min(COHORT, federation.C)), precision="fp32")
    try:
        known = blank_environment(small)
    except ConfigError:  # the method needs its whole cohort
        known = blank_environment(replace(experiment, precision="fp32"))
    data = known.data
    noisy = replace(
        data,
        train_images_NCHW=noise(len(data.train_labels_N), data.image_shape),
        test_images_NCHW=noise(len(data.test_labels_N), data.image_shape),
    )
    return prepare(known.experiment, data=noisy, split=lambda labels_N, spec: known.split)


def noise(N: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return N images that are overlapping windows of one sequence of random bytes."""
    channels, height, width = shape
    row = torch.randint(0, 256, (N + channels * height * width,), dtype=torch.uint8)
    return row.as_strided((N, *shape), (1, height * width, width, 1))
