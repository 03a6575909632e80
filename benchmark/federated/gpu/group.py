"""Candidate "graphs": the local steps of several clients as parallel branches of one CUDA graph.

One client's kernels are too small to fill a GPU, and launching them takes longer than running them. Here K clients'
steps are forked to K streams inside one capture, and the graph is replayed for every step of every group of K clients.
What has another shape (a last batch that is incomplete, a client that is done) is stepped eagerly on the same memory.

Legend: K clients of the group, S local steps, N images of a batch.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmark.federated.batches import LocalBatch
from benchmark.federated.gpu.branch import Branch, Found, rate_at
from benchmark.federated.gpu.examine import Verdict
from benchmark.federated.gpu.replay import FoundTogether, Replay
from benchmark.federated.gpu.work import Placer, Result, Work
from benchmark.federated.local import LocalModule
from benchmark.methods.protocol import Batch

Shape = tuple[tuple[str, int], ...]  # stream -> images of its batch


def shape_of(batch: LocalBatch) -> Shape:
    return tuple((name, len(next(iter(stream.views.values())))) for name, stream in batch.streams.items())


class Inputs:
    """Static buffers of one shape for `width` clients' batches: what a step reads, always at the same address."""

    def __init__(self, like: LocalBatch, width: int) -> None:
        def buffer(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.new_empty((width, *tensor.shape))

        self.streams = {
            name: (
                {view: tensor.new_empty((width, *tensor.shape)) for view, tensor in batch.views.items()},
                buffer(batch.labels_N),
                buffer(batch.pseudo_labels_N),
            )
            for name, batch in like.streams.items()
        }

    def feed(self, batches: Sequence[LocalBatch]) -> None:
        """Copy these clients' batches in: one launch for all images, one for all labels."""
        pairs: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for client, batch in enumerate(batches):
            own = self.of(client)
            for name, stream in batch.streams.items():
                targets = [*own[name].views.values(), own[name].labels_N, own[name].pseudo_labels_N]
                sources = [*stream.views.values(), stream.labels_N, stream.pseudo_labels_N]
                for target, source in zip(targets, sources, strict=True):
                    if target is not None and source is not None:
                        into, out_of = pairs.setdefault(target.dtype, ([], []))
                        into.append(target)
                        out_of.append(source)
        for into, out_of in pairs.values():
            torch._foreach_copy_(into, out_of)

    def of(self, client: int) -> dict[str, Batch]:
        """One client's buffers."""
        return {
            name: Batch(
                views={view: tensor[client] for view, tensor in views.items()},
                labels_N=None if labels is None else labels[client],
                pseudo_labels_N=None if pseudo is None else pseudo[client],
            )
            for name, (views, labels, pseudo) in self.streams.items()
        }


class Group:
    """Up to `width` clients of one kind that take their local steps together."""

    def __init__(self, width: int, build: Callable[[], LocalModule], verdict: Verdict, device: torch.device) -> None:
        self.width, self.verdict, self.device = width, verdict, device
        self.rates_K = torch.zeros(width, device=device)
        self.branches = [Branch(build(), self.rates_K[client]) for client in range(width)]
        self._inputs: dict[Shape, Inputs] = {}
        self._replays: dict[tuple[int, int, Shape], Replay] = {}
        is_cuda = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) for _ in range(width)] if is_cuda else []

    @property
    def failures(self) -> list[str]:
        """Why steps were not captured."""
        return [replay.failure for replay in self._replays.values() if replay.failure is not None]

    def run(self, works: Sequence[Work], placer: Placer) -> list[Result]:
        """Train these jobs, of this group's kind; at most `width`. Nothing is waited for."""
        active = list(zip(self.branches, works, strict=False))
        for branch, work in active:
            branch.load(work, placer)
        lengths = [len(work.batches) for work in works]
        rates = [
            [rate_at(branch.module, step) if step < len(work.batches) else 0.0 for branch, work in active]
            for step in range(max(lengths))
        ]
        rates_SK = torch.tensor(rates).to(self.device, non_blocking=True)
        for step in range(max(lengths)):
            self.rates_K[: len(works)].copy_(rates_SK[step])
            self._step(works, step)
        return [branch.result() for branch, _ in active]

    def _step(self, works: Sequence[Work], step: int) -> None:
        """Local step `step` of all jobs that have one, together where all have one of the same shape."""
        clients = [client for client, work in enumerate(works) if step < len(work.batches)]
        batches = [works[client].batches[step] for client in clients]
        phase, shapes = batches[0].phase, {shape_of(batch) for batch in batches}
        if len(clients) == len(works) and len(shapes) == 1:
            together = self._together(len(works), phase, shapes.pop(), batches)
            found = [together.of(client) for client in clients]
        else:
            found = [self._alone(client, phase, batch) for client, batch in zip(clients, batches, strict=True)]
        for client, batch, report in zip(clients, batches, found, strict=True):
            branch = self.branches[client]
            branch.note(report, batch.truth_N)
            branch.module.training_state.step += 1
            if not self.verdict.after_inside:
                branch.after_step()

    def _together(self, count: int, phase: int, shape: Shape, batches: Sequence[LocalBatch]) -> FoundTogether:
        if shape not in self._inputs:
            self._inputs[shape] = Inputs(batches[0], self.width)
        inputs, key = self._inputs[shape], (count, phase, shape)
        if key not in self._replays:
            self._replays[key] = Replay(lambda: self.take(count, phase, inputs), self.device)
        inputs.feed(batches)
        return self._replays[key]()

    def _alone(self, client: int, phase: int, batch: LocalBatch) -> Found:
        branch = self.branches[client]
        found = branch.step(phase, batch.streams, self.verdict.reached[phase])
        if self.verdict.after_inside:
            branch.after_step()
        return found

    def take(self, count: int, phase: int, inputs: Inputs) -> FoundTogether:
        """One step of the first `count` clients on what lies in `inputs`: this is what is captured."""

        def one(client: int) -> Found:
            branch = self.branches[client]
            found = branch.step(phase, inputs.of(client), self.verdict.reached[phase])
            if self.verdict.after_inside:
                branch.after_step()
            return found

        return joined([*self._forked(count, one)])

    def _forked(self, count: int, one: Callable[[int], Found]) -> list[Found]:
        """`one` of each client, on a stream of its own where there are streams, and the current stream after all."""
        if not self._streams:
            return [one(client) for client in range(count)]
        main, found = torch.cuda.current_stream(self.device), []
        for client, stream in enumerate(self._streams[:count]):
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                found.append(one(client))
        for stream in self._streams[:count]:
            main.wait_stream(stream)
        return found


def joined(found: Sequence[Found]) -> FoundTogether:
    labels = [report.labels_N for report in found if report.labels_N is not None]
    kept = [report.kept_N for report in found if report.kept_N is not None]
    return FoundTogether(
        names=found[0].names,
        scalars_KA=torch.stack([report.scalars_A for report in found]),
        labels_KN=torch.stack(labels) if labels else None,
        kept_KN=torch.stack(kept) if kept else None,
    )
