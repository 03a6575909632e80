"""Train the jobs of a round, or of one round of several runs of one cell, and jobs of one kind together.

Legend: M jobs of a group, S of them in one step.
"""

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias, TypeVar

import torch

from benchmark.errors import FsslError
from benchmark.federated.batches import JobBatches, key_names
from benchmark.federated.environment import Environment
from benchmark.federated.jobs import JobRunner, check_finite
from benchmark.federated.local import base_rate, concluded
from benchmark.federated.machine import failures_named
from benchmark.federated.stacked.asking import Answer, AskingReader, NotReadYet, Read
from benchmark.federated.stacked.examine import Examination
from benchmark.federated.stacked.group import Group, in_lockstep, with_fresh_streams
from benchmark.federated.stacked.kinds import Kind, Member, Uses, kind_of
from benchmark.federated.stacked.log import Log, Reported
from benchmark.federated.stacked.passes import Passes
from benchmark.federated.stacked.shared import Counts, Shared
from benchmark.federated.stacked.trees import LeftOut, Shape, row, with_own_memory
from benchmark.federated.trees import copied, floating, mapped, moved, read_at_once, sums_of, with_own_leaves
from benchmark.methods.calls import Marks, finished, marks_of, refuse_change
from benchmark.methods.protocol import Job, Local, Outcome, Tree, Weights
from benchmark.optimizer import Optimizer
from benchmark.streams import global_states, seed_global, set_global_states, stream_seed, torch_stream

Result = TypeVar("Result")

# FLOPs of all jobs in one step. This is an estimate that was not measured on a GPU yet: launching 550 operations of 28
# us needs 15 ms, and an H200 does in this time about 200 GFLOP of small float32 convolutions (14 TFLOP/s). Many more
# jobs per step gain nothing.
FLOPS_PER_TICK = 250e9
MOST_RECORDED = 8  # groups that keep their memory for later jobs


@dataclass(frozen=True, kw_only=True)
class TrainedJob:
    """A job that has been trained, and the loss of each of its local steps and phases."""

    outcome: Outcome
    losses: Sequence[float] = ()


@dataclass(kw_only=True, eq=False)
class Request:
    """Some jobs of one round of one run, with their results so far."""

    runner: "GroupRunner"
    jobs: Mapping[int, Job]
    round: int
    privates: Mapping[int, Tree | None]
    trained: dict[int, TrainedJob] = field(default_factory=dict)
    waiting: dict[int, Member] = field(default_factory=dict)  # started jobs that train separately
    error: BaseException | None = None  # ends the run

    def outcomes(self) -> dict[int, Outcome]:
        """Return the outcome of each job. Raise the error of the run, if there is one."""
        if self.error is not None:
            raise self.error
        return {index: self.trained[index].outcome for index in self.jobs}


def train_together(requests: Sequence[Request]) -> None:
    """Train the jobs of several runs of one cell, and all jobs of one kind as one, whatever their run.

    Afterwards every request has its outcomes, or the error that `run` raises for its first job with a fault. Such an
    error ends only one run: the jobs of the other runs are trained. Raise only errors that end all runs, such as
    Preempted.
    """
    lead = requests[0].runner
    received: dict[int, dict[int, Marks]] = {}
    owners: list[tuple[Request, int]] = []
    starts: list[Start] = []
    for number, request in enumerate(requests):
        received[number] = {index: marks_of(job.receives) for index, job in request.jobs.items()}
        for index in request.jobs:
            starts.append(request.runner.start_of(len(owners), index, request, "train"))
            owners.append((request, index))
    lead.start_together(starts)
    for kind, members in _kinds(starts, owners).items():
        compared = lead.counts.compared
        groups = lead.groups(kind, members)
        if compared == lead.counts.compared:  # if not, the guard has called the methods' code with these jobs
            _let_wait(members, groups, owners)
        for group in groups:
            for place, trained in lead.together(kind, group, lead.train).items():
                request, index = owners[place]
                request.trained[index] = trained
    for number, request in enumerate(requests):
        if request.error is None:
            try:
                request.runner.complete(request, received[number])
            except Exception as error:
                request.error = error


def _kinds(starts: Sequence["Start"], owners: Sequence[tuple[Request, int]]) -> dict[Kind, list[Member]]:
    """Return the jobs to train by kind, without jobs of a run with a failed `start`.

    Record the outcome of each job that has nothing to train.
    """
    for start, (request, _) in zip(starts, owners, strict=True):
        request.error = request.error or start.error
    kinds: dict[Kind, list[Member]] = defaultdict(list)
    for start, (request, index) in zip(starts, owners, strict=True):
        if request.error is None and isinstance(start.result, Member):
            try:
                kinds[kind_of(start.result, request.runner.settings)].append(start.result)
            except Exception as error:
                request.error = error
        elif request.error is None and isinstance(start.result, Outcome):
            request.trained[index] = TrainedJob(outcome=start.result)
    for kind, members in list(kinds.items()):
        kinds[kind] = [member for member in members if owners[member.index][0].error is None]
    return {kind: members for kind, members in kinds.items() if members}


def _let_wait(
    members: Sequence[Member], groups: Sequence[Sequence[Member]], owners: Sequence[tuple[Request, int]]
) -> None:
    """Keep started jobs that are in no group. Each trains separately, and its `start` is not called again."""
    grouped = {member.index for group in groups for member in group}
    for member in members:
        if member.index not in grouped:
            request, index = owners[member.index]
            request.waiting[index] = member


MemberOrOutcome: TypeAlias = Member | Outcome  # a job to train, or the outcome of a job with nothing to train


@dataclass(kw_only=True, eq=False)
class Start:
    """A job's `start`. It is called again until it requests no further passes over images."""

    begin: Callable[[Sequence[Answer]], MemberOrOutcome | Read]  # its argument: the answers to earlier requests
    answers: list[Answer] = field(default_factory=list)
    read: Read | None = None  # the pass that it requests now
    result: MemberOrOutcome | None = None
    error: Exception | None = None

    def call(self) -> None:
        """Call `start` once, and store its request, its result or its error."""
        self.read = None
        try:
            begun = self.begin(self.answers)
        except Exception as error:
            self.error = error
            return
        if isinstance(begun, Read):
            self.read = begun
        else:
            self.result = begun


class GroupRunner(JobRunner):
    """Runs all jobs of a round. `shared` is the state that it shares with runs of jobs that train with its jobs."""

    def __init__(self, environment: Environment, *, device: str = "cpu", shared: Shared | None = None) -> None:
        self._shared = shared or Shared()
        super().__init__(self._shared.on_device(environment, torch.device(device)), device=device)
        self.examination = Examination(self._shared, environment.experiment, self._device)

    @property
    def counts(self) -> Counts:
        return self._shared.counts

    @property
    def passes(self) -> Passes:
        return self._shared.passes

    @property
    def settings(self) -> Optimizer:
        return self._environment.experiment.optimizer

    def run_all(
        self, jobs: Mapping[int, Job], round_number: int, privates: Mapping[int, Tree | None]
    ) -> dict[int, Outcome]:
        """Return the outcome of each job. Raise the same errors as `run`, for the first job with a fault."""
        request = Request(runner=self, jobs=jobs, round=round_number, privates=privates)
        train_together([request])
        return request.outcomes()

    def complete(self, request: Request, received: Mapping[int, Marks]) -> None:
        """Train the jobs that are in no group, and check all jobs. Raise the same errors as `run`."""
        for index, job in request.jobs.items():
            if index not in request.trained:
                self.counts.one_at_a_time[type(job.update).__name__] += 1
                member = request.waiting.pop(index, None)
                if member is None:
                    outcome = self.run(job, request.round, copied(request.privates[index]))
                else:
                    outcome = self._resumed(member, request.round)
                request.trained[index] = TrainedJob(outcome=outcome)
        for index, job in request.jobs.items():
            refuse_change(job.update, "local work", "what it received", received[index], job.receives)
        self._check_finite(request.jobs, request.trained, request.round)

    def _resumed(self, member: Member, round_number: int) -> Outcome:
        """Train a started job separately. Raise the same errors as `run`."""
        set_global_states(member.states)
        with failures_named(member.job.key.participant, round_number):
            outcome, losses = self._trained_from(member.job, member.local, member.pseudo, round_number)
            outcome = self._moved(outcome)
        check_finite(outcome, losses, member.job, round_number)
        return outcome

    def _check_finite(self, jobs: Mapping[int, Job], trained: Mapping[int, TrainedJob], round_number: int) -> None:
        """Raise Diverged for the first job with a value that is not finite. Wait only once for the device."""
        outcomes = {index: trained[index].outcome for index in jobs}
        parts = [(outcome.sends, outcome.private or {}) for outcome in outcomes.values()]
        unread = [sums_of({str(at): {"sends": sends, "private": kept} for at, (sends, kept) in enumerate(parts)})]
        (sums,) = read_at_once(unread)
        sizes = [len(floating(tree)) for both in parts for tree in both]
        by_tree = iter(sums.split(sizes))
        for index, job in jobs.items():
            losses_S = torch.tensor(trained[index].losses, dtype=torch.float64)
            check_finite(outcomes[index], [], job, round_number, [losses_S, next(by_tree), next(by_tree)])

    def gradients_of_all(
        self, jobs: Mapping[int, Job], round_number: int, privates: Mapping[int, Tree | None]
    ) -> dict[int, dict[str, Weights]]:
        """Return the gradient of each job's loss at its initial weights; empty if the job would skip the round."""
        gradients: dict[int, dict[str, Weights]] = {}
        kinds: dict[Kind, list[Member]] = defaultdict(list)
        request = Request(runner=self, jobs=jobs, round=round_number, privates=privates)
        starts = {index: self.start_of(index, index, request, "gradient") for index in jobs}
        self.start_together(list(starts.values()))
        for index, start in starts.items():
            if start.error is not None:
                raise start.error
            if isinstance(start.result, Member):
                kinds[kind_of(start.result, self.settings)].append(start.result)
            else:
                gradients[index] = {}
        for kind, members in kinds.items():
            for group in self.groups(kind, members):
                gradients |= self.together(kind, group, self._gradients)
        for index, job in jobs.items():
            if index not in gradients:
                gradients[index] = self.gradient(job, round_number, copied(privates[index]))
        return gradients

    def start_of(self, place: int, index: int, request: Request, purpose: str) -> Start:
        """Return a job's `start`, which is not called yet. `place` is its number among the jobs that start together."""
        job, private = request.jobs[index], request.privates[index]

        def begin(answers: Sequence[Answer]) -> MemberOrOutcome | Read:
            with failures_named(job.key.participant, request.round):
                return self._begin(place, job, request.round, with_own_leaves(private), purpose, answers)

        return Start(begin=begin)

    def start_together(self, starts: Sequence[Start]) -> None:
        """Call each `start` until none requests a pass. Passes that several jobs request are made together."""
        waiting = list(starts)
        while waiting:
            for start in waiting:
                start.call()
            asking = [(start, start.read) for start in waiting if start.read is not None]
            answers = self.passes.answers([read for _, read in asking], self._network)
            waiting = []
            for (start, _), answer in zip(asking, answers, strict=True):
                start.answers.append(answer)
                waiting.append(start)

    def _begin(
        self,
        index: int,
        job: Job,
        round_number: int,
        private: Tree | None,
        purpose: str,
        answers: Sequence[Answer],
    ) -> MemberOrOutcome | Read:
        """Call the job's `start`.

        Return the job to train, its outcome if it has nothing to train, or the pass that it requests.
        """
        asking = self._asking_reader(job, round_number, purpose, answers)
        local: Local | None = None
        with contextlib.suppress(NotReadYet):
            job, local = self._started(job, round_number, private, purpose, asking)
        if asking is not None and asking.read is not None:
            return asking.read
        if local is None:
            return Outcome(key=job.key, sends={})
        quality = self._initial_quality(job, local, round_number)
        if not local.trainable:
            sends = finished(job.update, local) if purpose == "train" else {}
            return Outcome(key=job.key, sends=sends, private=local.private, metrics=quality.metrics())
        experiment = self._environment.experiment
        batches = JobBatches(self._environment, job, round_number, purpose, local.selected)
        names = (purpose, "round", round_number, *key_names(job.key))
        # As in `LocalModule.reuse`, tensors that `start` created on the host are moved, and mappings become dicts.
        local.private = None if local.private is None else moved(local.private, self._device)
        local.notes = moved(local.notes, self._device)
        local.trainable, local.frozen = moved(local.trainable, self._device), moved(local.frozen, self._device)
        return Member(
            index=index,
            run=id(self),
            prototype=partial(self._network, job.network),
            has_own_network=self._is_own(job),
            job=job,
            local=local,
            batches=batches,
            rate_at=self._rates(job, round_number, len(batches)),
            base_rate=base_rate(experiment.optimizer, job),
            draw=torch_stream(experiment.seed, *names, "loss"),
            dropout=torch.Generator().manual_seed(stream_seed(experiment.seed, *names, "dropout")),
            states=global_states(),
            pseudo=quality,
        )

    def _asking_reader(
        self, job: Job, round_number: int, purpose: str, answers: Sequence[Answer]
    ) -> AskingReader | None:
        """Return the reader of a job's `start`, or None if the job makes its passes itself."""
        if self._is_own(job):
            return None
        draw = self._stream_of_start(job, round_number, purpose)
        network = self._network(job.network)
        participant = job.key.client
        environment = self._environment
        return AskingReader(environment, network, participant, round_number, draw, job.network, answers)

    def groups(self, kind: Kind, members: Sequence[Member]) -> list[list[Member]]:
        """Divide jobs of one kind into groups that train together. A job that is in no group trains separately."""
        findings = self.examination.findings_of(kind, members) if len(members) >= self._shared.least else None
        if findings is None:
            return []
        most = self._shared.most or int(FLOPS_PER_TICK // max(1, findings.flops))
        if most < self._shared.least:
            return []
        by_shape: dict[tuple[Shape, ...], list[Member]] = defaultdict(list)
        for member in members:
            if findings.uses.in_two_places(member) is None:
                by_shape[findings.uses.shape(member)].append(member)
        groups = []
        for same in by_shape.values():
            groups += [same[first : first + most] for first in range(0, len(same), most)]
        return [group for group in groups if len(group) >= self._shared.least]

    def together(
        self, kind: Kind, members: list[Member], work: Callable[[Kind, Sequence[Member], Uses], dict[int, Result]]
    ) -> dict[int, Result]:
        """Call `work` on a group, or on its halves if memory does not suffice.

        A job without a result must be trained separately.
        """
        findings = self._shared.findings[kind]
        if findings is None or len(members) < self._shared.least:
            return {}
        try:
            return work(kind, [with_fresh_streams(member) for member in members], findings.uses)
        except torch.OutOfMemoryError:
            self._shared.groups.clear()
            if len(members) == 1:
                return {}
            half = self._shared.most = len(members) // 2
        except FsslError:  # the job that causes it raises it again when it trains by itself
            return {}
        except Exception as error:  # a step after the guard's, such as one with a different batch size
            self.examination.refuse(kind, error)
            return {}
        return self.together(kind, members[:half], work) | self.together(kind, members[half:], work)

    def _group(self, kind: Kind, members: Sequence[Member], uses: Uses) -> Group:
        """Return a group of these jobs. With a recorder, the memory of an earlier group is reused."""
        networks = self.examination.networks_for(members[0])
        recorder = self._shared.recorder
        if recorder is None or members[0].has_own_network:
            return Group(networks, members, self.settings, uses, self._device)
        key = (kind, uses.shape(members[0]), len(members))
        groups = self._shared.groups
        if key in groups:
            groups[key].begin(members)
        else:
            if len(groups) == MOST_RECORDED:
                groups.clear()
            groups[key] = Group(networks, members, self.settings, uses, self._device, recorder)
        return groups[key]

    def train(self, kind: Kind, members: Sequence[Member], uses: Uses) -> dict[int, TrainedJob]:
        group = self._group(kind, members, uses)
        log = Log()
        number = 0
        for alike in in_lockstep(members):
            for some in alike:
                results = group.step(list(some), list(some.values()), number)
                log.add(list(some), results, [batches[0].truth_N for batches in some.values()])
                self.counts.ticks += 1
                self.counts.steps += len(some)
            number += len(members[0].job.update.phases)
        self.counts.together[kind.name] += len(members)
        if group.why_not_recorded and kind.name not in self.counts.not_recorded:
            self.counts.not_recorded[kind.name] = group.why_not_recorded
            warnings.warn(f"{kind.name}: its steps are not recorded ({group.why_not_recorded})", stacklevel=2)
        reported = log.of_each(len(members))
        outcomes = [self._concluded(member, group, at, reported[at]) for at, member in enumerate(members)]
        left = [{"sends": outcome.sends, "private": outcome.private} for outcome in outcomes]
        trees = with_own_memory(left, group.state.trees())
        return {
            member.index: TrainedJob(outcome=replace(outcome, **tree), losses=part.losses)
            for member, outcome, tree, part in zip(members, outcomes, trees, reported, strict=True)
        }

    def _gradients(self, kind: Kind, members: Sequence[Member], uses: Uses) -> dict[int, dict[str, Weights]]:
        group = Group(self.examination.networks_for(members[0]), members, self.settings, uses, self._device)
        sums = group.zeros()
        images = [0] * len(members)
        for alike in in_lockstep(members):
            for some in alike:
                size = group.add_gradients(sums, list(some), list(some.values()))
                for at in some:
                    images[at] += size
        return {member.index: means_of(row(sums, at), images[at]) for at, member in enumerate(members)}

    def _concluded(self, member: Member, group: Group, at: int, reported: Reported) -> Outcome:
        """Call the job's `finish` with its rows, and with the generator states of a job that trains separately."""
        local = replace(member.local)
        left = group.state
        local.trainable = {name: row(tensors, at) for name, tensors in left.trainable.items()}
        local.frozen = {name: row(tensors, at) for name, tensors in left.frozen.items()}
        local.momentum = group.optimizer.brought_back(at)
        local.steps = len(member.batches)
        local.notes = {**local.notes, **row(left.notes, at)}
        if left.added - local.notes.keys():
            local.notes = LeftOut(local.notes, left.added)  # `finish` may request them, which raises an error
        if local.private is not None:
            local.private = {**local.private, **row(left.private, at)}
        set_global_states(member.states)
        seed_global(member.dropout.initial_seed())
        torch.default_generator.set_state(member.dropout.get_state())  # as after separate training
        return concluded(member.job, local, reported.values, member.pseudo.joined(reported.pseudo))


def means_of(sums: dict[str, Weights], images: int) -> dict[str, Weights]:
    means: dict[str, Weights] = mapped(sums, lambda total: total / images)
    return means
