"""`JobRunner` runs one job at a time in this process; every engine calls it."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from benchmark.data.pooled import gaussian_image
from benchmark.errors import Diverged
from benchmark.federated.batches import JobBatches, key_names
from benchmark.federated.environment import Environment, Part
from benchmark.federated.evaluate import chunks, logits_of
from benchmark.federated.local import LocalModule, gradient, load, module_class, outcome_of, seed_job, train
from benchmark.federated.machine import failures_named, faster_products
from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.trees import first_not_finite, moved
from benchmark.losses import skip_low_confidence_images
from benchmark.methods.calls import finished, marks_of, refuse_change, started
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Local, Outcome, PartName, Reader, Tree, Weights
from benchmark.models.build import Model, is_own, own_copy
from benchmark.models.norms import statistics_over
from benchmark.streams import seed_global, seed_globals, torch_stream

REMEDY = "choose a smaller optimizer.lr"
TRAINED_ON = ("train_images_NCHW", "train_labels_N", "unlabelled_images_NCHW")


def keeper_of(job: Job) -> str:
    """Under which name the job's private state is kept."""
    return job.keeps if job.keeps is not None else str(job.key.client)


class JobRunner:
    """Runs one job at a time in this process, on one device. Its networks and modules are reused from job to job, but
    for those of a user's own network: each job has a fresh copy, so that nothing but weights passes between jobs.

    `fast`: on a CPU, another local step than the plain one, to the same numbers but for their last bits. The
    optimizer's step is one kernel; matrix products are oneDNN's, where they are float32; images below tau pass no
    network where that changes nothing (`loss_of_kept`).
    """

    leaves_out: ClassVar[bool] = True  # images below tau, where it is fast

    def __init__(self, environment: Environment, *, fast: bool = False, device: str = "cpu") -> None:
        self._device = torch.device(device)
        self._fast = fast and self._device.type == "cpu"
        self._products = faster_products if self._fast else nullcontext
        # Views are made of the training images, on the device.
        images = {name: getattr(environment.data, name) for name in TRAINED_ON}
        self._environment = replace(environment, data=replace(environment.data, **moved(images, self._device)))
        self._networks: dict[Model | None, nn.Module] = {}
        self._modules: dict[tuple[object, ...], LocalModule] = {}

    def run(self, job: Job, round_number: int, private: Tree | None) -> Outcome:
        """The job's outcome, on the runner's device; `private` is the holder's state.

        Raises Diverged where it is not finite, FsslError where memory does not suffice.
        """
        with failures_named(holder_name(job.key.client), round_number), self._products():
            outcome, losses = self._run(job, round_number, private)
            private, sends = (moved(tree, self._device) for tree in (outcome.private, outcome.sends))
            outcome = replace(outcome, sends=sends, private=private)
        check_finite(outcome, losses, job, round_number)
        return outcome

    def _run(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, list[Tensor]]:
        """The job's outcome, and the loss of each of its local steps."""
        received = marks_of(job.receives)
        outcome, losses = self._trained(job, round_number, private)
        refuse_change(job.update, "local work", "what it received", received, job.receives)
        return outcome, losses

    def _trained(self, job: Job, round_number: int, private: Tree | None) -> tuple[Outcome, list[Tensor]]:
        job, local = self._started(job, round_number, private, "train")
        if local is None:
            return Outcome(key=job.key, sends={}), []
        given = self._given(job, local, round_number)
        if not local.trainable:  # the job only reads, or this client sits out
            sends = finished(job.update, local)
            return Outcome(key=job.key, sends=sends, private=local.private, metrics=given.metrics()), []
        module, batches = self._training(job, local, round_number, "train")
        module.pseudo = given
        return outcome_of(job, module, train(module, batches)), module.losses

    def gradient(self, job: Job, round_number: int, private: Tree | None) -> dict[str, Weights]:
        """The gradient at the weights that the job begins with; nothing where it would sit out."""
        with self._products():
            job, local = self._started(job, round_number, private, "gradient")
            if local is None or not local.trainable:
                return {}
            return gradient(*self._training(job, local, round_number, "gradient"))

    def _started(self, job: Job, round_number: int, private: Tree | None, purpose: str) -> tuple[Job, Local | None]:
        """The job with what it receives on the runner's device, and what `start` gives."""
        job = replace(job, receives=moved(job.receives, self._device))
        seed_globals(self._environment.experiment.seed, purpose, "round", round_number, *key_names(job.key))
        reader = self._reader(job, round_number, purpose)
        return job, started(job.update, job.receives, moved(private, self._device), reader)

    def _network(self, model: Model | None) -> nn.Module:
        if model not in self._networks:
            network = self._networks[model] = self._environment.network(model, self._device)
            if self._fast and self.leaves_out:
                skip_low_confidence_images(network)
        return self._networks[model]

    def _training(self, job: Job, local: Local, round_number: int, purpose: str) -> tuple[LocalModule, JobBatches]:
        """The module that trains the job, seeded, and its batches."""
        experiment = self._environment.experiment
        batches = JobBatches(self._environment, job, round_number, purpose, local.selected)
        rate_at = self._rates(job, round_number, len(batches))
        kind = (module_class(job), job.network, tuple(local.trainable), tuple(local.frozen), local.layers)
        if kind in self._modules and not self._is_own(job):
            self._modules[kind].reuse(job, local, rate_at)
        else:
            network, sgd, precision = self._network(job.network), experiment.optimizer, experiment.precision
            self._modules[kind] = module_class(job)(
                job, local, network, sgd, rate_at, precision=precision, fused=self._fast
            )
        seed_job(self._modules[kind], experiment.seed, round_number, job, purpose)
        return self._modules[kind], batches

    def _rates(self, job: Job, round_number: int, steps: int) -> Callable[[int], float]:
        """The learning rate at each of the job's steps, as a share of the base rate."""
        experiment = self._environment.experiment
        T, rounds = experiment.federation.T, experiment.federation.rounds
        schedule, first = experiment.optimizer.schedule, (round_number - 1) * T
        # A step of the schedule is a batch, however many losses are taken on it in turn. Those of local epochs share T.
        stride = 1.0 / len(job.update.phases) if job.limit.epochs is None else T / steps

        def rate_at(step: int) -> float:
            return schedule.factor(first + (0 if schedule.per_round else step * stride), T * rounds)

        return rate_at

    def _is_own(self, job: Job) -> bool:
        """Whether the job's network is a user's own, which may keep more than its weights from job to job."""
        return is_own(job.network or self._environment.experiment.model)

    def _given(self, job: Job, local: Local, round_number: int) -> PseudoLabelQuality:
        """The quality so far: of the pseudo-labels that `start` gave, if it gave any."""
        quality = PseudoLabelQuality()
        if local.pseudo is not None:
            part = self._environment.part(job.key.client, "unlabelled", round_number)
            truth_N = None if part.truth_N is None else part.truth_N[part.positions_N]
            quality.add(local.pseudo.labels_N.to(self._device), local.pseudo.kept_N.to(self._device), truth_N)
        return quality

    def _reader(self, job: Job, round_number: int, purpose: str) -> Reader:
        names = (purpose, "round", round_number, *key_names(job.key), "start")
        draw = torch_stream(self._environment.experiment.seed, *names)
        network = own_copy(self._network(job.network), job.network or self._environment.experiment.model)
        return JobReader(self._environment, network, job.key.client, round_number, draw)


class JobReader:
    """A `Reader` of one holder's images; each pass loads the network anew."""

    def __init__(
        self, environment: Environment, network: nn.Module, holder: int, round_number: int, draw: torch.Generator
    ) -> None:
        self.draw = draw
        self._environment, self._network = environment, network
        self._holder, self._round = holder, round_number

    def predict(self, weights: Weights, part: PartName, view: str) -> torch.Tensor:
        load(self._network, weights)
        return logits_of(self._network, self._environment, self._images(part), view, self.draw).cpu()

    def _images(self, part: PartName) -> Part:
        return self._environment.part(self._holder, part, self._round)

    def labels(self, part: PartName) -> torch.Tensor | None:
        images = self._images(part)
        return None if images.labels_N is None else images.labels_N[images.positions_N].cpu()

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        load(self._network, weights)
        seed_global(self.draw.initial_seed())  # of dropout, since the pass is in training mode
        batches = chunks(self._environment, self._images(part), "plain", batch_size, None)
        return statistics_over(self._network, batches, pooled=pooled)

    @torch.no_grad()
    def on_noise(self, weights: Weights) -> torch.Tensor:
        load(self._network, weights)
        data = self._environment.data
        noise_1CHW = gaussian_image(data.image_shape, data.mean, data.std, self._environment.experiment.seed)
        was_training = self._network.training
        self._network.eval()
        logits_D = self._network(noise_1CHW.to(next(self._network.parameters())))[0]
        self._network.train(was_training)
        return logits_D.cpu()


def check_finite(outcome: Outcome, losses: Sequence[Tensor], job: Job, round_number: int) -> None:
    """Raises Diverged where the outcome, or one of the `losses` (one a step and phase), is not finite."""
    trouble = None
    if losses and not bool((finite_S := torch.stack([loss.detach() for loss in losses]).isfinite()).all()):
        first = int((~finite_S).nonzero()[0])
        step = first // len(job.update.phases) + 1
        trouble = f"the loss of local step {step} is {float(losses[first])}, which is not finite"
    elif name := first_not_finite(outcome.sends):
        trouble = f"{name}, which it sends, is not finite"
    elif name := first_not_finite(outcome.private or {}):
        trouble = f"{name}, which it keeps, is not finite"
    if trouble is not None:
        raise Diverged(f"round {round_number}, {holder_name(job.key.client)}: {trouble}; {REMEDY}")


def holder_name(holder: int) -> str:
    """How messages call a holder."""
    return {SERVER: "the server", CENTRAL: "the holder of all images"}.get(holder, f"client {holder}")


def name_of(job: Job, round_number: int) -> str:
    """How errors call a job."""
    return f"the job of {holder_name(job.key.client)} in round {round_number} ({type(job.update).__name__})"
