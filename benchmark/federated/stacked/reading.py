"""The passes over images that `start` asks its reader for (`Reader`), made for all jobs of a round at once.

A `start` that asks for a pass is interrupted. When all jobs of the round have asked or ended, their passes are made
together, and each interrupted `start` is called again from the beginning with the same streams, this time with the
answers. So a method is written for one job, as it is for the other engines, and has nothing to declare.

Images of jobs with the very same weights go through the network behind each other, in chunks that memory limits. Jobs
with different weights and few images each take one pass under `torch.func.vmap`. In evaluation mode an image's logits
do not depend on the others, so shorter rows are filled up with repeated images. The statistics of static batch norms
are those of each batch: `NormByBatch` normalises every batch of a pass on its own.

Legend: N images, C channels, D classes, B batches, W weight sets, P channels of all layers, R reads, H W pixels.
"""

import itertools
import math
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmark.data.augment import draws_of, views_of
from benchmark.data.image_ops import to_device
from benchmark.errors import FsslError
from benchmark.federated.environment import Environment, Part
from benchmark.federated.evaluate import CHUNK, CUDA_PIXELS
from benchmark.federated.jobs import JobReader
from benchmark.federated.local import load
from benchmark.federated.stacked.layers import RULES, with_rules
from benchmark.federated.stacked.trees import stacked
from benchmark.federated.stopping import check
from benchmark.federated.trees import tree_bytes
from benchmark.methods.protocol import PartName, Weights
from benchmark.models.build import Model
from benchmark.models.norms import StaticBatchNorm2d
from benchmark.streams import seed_global

# Of one weight set in a pass of several. Beyond that the kernels of a pass take longer than their launches.
SMALL_PIXELS = CHUNK * 32 * 32
MOST_WEIGHTS = 256 << 20  # bytes of the weight sets in one pass


class NotReadYet(BaseException):
    """Interrupts a `start` that asks for a pass. It is no Exception, so that a method's own `except` lets it pass."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """The images of one pass: images of the data set in a view, or one image that is given."""

    environment: Environment
    part: Part | None = None
    view: str = "plain"
    draws_ND: Tensor | None = None  # of the view
    given_NCHW: Tensor | None = None

    def __len__(self) -> int:
        return len(self.part) if self.part is not None else 1

    @property
    def recipe(self) -> tuple[object, ...]:
        """Return what decides the operations that make them: images with equal recipes are made at once."""
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
    batch_size: int = 0  # of `statistics`
    pooled: bool = False

    @property
    def is_statistics(self) -> bool:
        return self.question[0] == "statistics"

    @property
    def kind(self) -> tuple[object, ...]:
        """Return what has to be equal in reads that are made together."""
        return self.question[0] == "statistics", self.pooled, self.model, *self.images.recipe


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """The result of a pass. Without `values` the job makes the pass itself."""

    question: tuple[object, ...]
    values: Tensor | None = None
    draw: Tensor | None = None  # the state of the job's stream after the pass


Pieces = list[tuple[Images, int, int]]  # images, and which of them: from the first number to before the second


def made(pieces: Pieces) -> Tensor:
    """Make images_NCHW of pieces with one recipe, one behind the other."""
    first = pieces[0][0]
    if first.part is None:
        given = [images.given_NCHW for images, _, _ in pieces if images.given_NCHW is not None]
        return torch.cat(given)
    data, table_NCHW = first.environment.data, first.part.images_NCHW
    positions = [images.part.positions_N[start:end] for images, start, end in pieces if images.part is not None]
    draws = [images.draws_ND[start:end] for images, start, end in pieces if images.draws_ND is not None]
    images_NCHW = table_NCHW[to_device(torch.cat(positions), table_NCHW.device)]
    draws_ND = torch.cat(draws) if draws else torch.empty(len(images_NCHW), 0)
    augmentation = first.environment.augmentation
    return views_of(images_NCHW, (first.view,), augmentation, data.mean, data.std, draws_ND)[first.view]


class AskingReader(JobReader):
    """A reader that interrupts `start` at the first pass that has no answer yet; `read` then says which it is."""

    def __init__(
        self,
        environment: Environment,
        network: nn.Module,
        holder: int,
        round_number: int,
        draw: torch.Generator,
        model: Model | None,
        answers: Sequence[Answer],
    ) -> None:
        super().__init__(environment, network, holder, round_number, draw)
        self._model, self._answers = model, deque(answers)
        self._is_alone = False  # whether this reader makes the rest itself
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
        seed_global(self.draw.initial_seed())  # as a pass of this job alone leaves it
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
        """Return the answer, which says that this job makes the pass itself if `start` asks otherwise than before."""
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


def has_only_static_norms(network: nn.Module) -> bool:
    """Return whether static norms are the only layers that differ in training mode: no dropout, no running statistics.

    A network without static norms has nothing to measure.
    """
    others = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)
    layers = list(network.modules())
    has_others = any(isinstance(layer, others) and getattr(layer, "p", 1) > 0 for layer in layers)
    return not has_others and any(isinstance(layer, StaticBatchNorm2d) for layer in layers)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Which images of one pass are of which batch."""

    sizes: Sequence[int]
    of_image_N: Tensor  # int64
    sizes_B1: Tensor  # float64

    def means(self, values_NC: Tensor) -> Tensor:
        """Return means_BC in float64, the mean over each batch's images."""
        sums_BC = values_NC.new_zeros(len(self.sizes), values_NC.shape[1], dtype=torch.float64)
        return sums_BC.index_add_(0, self.of_image_N, values_NC.double()) / self.sizes_B1


class NormByBatch(StaticBatchNorm2d):
    """A static batch norm in training mode that normalises each batch of a pass on its own."""

    batches: Batches | None = None
    measured: tuple[Tensor, Tensor, int] | None = None  # mean_BC, biased variance_BC, pixels of an image

    def forward(self, hidden_NCHW: Tensor) -> Tensor:
        """Return hidden_NCHW, normalised by batch and channel. Raise ValueError for one value per channel.

        All images have equally many pixels. So the variance of a batch is the mean over its images of their own
        variance and of the squared distance of their mean from that of the batch.
        """
        assert self.batches is not None
        batches, pixels = self.batches, hidden_NCHW[0, 0].numel()
        if pixels * min(batches.sizes) == 1:
            raise ValueError("Expected more than 1 value per channel when training")
        var_NC, mean_NC = torch.var_mean(hidden_NCHW, dim=(2, 3), correction=0)
        mean_BC = batches.means(mean_NC)
        distance_NC = mean_NC.double() - mean_BC[batches.of_image_N]
        var_BC = batches.means(var_NC.double() + distance_NC.square())
        self.measured = mean_BC, var_BC, pixels
        scale_BC = (var_BC + self.eps).rsqrt() * self.weight
        shift_BC = self.bias - mean_BC * scale_BC
        scale_NC, shift_NC = (of_BC[batches.of_image_N].to(hidden_NCHW.dtype) for of_BC in (scale_BC, shift_BC))
        return torch.addcmul(shift_NC[:, :, None, None], hidden_NCHW, scale_NC[:, :, None, None])


def static_norms(network: nn.Module) -> Iterator[tuple[str, StaticBatchNorm2d]]:
    """Yield the static norms, each with the start of its tensors' names."""
    for name, layer in network.named_modules():
        if isinstance(layer, StaticBatchNorm2d):
            yield f"{name}.".lstrip("."), layer


def named_statistics(network: nn.Module, values_2P: Tensor) -> Weights:
    """Return the means and variances of all static norms by their names, as views of two rows."""
    names = [name for name, _ in static_norms(network)]
    sizes = [len(layer.running_mean) for _, layer in static_norms(network)]
    statistics: dict[str, Tensor] = {}
    for name, mean_C, var_C in zip(names, *(row_P.split(sizes) for row_P in values_2P), strict=True):
        statistics[f"{name}running_mean"], statistics[f"{name}running_var"] = mean_C, var_C
    return statistics


@dataclass(kw_only=True)
class Passes:
    """Makes passes for several jobs at once. `network_of`: a network whose weights are of no account."""

    most: int | None = None  # images in one pass; None: as many as evaluation takes on a GPU
    made: int = 0  # passes, for tests
    refused: dict[tuple[object, ...], str] = field(default_factory=dict)  # kinds of reads that failed, and why
    _networks: dict[tuple[object, ...], nn.Module] = field(default_factory=dict)

    def answers(self, reads: Sequence[Read], network_of: Callable[[Model | None], nn.Module]) -> list[Answer]:
        """Make the passes. A read that cannot be made with others has an answer without values."""
        by_kind: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, read in enumerate(reads):
            by_kind[read.kind].append(index)
        found: dict[int, Tensor] = {}
        for kind, indices in by_kind.items():
            alike = [reads[index] for index in indices]
            values = self._tried(kind, alike, network_of(alike[0].model))
            found |= dict(zip(indices, values, strict=False))
        answers = []
        for index, read in enumerate(reads):
            draw = read.draw if index in found else None
            answers.append(Answer(question=read.question, values=found.get(index), draw=draw))
        return answers

    def _tried(self, kind: tuple[object, ...], reads: Sequence[Read], network: nn.Module) -> Sequence[Tensor]:
        """Return the values of each read, in smaller passes if memory does not suffice; nothing if they fail."""
        if kind in self.refused:
            return []
        name = str(reads[0].question[0])
        try:
            return self._statistics(reads, network) if reads[0].is_statistics else self._logits(reads, network)
        except torch.OutOfMemoryError:
            at_once = self._at_once(reads)
            if at_once == 1:
                return []
            self.most = at_once // 2
        except FsslError:  # the job that is to blame meets it again when it makes the pass itself
            return []
        except Exception as error:
            reason = self.refused[kind] = " ".join(str(error).split())[:160]
            warnings.warn(f"reader.{name}: jobs make their passes one at a time ({reason})", stacklevel=2)
            return []
        return self._tried(kind, reads, network)

    def _at_once(self, reads: Sequence[Read]) -> int:
        """Return how many images go through the network at once."""
        shape = reads[0].images.environment.data.image_shape
        return self.most or max(CHUNK, CUDA_PIXELS // math.prod(shape[1:]))

    def _changed(self, network: nn.Module, rules: Mapping[type[nn.Module], type[nn.Module]], model: Any) -> nn.Module:
        """Return a copy of the network with other layers, made once."""
        key = (model, *rules.values())
        if key not in self._networks:
            self._networks[key] = with_rules(network, rules)
        return self._networks[key]

    @torch.no_grad()
    def _logits(self, reads: Sequence[Read], network: nn.Module) -> Sequence[Tensor]:
        """Return logits_ND of each read on the host, in evaluation mode."""
        found: dict[int, list[Tensor]] = defaultdict(list)
        sets = list(by_weights(reads).values())
        sets.sort(key=lambda numbers: -images_in(reads, numbers))
        for block in self._blocks(reads, sets):
            if len(block) == 1:
                self._of_one_set(reads, block[0], network, found)
            else:
                self._of_several_sets(reads, block, network, found)
        numbers = list(found)
        all_ND = torch.cat([piece for number in numbers for piece in found[number]]).cpu()
        rows = all_ND.split([len(reads[number].images) for number in numbers])
        by_read = dict(zip(numbers, rows, strict=True))
        return [by_read[number] for number in range(len(reads))]

    def _blocks(self, reads: Sequence[Read], sets: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        """Divide the weight sets, which have fewer and fewer images, into those of one pass."""
        shape = reads[0].images.environment.data.image_shape
        pixels, at_once = math.prod(shape[1:]), self._at_once(reads)
        most_sets = max(1, MOST_WEIGHTS // max(1, tree_bytes(reads[0].weights)))
        block: list[list[int]] = []
        for numbers in sets:
            longest = images_in(reads, block[0]) if block else 0
            fits = longest * pixels <= SMALL_PIXELS and longest * (len(block) + 1) <= at_once
            if block and not (fits and len(block) < most_sets):
                yield block
                block = []
            block.append(numbers)
        yield block

    def _of_one_set(
        self, reads: Sequence[Read], numbers: Sequence[int], network: nn.Module, found: dict[int, list[Tensor]]
    ) -> None:
        """Compute the logits of reads with the same weights, as many images at once as memory allows."""
        load(network, reads[numbers[0]].weights)
        was_training = network.training
        network.eval()
        try:
            for chunk in chunks_of([(number, len(reads[number].images)) for number in numbers], self._at_once(reads)):
                logits_ND = self._passed(network, [(reads[number].images, start, end) for number, start, end in chunk])
                pieces = logits_ND.split([end - start for _, start, end in chunk])
                for (number, _, _), piece_ND in zip(chunk, pieces, strict=True):
                    found[number].append(piece_ND)
        finally:
            network.train(was_training)

    def _of_several_sets(
        self, reads: Sequence[Read], block: Sequence[Sequence[int]], network: nn.Module, found: dict[int, list[Tensor]]
    ) -> None:
        """Compute the logits of several weight sets in one pass. The last image of a shorter set is repeated."""
        check()
        network = self._changed(network, RULES, reads[0].model).eval()
        own = network.state_dict()
        weight_sets = []
        for numbers in block:
            weights = reads[numbers[0]].weights
            load(network, weights)  # which refuses weights that do not fit
            weight_sets.append({name: weights[name].to(tensor) for name, tensor in own.items()})
        sizes = [images_in(reads, numbers) for numbers in block]
        wanted = [reads[number].images for number in itertools.chain.from_iterable(block)]
        images_NCHW = made([(images, 0, len(images)) for images in wanted]).to(next(network.parameters()))
        starts_W1 = torch.tensor([0, *sizes[:-1]]).cumsum(0)[:, None]
        inside_WN = torch.arange(sizes[0]).minimum(torch.tensor(sizes)[:, None] - 1)
        images_WNCHW = images_NCHW[to_device(starts_W1 + inside_WN, images_NCHW.device)]
        logits_WND = vmap(lambda weights, images: functional_call(network, weights, (images,)))(
            stacked(weight_sets), images_WNCHW
        )
        self.made += 1
        for logits_ND, numbers in zip(logits_WND, block, strict=True):
            first = 0
            for number in numbers:
                size = len(reads[number].images)
                found[number].append(logits_ND[first : first + size])
                first += size

    def _passed(self, network: nn.Module, pieces: Pieces) -> Tensor:
        """Send pieces through the network in one pass."""
        check()
        self.made += 1
        images_NCHW = made(pieces)
        logits_ND: Tensor = network(images_NCHW.to(next(network.parameters())))
        return logits_ND

    @torch.no_grad()
    def _statistics(self, reads: Sequence[Read], network: nn.Module) -> Sequence[Tensor]:
        """Return statistics_2P of each read: the means of its static norms, one behind the other, and the variances."""
        network = self._changed(network, {StaticBatchNorm2d: NormByBatch}, reads[0].model).train()
        values: dict[int, Tensor] = {}
        for numbers in by_weights(reads).values():
            load(network, reads[numbers[0]].weights)
            sizes = {number: batch_sizes(reads[number]) for number in numbers}
            batches = [(number, *span) for number in numbers for span in spans_of(sizes[number])]
            measured = [self._by_batch(reads, some, network) for some in passes_of(batches, self._at_once(reads))]
            means_BP, vars_BP = (torch.cat(parts) for parts in zip(*measured, strict=True))
            of_read_B = [place for place, number in enumerate(numbers) for _ in sizes[number]]
            weights_B = [size if reads[0].pooled else 1 for number in numbers for size in sizes[number]]
            joined_R2P = joined(means_BP, vars_BP, of_read_B, weights_B, pooled=reads[0].pooled)
            values |= dict(zip(numbers, joined_R2P, strict=True))
        return [values[number] for number in range(len(reads))]

    def _by_batch(
        self, reads: Sequence[Read], batches: Sequence[tuple[int, int, int]], network: nn.Module
    ) -> tuple[Tensor, Tensor]:
        """Return means_BP and variances_BP of the batches, from one pass. Only pooled variances are biased."""
        sizes, device = [end - start for _, start, end in batches], next(network.parameters()).device
        of_image_N = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        sizes_B1 = torch.tensor(sizes, dtype=torch.float64)[:, None]
        of_pass = Batches(sizes=sizes, of_image_N=to_device(of_image_N, device), sizes_B1=to_device(sizes_B1, device))
        layers = [layer for _, layer in static_norms(network) if isinstance(layer, NormByBatch)]
        for layer in layers:
            layer.batches = of_pass
        self._passed(network, [(reads[number].images, start, end) for number, start, end in batches])
        means, variances = [], []
        for layer in layers:
            assert layer.measured is not None
            mean_BC, var_BC, pixels = layer.measured
            layer.batches = layer.measured = None
            values_B1 = of_pass.sizes_B1 * pixels
            means.append(mean_BC)
            variances.append(var_BC if reads[0].pooled else var_BC * (values_B1 / (values_B1 - 1)))
        return torch.cat(means, dim=1), torch.cat(variances, dim=1)


def by_weights(reads: Sequence[Read]) -> dict[tuple[int, ...], list[int]]:
    """Return the numbers of the reads that have the very same weights."""
    numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, read in enumerate(reads):
        numbers[tuple(map(id, read.weights.values()))].append(number)
    return numbers


def images_in(reads: Sequence[Read], numbers: Sequence[int]) -> int:
    return sum(len(reads[number].images) for number in numbers)


def batch_sizes(read: Read) -> list[int]:
    """Return the sizes of the batches that a read's statistics are taken over; the last may be incomplete."""
    whole, rest = divmod(len(read.images), read.batch_size)
    return [read.batch_size] * whole + [rest] * (rest > 0)


def spans_of(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where each of several pieces starts and ends."""
    start = 0
    for size in sizes:
        yield start, start + size
        start += size


def chunks_of(sizes: Sequence[tuple[int, int]], at_once: int) -> Iterator[list[tuple[int, int, int]]]:
    """Divide the images of several reads, given as (number, images), into chunks of `at_once` images.

    A chunk lists (number, start, end).
    """
    chunk: list[tuple[int, int, int]] = []
    room = at_once
    for number, size in sizes:
        start = 0
        while start < size:
            end = min(size, start + room)
            chunk.append((number, start, end))
            room -= end - start
            start = end
            if not room:
                yield chunk
                chunk, room = [], at_once
    if chunk:
        yield chunk


def passes_of(batches: Sequence[tuple[int, int, int]], at_once: int) -> Iterator[list[tuple[int, int, int]]]:
    """Divide batches, given as (number, start, end), into those of one pass, which has at least one."""
    together: list[tuple[int, int, int]] = []
    images = 0
    for batch in batches:
        size = batch[2] - batch[1]
        if together and images + size > at_once:
            yield together
            together, images = [], 0
        together.append(batch)
        images += size
    if together:
        yield together


def joined(
    means_BP: Tensor, vars_BP: Tensor, of_read_B: Sequence[int], weights_B: Sequence[float], *, pooled: bool
) -> Tensor:
    """Return statistics_R2P of each read from those of its batches, as `mean_statistics` joins them."""
    device, R = means_BP.device, of_read_B[-1] + 1
    at_B = to_device(torch.tensor(of_read_B), device)
    weights_B1 = to_device(torch.tensor(weights_B, dtype=torch.float64)[:, None], device)
    totals_R1 = weights_B1.new_zeros(R, 1).index_add_(0, at_B, weights_B1)

    def mean(values_BP: Tensor) -> Tensor:
        sums_RP = values_BP.new_zeros(R, values_BP.shape[1]).index_add_(0, at_B, values_BP * weights_B1)
        return sums_RP / totals_R1

    mean_RP = mean(means_BP)
    if not pooled:
        return torch.stack([mean_RP, mean(vars_BP)], dim=1)
    var_RP = mean(vars_BP + means_BP.square()) - mean_RP.square()
    return torch.stack([mean_RP, var_RP.clamp(min=0.0)], dim=1)
