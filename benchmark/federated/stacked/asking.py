"""Interrupt the `start` of a job that requests a pass over images from its reader (`Reader`).

When the `start` of each job of the round has requested a pass or ended, the passes are made together (`passes`), and
each interrupted `start` is called again from its beginning, with the same streams and with the answers. So a method is
written for one job, as it is for the other engines, and declares nothing.

Legend: N images, D classes.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from benchmark.data.augment import draws_of
from benchmark.federated.environment import Environment, Part
from benchmark.federated.jobs import JobReader
from benchmark.federated.stacked.batch_norms import has_only_static_norms, named_statistics
from benchmark.methods.protocol import PartName, Weights
from benchmark.models.build import Model
from benchmark.streams import seed_global


class NotReadYet(BaseException):
    """Interrupts a `start` that requests a pass. It is not an Exception, so that a method's `except` lets it pass."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """The images of one pass: images of the data set in a view, or a single given image."""

    environment: Environment
    part: Part | None = None
    view: str = "plain"
    draws_ND: Tensor | None = None  # random numbers of the view
    given_NCHW: Tensor | None = None

    def __len__(self) -> int:
        return len(self.part) if self.part is not None else 1

    @property
    def recipe(self) -> tuple[object, ...]:
        """Return the properties that decide how the images are computed; equal recipes are computed at once."""
        if self.part is None:
            return ("given",)
        data = self.environment.data
        return id(self.part.images_NCHW), self.view, self.environment.augmentation, tuple(data.mean), tuple(data.std)


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """A pass that a job's `start` waits for."""

    question: tuple[object, ...]  # the reader's function and its arguments besides the weights
    model: Model | None
    weights: Weights
    images: Images
    draw: Tensor | None = None  # the state of the job's stream after the pass, if the pass draws
    batch_size: int = 0  # batch size of `statistics`
    pooled: bool = False

    @property
    def is_statistics(self) -> bool:
        return self.question[0] == "statistics"

    @property
    def kind(self) -> tuple[object, ...]:
        """Return the properties that must be equal in reads that are made together."""
        return self.question[0] == "statistics", self.pooled, self.model, *self.images.recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """The result of a pass. If `values` is None, the job makes the pass itself."""

    question: tuple[object, ...]
    values: Tensor | None = None
    draw: Tensor | None = None  # the state of the job's stream after the pass


class AskingReader(JobReader):
    """A reader that interrupts `start` at the first pass without an answer. `read` is then this pass."""

    def __init__(
        self,
        environment: Environment,
        network: nn.Module,
        participant: int,
        round_number: int,
        draw: torch.Generator,
        model: Model | None,
        answers: Sequence[Answer],
    ) -> None:
        super().__init__(environment, network, participant, round_number, draw)
        self._model, self._answers = model, deque(answers)
        self._is_alone = False  # whether this reader makes the remaining passes itself
        self.read: Read | None = None

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        images = self._images(part)
        question = ("predict", part, view)
        answer = self._answer(question) if len(images) else Answer(question=question)
        if answer is None:
            draws_ND = draws_of(len(images), self._environment.augmentation, self.draw)
            passed = Images(environment=self._environment, part=images, view=view, draws_ND=draws_ND)
            state = self.draw.get_state()
            self._ask(Read(question=question, model=self._model, weights=weights, images=passed, draw=state))
        return super().predict(weights, part, view) if answer.values is None else answer.values.clone()

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        images = self._images(part)
        question = ("statistics", part, batch_size, pooled)
        can_wait = len(images) > 0 and has_only_static_norms(self._network)
        answer = self._answer(question) if can_wait else Answer(question=question)
        if answer is None:
            passed = Images(environment=self._environment, part=images)
            options: dict[str, Any] = {"batch_size": batch_size, "pooled": pooled}
            self._ask(Read(question=question, model=self._model, weights=weights, images=passed, **options))
        if answer.values is None:
            return super().statistics(weights, part, batch_size, pooled)
        seed_global(self.draw.initial_seed())  # the state after a pass of only this job
        count = len(images) if pooled else len(images.positions_N.split(batch_size))
        return named_statistics(self._network, answer.values.clone()), count

    def on_noise(self, weights: Weights) -> Tensor:
        question = ("on_noise",)
        answer = self._answer(question)
        if answer is None:
            passed = Images(environment=self._environment, given_NCHW=self._noise())
            self._ask(Read(question=question, model=self._model, weights=weights, images=passed))
        return super().on_noise(weights) if answer.values is None else answer.values[0].clone()

    def _answer(self, question: tuple[object, ...]) -> Answer | None:
        """Return the answer to a question, or None if there is none yet.

        The answer has no values if `start` asks different questions than in its earlier call.
        """
        if self._answers:
            answer = self._answers.popleft()
            self._is_alone = self._is_alone or answer.question != question
            if not self._is_alone and answer.draw is not None:
                self.draw.set_state(answer.draw)
            return Answer(question=question) if self._is_alone else answer
        return Answer(question=question) if self._is_alone else None

    def _ask(self, read: Read) -> NoReturn:
        self.read = read
        raise NotReadYet
