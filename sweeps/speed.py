"""What counted work costs in CPU seconds on this machine: a few real jobs through the reference engine, timed.

Images are random and holders those of the plan, so that no data set is needed. What is timed: a job of the plan's own
length from its start to its end (copies of weights, optimizer, augmentation in the run's own portions, local steps),
an image that is only read, one that is tested and scored, and a client's weights on their way into the average and the
diversity. The least of a few repetitions counts, since other work on the machine only adds; to CPU seconds it adds less
than to any other clock. A run of the reference engine, which launchers use, keeps one core busy: on an idle machine its
CPU seconds are its wall time as well.

Legend: N images.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from benchmark.diagnostics.diversity import StreamingDiversity, weight_change
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, Part, weights_of
from benchmark.federated.evaluate import Evaluator, logits_of
from benchmark.federated.memory import keep_freed_memory
from benchmark.methods.averaging import RunningMean
from benchmark.methods.protocol import Job, Limit, Local, LocalUpdate, Reader, Tree, Weights
from sweeps.dry_run import SureReader
from sweeps.work import JobKind, Work

LONGEST_JOB = 1.5  # seconds that the timing of a job may take: one that takes longer is told from its first batches
REPEATS = 5
IMAGES_READ = 256
ROUND_SECONDS = 0.003  # the Trainer's own, the record's line and the observers' share of a round, as measured
RUN_SECONDS = 0.5  # of a run: data, partition, Trainer, checkpoints, weights on disk; 0.15 (digits) to 0.6, as measured


class _Confident:
    """An update that finds all its pseudo-labels confident: what takes longest, whatever the random images say."""

    def __init__(self, update: LocalUpdate, reader: Reader) -> None:
        self._update, self._reader = update, reader

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        return self._update.start(received, private, self._reader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


class Stopwatch:
    """CPU seconds of work on one core; each kind of job is timed once, when it is first asked for."""

    def __init__(self, repeats: int = REPEATS) -> None:
        self._repeats = repeats
        self._known: dict[tuple[object, ...], float] = {}
        self.timed = 0  # measurements made

    def seconds(self, environment: Environment, work: Work) -> float:
        """All of a run but the start of its process."""
        experiment = environment.experiment
        rounds, every = experiment.federation.rounds, experiment.evaluation.every
        tested = -(-rounds // every) * _test_images(environment)
        return (
            RUN_SECONDS
            + sum(jobs * self._with_diversity(environment, work, kind) for kind, jobs in work.jobs.items())
            + self._images(environment, "read", work.total("images_read"), self._time_read)
            + self._images(environment, "tested", tested, self._time_tested)
            + work.total("client_jobs") * self._once(("exchange",), environment, self._time_exchange)
            + rounds * ROUND_SECONDS
        )

    def _with_diversity(self, environment: Environment, work: Work, kind: JobKind) -> float:
        """A job, and its share of the gradients on all of the holder's images that exact diversity asks for."""
        seconds, every = self._job(environment, work, kind), environment.experiment.evaluation.gradient_diversity_every
        if not every:
            return seconds
        holder = work.examples[kind].key.client
        trained = _batches(work, kind) * max(stream.batch_size for _, stream in kind.streams)
        return seconds * (1 + environment.sizes.get(holder, 0) / trained / every)

    def _job(self, environment: Environment, work: Work, kind: JobKind) -> float:
        example, batches = work.examples[kind], _batches(work, kind)
        return self._once(("job", kind, batches), environment, lambda own: self._time_job(own, example, batches))

    def _images(
        self, environment: Environment, what: str, count: float, measure: Callable[[Environment], float]
    ) -> float:
        return count * self._once((what,), environment, measure) if count else 0.0

    def _once(
        self, what: tuple[object, ...], environment: Environment, measure: Callable[[Environment], float]
    ) -> float:
        experiment = environment.experiment
        key = (*what, experiment.data.name, experiment.data.augmentation, experiment.model)
        if key not in self._known:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            keep_freed_memory()
            try:
                self._known[key] = measure(environment)
                self.timed += 1
            finally:
                torch.set_num_threads(threads)
        return self._known[key]

    def _time_job(self, environment: Environment, example: Job, batches: int) -> float:
        """Seconds of a job of so many batches: timed as it is, or, where it is long, by its first batch and a few."""
        engine = ReferenceEngine(environment)

        def job_of(count: int) -> Callable[[], object]:
            job = _timed(example, environment, count)
            return lambda: list(engine.fit([job], 1, {}))

        short = self._least(job_of(1), 1)
        few = min(batches, max(2, int(LONGEST_JOB / max(short, 1e-6))))
        repeats = self._repeats if short * few < LONGEST_JOB else 1
        many = self._least(job_of(few), repeats)
        if few == batches:
            return many
        one = self._least(job_of(1), repeats)
        return many + max(0.0, (many - one) / (few - 1)) * (batches - few)

    def _time_read(self, environment: Environment) -> float:
        network, data = environment.network(), environment.data
        N = min(IMAGES_READ, len(data.train_labels_N))
        part = Part(images_NCHW=data.train_images_NCHW, positions_N=torch.arange(N), labels_N=None, truth_N=None)
        return self._least(lambda: logits_of(network, environment, part, "weak"), self._repeats) / N

    def _time_tested(self, environment: Environment) -> float:
        """Seconds an image: a pass without augmentation, and its share of the scores."""
        data = environment.data
        N = min(IMAGES_READ, len(data.test_labels_N))
        few = replace(data, test_images_NCHW=data.test_images_NCHW[:N], test_labels_N=data.test_labels_N[:N])
        settings = replace(environment.experiment.evaluation, validation=False)
        tester = Evaluator(
            replace(environment, data=few, experiment=replace(environment.experiment, evaluation=settings))
        )
        weights = weights_of(environment.network())
        return self._least(lambda: tester.measure(weights), self._repeats) / N

    def _time_exchange(self, environment: Environment) -> float:
        weights = weights_of(environment.network())
        average, diversity = RunningMean(), StreamingDiversity()

        def exchange() -> None:
            average.add(weights)
            diversity.add(weight_change(weights, weights))

        return self._least(exchange, self._repeats)

    def _least(self, work: Callable[[], object], repeats: int) -> float:
        """After one run to warm up."""
        work()
        times = []
        for _ in range(repeats):
            started = time.process_time()
            work()
            times.append(time.process_time() - started)
        return min(times)


def _batches(work: Work, kind: JobKind) -> int:
    """Batches of a job in the mean, at least one."""
    return max(1, round(work.steps[kind] / work.jobs[kind] / len(kind.update.phases)))


def _timed(example: Job, environment: Environment, batches: int) -> Job:
    """The example with weights of full size, confident pseudo-labels and so many batches."""
    full = weights_of(environment.network(example.network))
    update = cast(LocalUpdate, _Confident(example.update, SureReader(environment, example, 1)))
    return replace(example, update=update, receives=_full_size(example.receives, full), limit=Limit(steps=batches))


def _full_size(tree: Mapping[str, Any], full: Weights) -> Tree:
    """The tree with the network's tensors in the place of stand-ins of their name."""
    return {
        name: _full_size(value, full) if isinstance(value, Mapping) else full.get(name, value)
        for name, value in tree.items()
    }


def _test_images(environment: Environment) -> int:
    if environment.experiment.evaluation.validation:
        return len(environment.split.validation_N)
    return len(environment.data.test_labels_N)
