"""Defines `JobRunner`, which runs jobs in this process, one at a time or in windows. Every engine uses it."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmark.data.image_ops import to_device
from benchmark.data.pooled import gaussian_image
from benchmark.errors import Diverged
from benchmark.federated.batches import MOST_BYTES, BatchIterator, JobBatches, LocalBatch, key_names, make_together
from benchmark.federated.environment import Environment, Part
from benchmark.federated.evaluate import chunks, logits_of
from benchmark.federated.local import (
    LocalModule,
    Trained,
    gradient,
    load,
    module_class,
    outcome_from,
    outcome_of,
    seed_job,
    train,
    trained_of,
)
from benchmark.federated.machine import failures_named, faster_products
from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.trees import copied, first_not_finite, moved, read_at_once, sums_of, tree_bytes
from benchmark.losses import skip_low_confidence_images
from benchmark.methods.calls import Marks, finished, marks_of, refuse_change, started
from benchmark.methods.protocol import Job, Local, Outcome, PartName, Reader, Tree, Weights
from benchmark.models.build import Model, is_own, own_copy
from benchmark.models.norms import statistics_over
from benchmark.streams import global_states, seed_global, seed_globals, set_global_states, torch_stream

REMEDY = "choose a smaller optimizer.lr"
TRAINED_ON = ("train_images_NCHW", "train_labels_N", "unlabelled_images_NCHW")


@dataclass(kw_only=True, eq=False)
class StartedJob:
    """A job of a window that has been started, with its progress or the error that ended it."""

    job: Job  # with its received values on the runner's device
    round: int
    received: Mapping[str, Any]  # on their original device
    received_marks: Marks
    states: tuple[Any, ...]  # of the global generators, where the job stopped
    local: Local | None = None
    quality: PseudoLabelQuality | None = None
    batches: JobBatches | None = None
    iterator: BatchIterator | None = None
    trained: Trained | None = None  # None if the client skips the round
    outcome: Outcome | None = None
    error: Exception | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes of its views, and of the weights and state that it trains."""
        trees = () if self.local is None else (self.local.trainable, self.local.frozen, self.local.private or {})
        of_views = 0 if self.iterator is None else self.iterator.bytes_of_views
        return of_views + sum(map(tree_bytes, trees))


class JobRunner:
    """Runs jobs in this process, on one device.

    Networks and modules are reused from job to job, except for custom networks: each job has a fresh copy of these, so
    that only weights pass between jobs.

    With `fast` on a CPU, the local step differs from the plain one only in the last bits of its numbers. The
    optimizer's step is one kernel, float32 matrix products use oneDNN, and images below tau are not passed through the
    network if that changes nothing (`loss_on_confident`).
    """

    leaves_out: ClassVar[bool] = True  # whether a fast runner leaves out images below tau

    def __init__(self, environment: Environment, *, fast: bool = False, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._fast = fast and self._device.type == "cpu"
        self._products = faster_products if self._fast else nullcontext
        # Views are computed from the training images, on the device.
        images = {name: getattr(environment.data, name) for name in TRAINED_ON}
        self._environment = replace(environment, data=replace(environment.data, **moved(images, self._device)))
        self._networks: dict[Model | None, nn.Module] = {}
        self._modules: dict[tuple[object, ...], LocalModule] = {}

    def run(self, job: Job, round_number: int, private: Tree | None) -> Outcome:
        """Run a job and return its outcome on the runner's device. `private` is the participant's state.

        Raise Diverged if the outcome is not finite, and FsslError if there is not enough memory.
        """
        with failures_named(job.key.participant, round_number), self._products():
            outcome, losses = self._run(job, round_number, private)
            outcome = self._moved(outcome)
        check_finite(outcome, losses, job, round_number)
        return outcome

    def _moved(self, outcome: Outcome) -> Outcome:
        """Return the outcome on the runner's device."""
        private, sends = (moved(tree, self._device) for tree in (outcome.private, outcome.sends))
        return replace(outcome, sends=sends, private=private)

    def run_in_windows(
        self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]
    ) -> Iterator[Outcome]:
        """Yield the outcomes that `run` gives for the jobs, in job order, with few waits for the device.

        The jobs of a window are started one after the other, then their views are computed together, then each job is
        trained by itself. The host reads from the device twice per window: the values that losses report, and whether
        all values are finite. A window has up to `MOST_BYTES` of views and weights, and one job per state key. Client
        state is read from `kept` when a job starts, and written when its outcome is yielded. Raise the errors that
        `run` raises, when the job's outcome is due.
        """
        waiting = deque(jobs)
        left_over: StartedJob | None = None
        while waiting or left_over is not None:
            window, left_over = self._window(waiting, left_over, round_number, kept)
            self._train_all(window)
            self._finish_all(window)
            self._check_all(window)
            for begun in window:
                if begun.error is not None:
                    raise begun.error
                assert begun.outcome is not None
                if begun.outcome.private is not None:
                    kept[begun.job.state_key] = begun.outcome.private
                yield begun.outcome

    def _window(
        self, waiting: deque[Job], first: StartedJob | None, round_number: int, kept: Mapping[str, Tree]
    ) -> tuple[list[StartedJob], StartedJob | None]:
        """Start jobs of `waiting` after `first` while they fit. The last started job may not fit."""
        window = [] if first is None else [first]
        while waiting and not (window and window[-1].error):
            if waiting[0].state_key in {begun.job.state_key for begun in window}:
                break
            job = waiting.popleft()
            begun = self._begin_in_window(job, round_number, copied(kept.get(job.state_key)))
            if window and sum(other.nbytes for other in window) + begun.nbytes > MOST_BYTES:
                return window, begun
            window.append(begun)
        return window, None

    def _begin_in_window(self, job: Job, round_number: int, private: Tree | None) -> StartedJob:
        """Start a job and return it. An error is stored in the returned object."""
        begun = StartedJob(
            job=job, round=round_number, received=job.receives, received_marks=marks_of(job.receives), states=()
        )

        def start() -> None:
            begun.job, local = self._started(job, round_number, private, "train")
            begun.local = local
            if local is None:
                begun.outcome = Outcome(key=job.key, sends={})
                return
            begun.quality = self._initial_quality(begun.job, local, round_number)
            if local.trainable:
                begun.batches = JobBatches(self._environment, begun.job, round_number, "train", local.selected)
                begun.iterator = iter(begun.batches)
            else:  # the job only reads, or this client skips the round
                begun.trained = Trained(local=local, losses=[], reported={}, pseudo=begun.quality)

        self._attempt(begun, start, seeded=False)
        return begun

    def _attempt(self, begun: StartedJob, work: Callable[[], None], *, seeded: bool = True) -> None:
        """Run a part of the job's work with the global generators as the previous part left them. Store its error."""
        if begun.error is not None:
            return
        if seeded:
            set_global_states(begun.states)
        try:
            with failures_named(begun.job.key.participant, begun.round), self._products():
                work()
        except Exception as error:
            begun.error = error
        begun.states = global_states()

    def _train_all(self, window: list[StartedJob]) -> None:
        """Train the jobs up to the first that fails, because the round ends there."""
        to_train = [begun for begun in window if begun.iterator is not None]
        fit_together = sum(begun.nbytes for begun in to_train) <= MOST_BYTES

        def batches_of(begun: StartedJob) -> Iterator[LocalBatch]:
            assert begun.iterator is not None
            if fit_together:
                make_together([other.iterator for other in to_train if other.iterator is not None])
            yield from begun.iterator

        for index, begun in enumerate(window):
            if begun.iterator is not None:
                self._attempt(begun, partial(self._train_in_window, begun, batches_of(begun)))
                begun.iterator = None
            if begun.error is not None:
                del window[index + 1 :]

    def _train_in_window(self, begun: StartedJob, steps: Iterator[LocalBatch]) -> None:
        assert begun.local is not None and begun.quality is not None
        module, _ = self._training(begun.job, begun.local, begun.round, "train", begun.batches)
        module.pseudo = begun.quality
        begun.trained = trained_of(module, train(module, steps))

    def _finish_all(self, window: list[StartedJob]) -> None:
        """Read the values that the jobs report, and compute the outcome of each job."""
        trained = [(begun, begun.trained) for begun in window if begun.trained is not None and begun.error is None]
        unread = {id(begun): of_job.tensors() for begun, of_job in trained}
        numbers = iter(read_at_once(list(chain.from_iterable(unread.values()))))
        for begun in window:
            read = [next(numbers) for _ in unread.get(id(begun), [])]
            self._attempt(begun, partial(self._finish_in_window, begun, read))

    def _finish_in_window(self, begun: StartedJob, read: Sequence[Tensor]) -> None:
        if begun.trained is not None:
            begun.outcome = self._moved(outcome_from(begun.job, begun.trained, read))
        refuse_change(begun.job.update, "local work", "what it received", begun.received_marks, begun.received)

    def _check_all(self, window: list[StartedJob]) -> None:
        """Check whether all outcomes of the jobs are finite; store an error if not."""
        unread: list[list[Tensor]] = []
        for begun in window:
            if begun.outcome is None or begun.error is not None:
                unread.append([])
            else:
                losses = [] if begun.trained is None else begun.trained.losses
                unread.append(finite_if_these_are(begun.outcome, losses))
        numbers = iter(read_at_once(list(chain.from_iterable(unread))))
        for begun, tensors in zip(window, unread, strict=True):
            read = [next(numbers) for _ in tensors]
            try:
                if begun.outcome is not None and read:
                    check_finite(begun.outcome, [], begun.job, begun.round, read)
            except Diverged as error:
                begun.error = error

    def _run(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, list[Tensor]]:
        """Run a job and return its outcome and the loss of each of its local steps."""
        received = marks_of(job.receives)
        outcome, losses = self._trained(job, round_number, private)
        refuse_change(job.update, "local work", "what it received", received, job.receives)
        return outcome, losses

    def _trained(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, list[Tensor]]:
        job, local = self._started(job, round_number, private, "train")
        if local is None:
            return Outcome(key=job.key, sends={}), []
        quality = self._initial_quality(job, local, round_number)
        if not local.trainable:  # the job only reads, or this client skips the round
            sends = finished(job.update, local)
            return Outcome(key=job.key, sends=sends, private=local.private, metrics=quality.metrics()), []
        return self._trained_from(job, local, quality, round_number)

    def _trained_from(
        self, job: Job, local: Local, quality: PseudoLabelQuality, round_number: int
    ) -> tuple[Outcome, list[Tensor]]:
        """Train a job that has started. Return its outcome and the loss of each local step."""
        module, batches = self._training(job, local, round_number, "train")
        module.pseudo = quality
        return outcome_of(job, module, train(module, batches)), module.losses

    def gradient(self, job: Job, round_number: int, private: Tree | None) -> dict[str, Weights]:
        """Compute the gradient at the job's initial weights; return an empty dict if the job would skip the round."""
        with self._products():
            job, local = self._started(job, round_number, private, "gradient")
            if local is None or not local.trainable:
                return {}
            return gradient(*self._training(job, local, round_number, "gradient"))

    def _started(
        self, job: Job, round_number: int, private: Tree | None, purpose: str, reader: Reader | None = None
    ) -> tuple[Job, Local | None]:
        """Return the job with its received values on the runner's device, and the result of `start`."""
        job = replace(job, receives=moved(job.receives, self._device))
        seed_globals(self._environment.experiment.seed, purpose, "round", round_number, *key_names(job.key))
        reader = self._reader(job, round_number, purpose) if reader is None else reader
        return job, started(job.update, job.receives, moved(private, self._device), reader)

    def _network(self, model: Model | None) -> nn.Module:
        if model not in self._networks:
            network = self._networks[model] = self._environment.network(model, self._device)
            if self._fast and self.leaves_out:
                skip_low_confidence_images(network)
        return self._networks[model]

    def _training(
        self, job: Job, local: Local, round_number: int, purpose: str, batches: JobBatches | None = None
    ) -> tuple[LocalModule, JobBatches]:
        """Return the module that trains the job, seeded, and its batches, which may exist already."""
        experiment = self._environment.experiment
        if batches is None:
            batches = JobBatches(self._environment, job, round_number, purpose, local.selected)
        rate_at = self._rates(job, round_number, len(batches))
        kind = (module_class(job), job.network, tuple(local.trainable), tuple(local.frozen), local.layers)
        if kind in self._modules and not self._is_own(job):
            self._modules[kind].reuse(job, local, rate_at)
        else:
            network = self._network(job.network)
            settings = experiment.optimizer
            self._modules[kind] = module_class(job)(
                job, local, network, settings, rate_at, precision=experiment.precision, fused=self._fast
            )
        seed_job(self._modules[kind], experiment.seed, round_number, job, purpose)
        return self._modules[kind], batches

    def _rates(self, job: Job, round_number: int, steps: int) -> Callable[[int], float]:
        """Return the learning rate at each of the job's steps, as a share of the base rate."""
        experiment = self._environment.experiment
        T, rounds = experiment.federation.T, experiment.federation.rounds
        schedule = experiment.optimizer.schedule
        first = (round_number - 1) * T
        # A step of the schedule is a batch, however many losses are taken on it in turn. Those of local epochs share T.
        stride = 1.0 / len(job.update.phases) if job.limit.epochs is None else T / steps

        def rate_at(step: int) -> float:
            return schedule.factor(first + (0 if schedule.per_round else step * stride), T * rounds)

        return rate_at

    def _is_own(self, job: Job) -> bool:
        """Return whether the job's network is a custom one, which may carry more than weights from job to job."""
        return is_own(job.network or self._environment.experiment.model)

    def _initial_quality(self, job: Job, local: Local, round_number: int) -> PseudoLabelQuality:
        """Measure the quality of the pseudo-labels that `start` gave, if any."""
        quality = PseudoLabelQuality()
        if local.pseudo is not None:
            part = self._environment.part(job.key.client, "unlabelled", round_number)
            truth_N = part.truth_N
            if truth_N is not None:
                truth_N = truth_N[to_device(part.positions_N, truth_N.device)]
            quality.add(local.pseudo.labels_N.to(self._device), local.pseudo.kept_N.to(self._device), truth_N)
        return quality

    def _stream_of_start(self, job: Job, round_number: int, purpose: str) -> torch.Generator:
        names = (purpose, "round", round_number, *key_names(job.key), "start")
        return torch_stream(self._environment.experiment.seed, *names)

    def _reader(self, job: Job, round_number: int, purpose: str) -> Reader:
        draw = self._stream_of_start(job, round_number, purpose)
        network = own_copy(self._network(job.network), job.network or self._environment.experiment.model)
        return JobReader(self._environment, network, job.key.client, round_number, draw)


class JobReader:
    """A `Reader` of one participant's images. Each pass loads the weights into the network again."""

    def __init__(
        self, environment: Environment, network: nn.Module, participant: int, round_number: int, draw: torch.Generator
    ) -> None:
        self.draw = draw
        self._environment, self._network = environment, network
        self._participant, self._round = participant, round_number

    def predict(self, weights: Weights, part: PartName, view: str) -> torch.Tensor:
        load(self._network, weights)
        return logits_of(self._network, self._environment, self._images(part), view, self.draw).cpu()

    def _images(self, part: PartName) -> Part:
        return self._environment.part(self._participant, part, self._round)

    def labels(self, part: PartName) -> torch.Tensor | None:
        images = self._images(part)
        if images.labels_N is None:
            return None
        return images.labels_N[to_device(images.positions_N, images.labels_N.device)].cpu()

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        load(self._network, weights)
        seed_global(self.draw.initial_seed())  # of dropout, since the pass is in training mode
        batches = chunks(self._environment, self._images(part), "plain", batch_size, None)
        return statistics_over(self._network, batches, pooled=pooled)

    def _noise(self) -> torch.Tensor:
        """Return noise_1CHW, on the host."""
        data = self._environment.data
        return gaussian_image(data.image_shape, data.mean, data.std, self._environment.experiment.seed)

    @torch.no_grad()
    def on_noise(self, weights: Weights) -> torch.Tensor:
        load(self._network, weights)
        was_training = self._network.training
        self._network.eval()
        logits_D = self._network(self._noise().to(next(self._network.parameters())))[0]
        self._network.train(was_training)
        return logits_D.cpu()


def finite_if_these_are(outcome: Outcome, losses: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that `check_finite` reads: the losses, and sums of sent weights and client state."""
    losses_S = torch.stack([loss.detach() for loss in losses]) if losses else torch.zeros(0)
    return [losses_S, sums_of(outcome.sends), sums_of(outcome.private or {})]


def check_finite(
    outcome: Outcome, losses: Sequence[Tensor], job: Job, round_number: int, read: Sequence[Tensor] | None = None
) -> None:
    """Raise Diverged if the outcome, or one of the `losses` (one per step and phase), is not finite.

    `read` is the result of `finite_if_these_are` if it is already on the host.
    """
    read = read_at_once(finite_if_these_are(outcome, losses)) if read is None else read
    losses_S, of_sends, of_private = read
    trouble = None
    if not bool((finite_S := losses_S.isfinite()).all()):
        first = int((~finite_S).nonzero()[0])
        step = first // len(job.update.phases) + 1
        trouble = f"the loss of local step {step} is {float(losses_S[first])}, which is not finite"
    elif name := first_not_finite(outcome.sends, of_sends):
        trouble = f"{name}, which it sends, is not finite"
    elif name := first_not_finite(outcome.private or {}, of_private):
        trouble = f"{name}, which it keeps, is not finite"
    if trouble is not None:
        raise Diverged(f"round {round_number}, {job.key.participant}: {trouble}; {REMEDY}")


def name_of(job: Job, round_number: int) -> str:
    """Return the name of a job in errors."""
    return f"the job of {job.key.participant} in round {round_number} ({type(job.update).__name__})"
