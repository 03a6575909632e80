"""Groups of jobs with tensors that are rows of stacked tensors, and the local steps of a group.

Legend: M jobs, S of them in one step.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmark.data.image_ops import to_device
from benchmark.federated.batches import MOST_BYTES, BatchIterator, JobBatches, LocalBatch, make_together
from benchmark.federated.stacked.capture import CannotRepeat, MaskShape, NotedMasks, Recorder, Recording
from benchmark.federated.stacked.kinds import Member, Signature, Uses, only, same_tensors, signature_of
from benchmark.federated.stacked.layers import Masks
from benchmark.federated.stacked.optimizer import StackedOptimizer, StackedWeights
from benchmark.federated.stacked.tick import Inputs, JobNetworks, Results, StackedState, Tick
from benchmark.federated.stacked.trees import row, stacked, stacked_each
from benchmark.federated.trees import mapped
from benchmark.methods.protocol import Tree, Weights
from benchmark.optimizer import Optimizer


class Group:
    """The state of a group's jobs, and their local steps.

    The memory of a group can be reused for different jobs of the same kind and shapes (`begin`). With a `recorder`,
    steps of all jobs are recorded and repeated (`capture`).
    """

    def __init__(
        self,
        networks: JobNetworks,
        members: Sequence[Member],
        settings: Optimizer,
        uses: Uses,
        device: torch.device,
        recorder: Recorder | None = None,
    ) -> None:
        self._networks, self._settings, self._uses, self._device = networks, settings, uses, device
        self._is_used_again = recorder is not None
        self._recorder = None if uses.number else recorder
        self._shapes: dict[Signature, list[MaskShape]] = {}  # shapes of the dropout masks of a step
        self._recordings: dict[Signature, Recording] = {}
        self.why_not_recorded = "its steps read step.number" if recorder and uses.number else ""
        self._update = members[0].job.update
        self._members = members
        self.state = self._stacked(members)
        self._parameters: StackedWeights = {}
        for name, network in networks.trainable.items():
            names = {tensor for tensor, parameter in network.named_parameters() if parameter.requires_grad}
            self._parameters[name] = only(self.state.trainable[name], names)
        parameters = [value for value in self._parameters.values() if value]
        self._type = next(iter(parameters[0].values())).dtype  # type of the rates; buffers may be whole numbers
        self.optimizer = self._optimizer_of(members)
        self.state.slots = self.optimizer.slots
        self._tick = Tick(self._update, networks, self.optimizer)

    def begin(self, members: Sequence[Member]) -> None:
        """Copy the state of different jobs of the same kind and shapes into the group's memory."""
        self._members = members
        state = self._stacked(members)
        state.slots = self._optimizer_of(members).slots
        self.state.take_over(state)

    def _stacked(self, members: Sequence[Member]) -> StackedState:
        locals_ = [member.local for member in members]
        frozen = stacked_each([local.frozen for local in locals_])
        received, private, notes = zip(*map(self._uses.of, members), strict=True)
        shared: Tree = {}
        if not self._is_used_again:  # entries that all jobs of a round share may differ in the next round
            shared = self._shared_by_all(received)
        apart = [without(tree, shared) for tree in received]
        return StackedState(
            trainable=typed_as(self._networks.trainable, stacked_each([local.trainable for local in locals_])),
            frozen=typed_as(self._networks.frozen, frozen),
            slots={},
            private=stacked(private),
            notes=stacked(notes),
            received=stacked(apart),
            shared=shared,
            left_out=self._left_out(members),
        )

    def _shared_by_all(self, received: Sequence[Tree]) -> Tree:
        """Return the entries that are the same object in all trees."""
        shared: Tree = {}
        for name, value in received[0].items():
            if same_tensors([tree[name] for tree in received]):
                shared[name] = value
        return shared

    def _left_out(self, members: Sequence[Member]) -> dict[str, set[str]]:
        """Return the names of received entries, client state and notes that the steps do not use."""
        uses = self._uses
        names = defaultdict[str, set[str]](set)
        for member in members:
            names["received"] |= member.job.receives.keys() - uses.received
            names["private"] |= (member.local.private or {}).keys() - uses.private
            names["notes"] |= member.local.notes.keys() - uses.notes
        return dict(names)

    def _optimizer_of(self, members: Sequence[Member]) -> StackedOptimizer:
        return StackedOptimizer(self._settings, self._parameters, [member.local.momentum for member in members])

    def step(self, jobs: Sequence[int], batches: Sequence[Sequence[LocalBatch]], number: int) -> Results:
        """Take one local step of some of the jobs.

        `batches` contains, for each of these jobs, its batch once for each loss in turn.
        """
        inputs = self._inputs(jobs, batches, number)
        if len(jobs) == len(self._members):
            return self._step_of_all(inputs, signature_of(batches[0][0]))
        at_S = self._rows(jobs)
        some = self.state.of(at_S)
        results = self._tick.take(some, inputs, self._masks(jobs))
        self.state.put(at_S, some)
        return results

    def _step_of_all(self, inputs: Inputs, signature: Signature) -> Results:
        """Take a step of all jobs. The first step with these batch shapes is not recorded; later steps are."""
        everyone = range(len(self._members))
        if self._recorder is None:
            return self._tick.take(self.state, inputs, self._masks(everyone))
        if signature not in self._shapes:
            noted = NotedMasks([self._members[at].dropout for at in everyone])
            results = self._tick.take(self.state, inputs, noted)
            self._shapes[signature] = noted.shapes
            return results
        try:
            return self._recorded_step(inputs, signature, self._recorder)
        except CannotRepeat as error:
            results = error.args[1]
            reason = str(error.args[0])
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a step that cannot be recorded may raise any error
            reason = " ".join(str(error).split())[:160]
            results = self._tick.take(self.state, inputs, self._masks(everyone))
        self._recorder, self._recordings, self.why_not_recorded = None, {}, reason
        return results

    def _recorded_step(self, inputs: Inputs, signature: Signature, recorder: Recorder) -> Results:
        everyone = range(len(self._members))
        if signature not in self._recordings:
            shapes = self._shapes[signature]
            self._recordings[signature] = Recording(recorder, self._tick, self.state, inputs, shapes)
            return self._recordings[signature].replay(inputs, self._masks(everyone))
        recording = self._recordings[signature]
        if recording.is_checked:
            return recording.replay(inputs, self._masks(everyone))
        again = [copy_of(self._members[at].dropout) for at in everyone]
        return recording.check(inputs, self._masks(everyone), Masks(again))

    def _masks(self, jobs: Sequence[int]) -> Masks:
        return Masks([self._members[at].dropout for at in jobs])

    def add_gradients(self, sums: StackedWeights, jobs: Sequence[int], batches: Sequence[Sequence[LocalBatch]]) -> int:
        """Add the gradients of some of the jobs on one batch, times the batch size. Return the batch size."""
        size = max(len(next(iter(images.views.values()))) for images in batches[0][0].streams.values())
        inputs = self._inputs(jobs, batches, 0)
        at_S = self._rows(jobs)
        some = self.state.of(at_S)
        for gradients in self._tick.gradients(some, inputs, self._masks(jobs)):
            for name, tensors in gradients.items():
                for tensor, gradient in tensors.items():
                    sums[name][tensor].index_add_(0, at_S, gradient, alpha=size)
        self.state.put(at_S, some)
        return size

    def zeros(self) -> StackedWeights:
        """Return zeros with the shapes of all parameters, for the sums of gradients."""
        zeros: StackedWeights = mapped(self._parameters, torch.zeros_like)
        return zeros

    def _rows(self, jobs: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(jobs), self._device)

    def _inputs(self, jobs: Sequence[int], batches: Sequence[Sequence[LocalBatch]], number: int) -> Inputs:
        by_phase = list(zip(*batches, strict=True))
        drawn = [self._drawn(jobs, of_phase) for of_phase in by_phase]
        rates = [self._rate(jobs, number + phase) for phase in range(len(by_phase))]
        return Inputs(batch=stacked_batches(by_phase[0]), drawn=drawn, rates=rates, number=number)

    def _drawn(self, jobs: Sequence[int], batches: Sequence[LocalBatch]) -> Tree:
        """Draw the random numbers that one loss needs, from each job's own stream."""
        rows = [
            dict(self._update.draws(self._members[at].draw, batch.streams))
            for at, batch in zip(jobs, batches, strict=True)
        ]
        return {name: to_device(value, self._device) for name, value in stacked(rows).items()}

    def _rate(self, jobs: Sequence[int], number: int) -> Tensor | float:
        rates = [self._members[at].base_rate * self._members[at].rate_at(number) for at in jobs]
        if len(set(rates)) == 1:
            return rates[0]
        return to_device(torch.tensor(rates, dtype=self._type), self._device)

    def results_of(self, at: int, results: Results) -> Tree:
        """Return one job's results in the form of `guard.alone`."""
        return {
            "loss": {str(phase): loss_S[at] for phase, (loss_S, _) in enumerate(results)},
            "trainable": row(self.state.trainable, at),
            "frozen": row(self.state.frozen, at),
            "momentum": self.optimizer.brought_back(at),
            "private": row(self.state.private, at),
            "notes": row(self.state.notes, at),
        }


def typed_as(networks: nn.ModuleDict, weight_sets: Mapping[str, Weights]) -> StackedWeights:
    """Return the weight sets with the types of their networks, like `load`."""
    typed: StackedWeights = {}
    for name, weights in weight_sets.items():
        own = networks[name].state_dict()
        typed[name] = {tensor: value.to(own[tensor].dtype) for tensor, value in weights.items()}
    return typed


def first_batch(batches: JobBatches) -> list[LocalBatch]:
    """Return a job's first batch, repeated once for each loss of the update."""
    iterator = iter(batches)
    return [next(iterator) for _ in range(batches.phases)]


BatchesOfStep = list[dict[int, list[LocalBatch]]]


def in_lockstep(members: Sequence[Member]) -> Iterator[BatchesOfStep]:
    """Yield the batches of all jobs step by step, with the jobs' places in the group.

    Batches of equal sizes are yielded together. Each batch is repeated once for each loss of the update. A job that
    has taken all of its steps is left out.
    """
    iterators = {at: iter(member.batches) for at, member in enumerate(members)}
    ahead = steps_at_once(list(iterators.values()))
    for number in itertools.count():
        if ahead and number % ahead == 0:
            make_together(list(iterators.values()), ahead)
        alike: dict[Signature, dict[int, list[LocalBatch]]] = defaultdict(dict)
        for at, member in enumerate(members):
            batches = list(itertools.islice(iterators[at], member.batches.phases))
            if batches:
                alike[signature_of(batches[0])][at] = batches
        if not alike:
            return
        yield list(alike.values())


def steps_at_once(iterators: Sequence[BatchIterator]) -> int:
    """Return for how many steps the views are computed at once, as far as memory allows.

    Return 0 on a CPU, because each job computes its views there.
    """
    streams = list(itertools.chain.from_iterable(iterator.streams.values() for iterator in iterators))
    if streams[0].device.type == "cpu":
        return 0
    of_all_steps = sum(iterator.bytes_of_views for iterator in iterators)
    steps = max(len(stream.sizes) for stream in streams)
    return max(1, steps * MOST_BYTES // max(1, of_all_steps))


def copy_of(generator: torch.Generator) -> torch.Generator:
    """Return a copy of the generator, which draws the same numbers."""
    copied = torch.Generator()
    copied.set_state(generator.get_state())
    return copied


def with_fresh_streams(member: Member) -> Member:
    """Return the job with copies of its random streams, so that the job can be started again."""
    return replace(member, draw=copy_of(member.draw), dropout=copy_of(member.dropout))


def stacked_batches(batches: Sequence[LocalBatch]) -> dict[str, dict[str, Any]]:
    """Return the fields of each stream's batch, with one row per job."""
    return stacked_each([fields_of(batch) for batch in batches])


def fields_of(batch: LocalBatch) -> dict[str, Tree]:
    return {name: {**vars(images), "views": dict(images.views)} for name, images in batch.streams.items()}


def without(tree: Tree, left_out: Tree) -> Tree:
    return {name: value for name, value in tree.items() if name not in left_out}
