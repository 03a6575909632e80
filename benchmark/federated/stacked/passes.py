"""Make the passes over images that the jobs of a round request (`asking`) at once.

Images of jobs with the same weight tensors go through the network together, in batches that fit into memory. Jobs with
different weights and few images each share one pass under `torch.func.vmap`. In evaluation mode an image's logits do
not depend on the other images, so shorter rows are padded with repeated images. Static batch norms need the statistics
of each batch, so `NormByBatch` normalises every batch of a pass separately.

Legend: N images, C channels, D classes, B batches, W weight sets, P channels of all layers, R reads, H W pixels.
"""

import itertools
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmark.data.augment import views_of
from benchmark.data.image_ops import to_device
from benchmark.errors import FsslError
from benchmark.federated.evaluate import CHUNK, CUDA_PIXELS
from benchmark.federated.local import load
from benchmark.federated.stacked.asking import Answer, Read
from benchmark.federated.stacked.batch_norms import NormByBatch, same_sizes, spans_of, static_norms
from benchmark.federated.stacked.layers import RULES, with_rules
from benchmark.federated.stacked.trees import stacked
from benchmark.federated.stopping import check
from benchmark.federated.trees import tree_bytes
from benchmark.models.build import Model
from benchmark.models.norms import StaticBatchNorm2d

# The most pixels per weight set in a pass with several weight sets. With more pixels, the kernels of a pass need more
# time than their launches, so that one pass per weight set is as fast.
SMALL_PIXELS = CHUNK * 32 * 32
MOST_WEIGHTS = 256 << 20  # bytes of the weight sets in one pass


class Span(NamedTuple):
    """Some consecutive images of one read."""

    read: int  # number of the read among the reads of a pass
    start: int
    end: int  # the first image after the span

    @property
    def size(self) -> int:
        """Return the number of images."""
        return self.end - self.start


def views_in(reads: Sequence[Read], spans: Sequence[Span]) -> Tensor:
    """Compute images_NCHW of the spans, in their order. Their reads have the same recipe."""
    first = reads[spans[0].read].images
    given, positions, draws = list[Tensor](), list[Tensor](), list[Tensor]()
    for number, start, end in spans:
        images = reads[number].images
        if images.given_NCHW is not None:
            given.append(images.given_NCHW)
        if images.part is not None:
            positions.append(images.part.positions_N[start:end])
        if images.draws_ND is not None:
            draws.append(images.draws_ND[start:end])
    if first.part is None:
        return torch.cat(given)
    data = first.environment.data
    table_NCHW = first.part.images_NCHW
    images_NCHW = table_NCHW[to_device(torch.cat(positions), table_NCHW.device)]
    draws_ND = torch.cat(draws) if draws else torch.empty(len(images_NCHW), 0)
    augmentation = first.environment.augmentation
    return views_of(images_NCHW, (first.view,), augmentation, data.mean, data.std, draws_ND)[first.view]


@dataclass(kw_only=True)
class Passes:
    """Makes passes for several jobs at once."""

    most: int | None = None  # images per pass; by default, the number in an evaluation on a GPU
    count: int = 0  # passes so far, for tests
    refused: dict[tuple[object, ...], str] = field(default_factory=dict)  # kinds of reads that failed, and why
    _networks: dict[tuple[object, ...], nn.Module] = field(default_factory=dict)

    def answers(self, reads: Sequence[Read], network_of: Callable[[Model | None], nn.Module]) -> list[Answer]:
        """Make the passes, and return an answer for each read. It has no values if the read needs a separate pass.

        `network_of` returns a network with weights that may be overwritten.
        """
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
        """Return the values of each read, or an empty list if the pass fails. Use smaller passes if memory is short."""
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
        except FsslError:  # the job that causes it raises it again when it makes the pass itself
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
        """Return a copy of the network with replaced layers, which is created once and then reused."""
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
        pieces = itertools.chain.from_iterable(found.values())
        all_ND = torch.cat(list(pieces)).cpu()
        rows = all_ND.split([len(reads[number].images) for number in numbers])
        by_read = dict(zip(numbers, rows, strict=True))
        return [by_read[number] for number in range(len(reads))]

    def _blocks(self, reads: Sequence[Read], sets: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        """Divide the weight sets, which are sorted by decreasing number of images, among passes."""
        shape = reads[0].images.environment.data.image_shape
        pixels = math.prod(shape[1:])
        at_once = self._at_once(reads)
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
        """Compute the logits of reads with the same weights, in batches that fit into memory."""
        load(network, reads[numbers[0]].weights)
        was_training = network.training
        network.eval()
        try:
            for chunk in chunks_of(reads, numbers, self._at_once(reads)):
                logits_ND = self._passed(network, reads, chunk)
                pieces = logits_ND.split([span.size for span in chunk])
                for span, piece_ND in zip(chunk, pieces, strict=True):
                    found[span.read].append(piece_ND)
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
            load(network, weights)  # `load` raises an error if the weights do not fit
            weight_sets.append({name: value.to(own[name]) for name, value in weights.items()})
        sizes = [images_in(reads, numbers) for numbers in block]
        whole = [Span(number, 0, len(reads[number].images)) for number in itertools.chain.from_iterable(block)]
        images_NCHW = views_in(reads, whole).to(next(network.parameters()))
        starts_W1 = torch.tensor([0, *sizes[:-1]]).cumsum(0)[:, None]
        inside_WN = torch.arange(sizes[0]).minimum(torch.tensor(sizes)[:, None] - 1)
        images_WNCHW = images_NCHW[to_device(starts_W1 + inside_WN, images_NCHW.device)]
        logits_WND = vmap(lambda weights, images: functional_call(network, weights, (images,)))(
            stacked(weight_sets), images_WNCHW
        )
        self.count += 1
        for logits_ND, numbers in zip(logits_WND, block, strict=True):
            first = 0
            for number in numbers:
                size = len(reads[number].images)
                found[number].append(logits_ND[first : first + size])
                first += size

    def _passed(self, network: nn.Module, reads: Sequence[Read], spans: Sequence[Span]) -> Tensor:
        """Compute the logits of the spans in one pass through the network."""
        check()
        self.count += 1
        images_NCHW = views_in(reads, spans)
        logits_ND: Tensor = network(images_NCHW.to(next(network.parameters())))
        return logits_ND

    @torch.no_grad()
    def _statistics(self, reads: Sequence[Read], network: nn.Module) -> Sequence[Tensor]:
        """Return statistics_2P of each read: the means of all its static norms in one row, and the variances in one."""
        network = self._changed(network, {StaticBatchNorm2d: NormByBatch}, reads[0].model).train()
        values: dict[int, Tensor] = {}
        for numbers in by_weights(reads).values():
            load(network, reads[numbers[0]].weights)
            batches, of_read_B = list[Span](), list[int]()
            for place, number in enumerate(numbers):
                of_one_read = [Span(number, *span) for span in spans_of(batch_sizes(reads[number]))]
                batches += of_one_read
                of_read_B += [place] * len(of_one_read)
            measured = [self._by_batch(reads, some, network) for some in passes_of(batches, self._at_once(reads))]
            means_BP = torch.cat([means for means, _ in measured])
            vars_BP = torch.cat([variances for _, variances in measured])
            weights_B = [batch.size if reads[0].pooled else 1 for batch in batches]
            joined_R2P = joined(means_BP, vars_BP, of_read_B, weights_B, pooled=reads[0].pooled)
            values |= dict(zip(numbers, joined_R2P, strict=True))
        return [values[number] for number in range(len(reads))]

    def _by_batch(self, reads: Sequence[Read], pieces: Sequence[Span], network: nn.Module) -> tuple[Tensor, Tensor]:
        """Return means_BP and variances_BP of the batches (`pieces`) in float64, from one pass.

        Only pooled variances are biased.
        """
        sizes = [piece.size for piece in pieces]
        device = next(network.parameters()).device
        layers = [layer for _, layer in static_norms(network) if isinstance(layer, NormByBatch)]
        for layer in layers:
            layer.groups = same_sizes(sizes, device)
        self._passed(network, reads, pieces)
        images_B1 = to_device(torch.tensor(sizes, dtype=torch.float64)[:, None], device)
        means, variances = [], []
        for layer in layers:
            assert layer.measured is not None
            mean_BC, var_BC, pixels = layer.measured
            layer.groups, layer.measured = (), None
            values_B1 = images_B1 * pixels
            biased_B1 = (values_B1 - 1) / values_B1
            means.append(mean_BC.double())
            variances.append(var_BC.double() * biased_B1 if reads[0].pooled else var_BC.double())
        return torch.cat(means, dim=1), torch.cat(variances, dim=1)


def by_weights(reads: Sequence[Read]) -> dict[tuple[int, ...], list[int]]:
    """Return the numbers of the reads that share the same weight tensors."""
    numbers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, read in enumerate(reads):
        numbers[tuple(map(id, read.weights.values()))].append(number)
    return numbers


def images_in(reads: Sequence[Read], numbers: Sequence[int]) -> int:
    return sum(len(reads[number].images) for number in numbers)


def batch_sizes(read: Read) -> list[int]:
    """Return the sizes of the batches of a read's statistics; the last batch may be incomplete."""
    whole, rest = divmod(len(read.images), read.batch_size)
    sizes = [read.batch_size] * whole
    if rest > 0:
        sizes.append(rest)
    return sizes


def chunks_of(reads: Sequence[Read], numbers: Sequence[int], at_once: int) -> Iterator[list[Span]]:
    """Divide the images of these reads into chunks of `at_once` images."""
    chunk: list[Span] = []
    room = at_once
    for number in numbers:
        size = len(reads[number].images)
        start = 0
        while start < size:
            span = Span(number, start, min(size, start + room))
            chunk.append(span)
            room -= span.size
            start = span.end
            if not room:
                yield chunk
                chunk = []
                room = at_once
    if chunk:
        yield chunk


def passes_of(batches: Sequence[Span], at_once: int) -> Iterator[list[Span]]:
    """Divide the batches among passes of up to `at_once` images, with at least one batch each."""
    together: list[Span] = []
    images = 0
    for batch in batches:
        if together and images + batch.size > at_once:
            yield together
            together = []
            images = 0
        together.append(batch)
        images += batch.size
    if together:
        yield together


def joined(
    means_BP: Tensor, vars_BP: Tensor, of_read_B: Sequence[int], weights_B: Sequence[float], *, pooled: bool
) -> Tensor:
    """Return statistics_R2P of each read from the statistics of its batches, joined like `mean_statistics`."""
    device = means_BP.device
    R = of_read_B[-1] + 1
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
