"""`GpuEngine`: a round's jobs on one device, in waves; the host waits for the device once a wave, after its last step.

A wave is a run of jobs that do not wait for each other's private state and whose images fit into `WAVE_BYTES`. All of
it is started, its images are augmented at once, its local steps are queued kind by kind, and then it is collected.
Which updates take their steps together and which one by one: the table in `examine`.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch

from benchmark.errors import ConfigError
from benchmark.federated.batches import JobBatches
from benchmark.federated.divergence import holder_name, judged
from benchmark.federated.engines import keeper_of
from benchmark.federated.environment import Environment
from benchmark.federated.gpu.cohort import bytes_of, cohort_batches
from benchmark.federated.gpu.device import careful
from benchmark.federated.gpu.examine import Verdict, examine, kind_of
from benchmark.federated.gpu.measure import CANDIDATES, Choice, candidates, measured, wait_for
from benchmark.federated.gpu.plain import DeviceRunner
from benchmark.federated.gpu.work import Placer, Result, Work
from benchmark.federated.memory import memory_named
from benchmark.methods.protocol import Job, Local, Outcome, Tree, Weights

WAVE_BYTES = 4 << 30  # float32 views of a wave on the device; one job may take more


class GpuEngine:
    """The engine for one device. `candidate`: "measured", or one of `CANDIDATES` for all jobs that can take it.
    `choices`: those of a record that goes on (`GpuEngine.choices`), which are kept instead of measured again.

    On a CPU device the same steps run without graphs, which is what the tests compare with the reference.
    """

    name = "gpu"

    def __init__(
        self,
        environment: Environment,
        device: torch.device | str = "cuda",
        candidate: str = "measured",
        wave_bytes: int = WAVE_BYTES,
        choices: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if candidate not in ("measured", *CANDIDATES):
            right = ", ".join(("measured", *CANDIDATES))
            raise ConfigError(f"--gpu-candidate: {candidate!r}; one of {right} would be right")
        self.device = torch.device(device)
        careful(self.device)
        images_NCHW = environment.data.train_images_NCHW.to(self.device)
        self._environment = replace(environment, data=replace(environment.data, train_images_NCHW=images_NCHW))
        self._runner = DeviceRunner(self._environment, self.device)
        self._candidates = candidates(self._runner)
        self._wanted, self._wave_bytes = candidate, wave_bytes
        self._recorded = dict(choices or {})
        self._verdicts: dict[Hashable, Verdict] = {}
        self._choices: dict[Hashable, Choice] = {}
        # Work of its own stream: the default one cannot be captured, and what is warmed up has to be what is captured.
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __enter__(self) -> "GpuEngine":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of graphs and networks. The engine is usable again."""
        self._candidates = candidates(self._runner)

    @property
    def settings(self) -> dict[str, Any]:
        """For the record. Bits are the reference's only for plain jobs on a CPU; nothing more is promised."""
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return {
            "name": self.name,
            "threads": torch.get_num_threads(),
            "bit_equal": False,
            "device": kind,
            "candidate": self._wanted,
        }

    @property
    def choices(self) -> dict[str, dict[str, Any]]:
        """How each kind of local work met so far is run, and why, by its update and weight sets.

        `eager`: why captures failed, so that its steps are launched one by one.
        """
        return {
            name: asdict(choice) | {"eager": self._candidates[choice.candidate].failures(kind)}
            for (kind, choice), name in zip(self._choices.items(), names_of(self._choices), strict=True)
        }

    def fit(self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]) -> Iterator[Outcome]:
        """As `ReferenceEngine.fit`. Raises what a job raised when its outcome is due."""
        rule = self._environment.experiment.federation.on_divergence
        done = 0
        while done < len(jobs):
            wave, failure = self._begun(jobs[done:], round_number, kept)
            for job, found, losses in self._trained(wave, jobs[done : done + len(wave)], round_number):
                outcome = judged(found, losses, job, round_number, rule)
                if outcome.private is not None:
                    kept[keeper_of(job)] = outcome.private
                yield outcome
            if failure is not None:
                raise failure
            done += len(wave)

    def gradients(self, jobs: Sequence[Job], round_number: int) -> Iterator[dict[str, Weights]]:
        """As `ReferenceEngine.gradients`, one job after another."""
        for job in jobs:
            with memory_named(holder_name(job.key.client), round_number), self._on_stream():
                found = self._runner.gradient(job, round_number)
                wait_for(self.device)
            yield found

    def _begun(
        self, jobs: Sequence[Job], round_number: int, kept: MutableMapping[str, Tree]
    ) -> tuple[list[Outcome | tuple[Local, JobBatches]], Exception | None]:
        """The starts of the next wave, and the error of the job after it, if that is why it ends."""
        wave: list[Outcome | tuple[Local, JobBatches]] = []
        keepers: set[str] = set()
        room = self._wave_bytes
        for job in jobs:
            if keeper_of(job) in keepers or room <= 0:
                break
            try:
                with memory_named(holder_name(job.key.client), round_number), self._on_stream():
                    begun = self._runner.start(job, round_number, kept.get(keeper_of(job)))
            except Exception as error:
                return wave, error
            wave.append(begun)
            keepers.add(keeper_of(job))
            if not isinstance(begun, Outcome):
                room -= bytes_of(self._environment, begun[1])
        return wave, None

    def _trained(
        self, wave: Sequence[Outcome | tuple[Local, JobBatches]], jobs: Sequence[Job], round_number: int
    ) -> Iterator[tuple[Job, Outcome, list[torch.Tensor]]]:
        """The wave's outcomes, not yet judged, in order, with the losses of their steps."""
        holders = ", ".join(dict.fromkeys(holder_name(job.key.client) for job in jobs))
        with memory_named(holders, round_number), self._on_stream():
            works = self._works(wave, jobs, round_number)
            results = self._stepped(list(works.values()))
            wait_for(self.device)
        for index, (job, begun) in enumerate(zip(jobs, wave, strict=True)):
            if isinstance(begun, Outcome):
                yield job, begun, []
            else:
                outcome, losses = results[id(works[index])].outcome(works[index])
                yield job, outcome, losses

    def _works(
        self, wave: Sequence[Outcome | tuple[Local, JobBatches]], jobs: Sequence[Job], round_number: int
    ) -> dict[int, Work]:
        """The jobs of the wave that train, by their place in it, with all their batches made at once."""
        starts = {index: begun for index, begun in enumerate(wave) if not isinstance(begun, Outcome)}
        batches = cohort_batches(self._environment, [drawn for _, drawn in starts.values()], self.device)
        return {
            index: self._runner.work(jobs[index], round_number, local, made)
            for (index, (local, _)), made in zip(starts.items(), batches, strict=True)
        }

    def _stepped(self, works: Sequence[Work]) -> dict[int, Result]:
        """The results by `id` of the work, of jobs run kind by kind, on their way to the host."""
        placer = Placer(self.device)
        kinds: dict[Hashable, list[Work]] = defaultdict(list)
        for work in works:
            kinds[self._kind(work)].append(work)
        found: dict[int, Result] = {}
        for kind, members in kinds.items():
            verdict = self._verdict(kind, members[0], placer)
            candidate = self._candidates[self._choice(kind, verdict, members, placer).candidate]
            # Long jobs beside long ones, so that few steps miss a client.
            members = sorted(members, key=lambda work: -len(work.batches))
            for part in parts(members, candidate.width):
                results = candidate.run(kind, verdict, part, placer)
                found.update((id(work), result) for work, result in zip(part, results, strict=True))
        return found

    def _kind(self, work: Work) -> Hashable:
        """The work's kind, or in words why it has none."""
        try:
            return kind_of(work) if work.batches else f"{type(work.job.update).__name__}: no local step"
        except TypeError as error:
            return f"{type(work.job.update).__name__}: {error}"

    def _verdict(self, kind: Hashable, work: Work, placer: Placer) -> Verdict:
        if kind not in self._verdicts:
            if isinstance(kind, str):
                self._verdicts[kind] = Verdict(reason=kind)
            else:
                self._verdicts[kind] = examine(self._runner.fresh_module(work, placer), work.batches)
        return self._verdicts[kind]

    def _choice(self, kind: Hashable, verdict: Verdict, works: Sequence[Work], placer: Placer) -> Choice:
        """How this kind is run: settled when it is first met, with its jobs of that round."""
        if kind not in self._choices:
            if verdict.reason is not None:
                self._choices[kind] = Choice(candidate="plain", reason=verdict.reason)
            elif self._wanted == "plain":
                self._choices[kind] = Choice(candidate="plain", reason="asked for")
            else:
                self._choices[kind] = self._again(kind) or self._measured(kind, verdict, works, placer)
        return self._choices[kind]

    def _again(self, kind: Hashable) -> Choice | None:
        """The choice that the record had for this kind, so that a run that goes on takes the same kernels."""
        recorded = self._recorded.get(names_of([*self._choices, kind])[-1])
        if recorded is None or recorded["candidate"] not in self._candidates:
            return None
        return Choice(candidate=recorded["candidate"], reason=recorded["reason"], seconds=recorded["seconds"])

    def _measured(self, kind: Hashable, verdict: Verdict, works: Sequence[Work], placer: Placer) -> Choice:
        wanted = (self._wanted,) if self._wanted in CANDIDATES else CANDIDATES
        return measured({name: self._candidates[name] for name in wanted}, kind, verdict, works, placer)

    def _on_stream(self) -> Any:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def names_of(kinds: Iterable[Hashable]) -> list[str]:
    """A name for each kind of work, the same wherever kinds are met in the same order."""
    named: list[str] = []
    for number, kind in enumerate(kinds):
        update = kind[0].__name__ if isinstance(kind, tuple) else str(kind)
        named.append(update if update not in named else f"{update} {number}")
    return named


def parts(works: Sequence[Work], width: int) -> Iterator[Sequence[Work]]:
    """The works in parts of at most `width`, whose sizes differ by one at most."""
    count = -(-len(works) // width)
    first = 0
    for part in range(count):
        size = len(works) // count + (part < len(works) % count)
        yield works[first : first + size]
        first += size
