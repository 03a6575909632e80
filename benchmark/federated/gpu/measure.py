"""Which way of taking local steps is the fastest here: each is given a few steps of real jobs, and the clock decides.

What is measured is thrown away: the jobs are begun anew by the way that wins.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from benchmark.federated.gpu.batched import BatchedGroup
from benchmark.federated.gpu.examine import Verdict
from benchmark.federated.gpu.group import Group
from benchmark.federated.gpu.plain import DeviceRunner
from benchmark.federated.gpu.replay import EAGER_STEPS
from benchmark.federated.gpu.work import Placer, Result, Work

# A group's first steps are eager and its next is captured; then as many again are timed.
MEASURED_STEPS = 2 * EAGER_STEPS + 4


class Candidate(Protocol):
    """A way of taking the local steps of jobs of one kind. `width`: how many jobs it takes at most at once."""

    name: str
    width: int

    def run(self, kind: Hashable, verdict: Verdict, works: Sequence[Work], placer: Placer) -> list[Result]: ...

    def forget(self, kind: Hashable) -> None:
        """Let go of the memory that this kind's jobs were run on."""
        ...

    def failures(self, kind: Hashable) -> list[str]:
        """Why steps of this kind run eagerly that were to be captured as graphs."""
        ...


class Plain:
    """One job after another on the device."""

    name = "plain"
    width = 1

    def __init__(self, runner: DeviceRunner) -> None:
        self._runner = runner

    def run(self, kind: Hashable, verdict: Verdict, works: Sequence[Work], placer: Placer) -> list[Result]:
        return [self._runner.train(work, placer) for work in works]

    def forget(self, kind: Hashable) -> None:
        """Nothing is held for a kind."""

    def failures(self, kind: Hashable) -> list[str]:
        return []


class Together:
    """Groups of one class, kept from round to round; a group that is too small is replaced by a larger one."""

    def __init__(self, name: str, group: type[Group], width: int, runner: DeviceRunner) -> None:
        self.name, self.width = name, width
        self._class, self._runner = group, runner
        self.groups: dict[Hashable, Group] = {}

    def run(self, kind: Hashable, verdict: Verdict, works: Sequence[Work], placer: Placer) -> list[Result]:
        group = self.groups.get(kind)
        if group is None or group.width < len(works):
            group = self._class(
                len(works), lambda: self._runner.fresh_module(works[0], placer), verdict, self._runner.device
            )
            self.groups[kind] = group
        return group.run(works, placer)

    def forget(self, kind: Hashable) -> None:
        self.groups.pop(kind, None)

    def failures(self, kind: Hashable) -> list[str]:
        return sorted(set(self.groups[kind].failures)) if kind in self.groups else []


# Clients that take their steps together. Reasoned, not measured: 8 branches of 64 images fill a large GPU with a small
# network, and a graph's memory grows with its branches; stacked clients share their launches, so that more pay.
WIDTHS: Mapping[str, int] = {"graphs": 8, "batched": 16}
CANDIDATES = ("graphs", "batched", "plain")


def candidates(runner: DeviceRunner) -> dict[str, Candidate]:
    return {
        "graphs": Together("graphs", Group, WIDTHS["graphs"], runner),
        "batched": Together("batched", BatchedGroup, WIDTHS["batched"], runner),
        "plain": Plain(runner),
    }


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How jobs of a kind are run, and why: what was measured, or what stood against measuring."""

    candidate: str
    reason: str
    seconds: Mapping[str, float] = field(default_factory=dict)  # of one client's local step, by candidate


def measured(
    among: Mapping[str, Candidate],
    kind: Hashable,
    verdict: Verdict,
    works: Sequence[Work],
    placer: Placer,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """The candidate with the shortest time for a client's local step on these jobs; the others' memory is freed.

    One that cannot run them (an operation without a batched form, memory) is out, and the reason says so; with none
    left, jobs run plain.
    """
    seconds: dict[str, float] = {}
    out: list[str] = []
    for name, candidate in among.items():
        trial = [replace(work, batches=work.batches[:MEASURED_STEPS]) for work in works[: candidate.width]]
        try:
            seconds[name] = _seconds_a_step(candidate, kind, verdict, trial, placer, clock)
        except (RuntimeError, ValueError, TypeError) as error:
            out.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
    best = min(seconds, key=lambda name: seconds[name]) if seconds else "plain"
    for name, candidate in among.items():
        if name != best:
            candidate.forget(kind)
    reason = "measured" if len(among) > 1 else "asked for"
    return Choice(candidate=best, reason="; ".join([reason, *out]), seconds=seconds)


def _seconds_a_step(
    candidate: Candidate,
    kind: Hashable,
    verdict: Verdict,
    works: Sequence[Work],
    placer: Placer,
    clock: Callable[[], float],
) -> float:
    """Seconds of one client's local step, once all steps that come first have been taken and captured."""
    warm_runs = -(-(EAGER_STEPS + 1) // min(len(work.batches) for work in works))
    for _ in range(warm_runs):
        candidate.run(kind, verdict, works, placer)
    wait_for(placer.device)
    begin = clock()
    candidate.run(kind, verdict, works, placer)
    wait_for(placer.device)
    return (clock() - begin) / sum(len(work.batches) for work in works)


def wait_for(device: torch.device) -> None:
    """Until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
