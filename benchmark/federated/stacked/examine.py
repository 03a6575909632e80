"""Examine the first step of each kind of jobs before they train together, and build the networks of a group."""

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from benchmark.errors import FsslError
from benchmark.experiment import Experiment
from benchmark.federated.batches import LocalBatch
from benchmark.federated.local import empty_layers, module_class, pass_in_bfloat16
from benchmark.federated.stacked.group import Group, first_batch, with_fresh_streams
from benchmark.federated.stacked.guard import (
    Alone,
    CannotStack,
    Findings,
    alone,
    batch_in_double,
    compare,
    first_images,
    in_double,
    reason_of,
)
from benchmark.federated.stacked.kinds import Kind, Member, signature_of
from benchmark.federated.stacked.layers import DROPOUT, with_rules
from benchmark.federated.stacked.shared import Shared
from benchmark.federated.stacked.tick import JobNetworks
from benchmark.methods.protocol import Weights


class Examination:
    """Finds out which kinds of jobs can train together, and what their steps use."""

    def __init__(self, shared: Shared, experiment: Experiment, device: torch.device) -> None:
        self._shared, self._device = shared, device
        self._settings, self._precision = experiment.optimizer, experiment.precision

    def findings_of(self, kind: Kind, members: Sequence[Member]) -> Findings | None:
        """Return the findings of the first step of the kind, or None if its jobs cannot train together."""
        findings = self._shared.findings
        is_known = kind in self._shared.findings
        try:
            known = findings[kind] if is_known else self._first_findings(members)
            if known is not None:
                self._compare_sizes(known, members)
            findings[kind] = known
        except (FsslError, torch.OutOfMemoryError):  # the job that causes it raises it again when it trains by itself
            return None
        except Exception as error:  # a method's code may raise any error under `vmap`
            self.refuse(kind, error)
        return findings[kind]

    def refuse(self, kind: Kind, error: Exception) -> None:
        """Train the jobs of this kind one at a time from now on, and print one warning with the reason."""
        self._shared.findings[kind] = None
        if kind.name not in self._shared.counts.reasons:
            reason = self._shared.counts.reasons[kind.name] = reason_of(error, kind)
            warnings.warn(f"{kind.name}: its jobs train one at a time ({reason})", stacklevel=2)

    def _first_findings(self, members: Sequence[Member]) -> Findings:
        """Take the first step of two jobs separately and together, in float64. Raise CannotStack if the steps differ.

        The two jobs have batches of the same sizes. If there is only one such job, it is used twice.
        """
        firsts = [first_batch(member.batches) for member in members[:8]]
        signatures = [signature_of(batches[0]) for batches in firsts]
        last = max(at for at, signature in enumerate(signatures) if signature == signatures[0])
        findings = self._compare_on([members[0], members[last]], [firsts[0], firsts[last]])
        findings.sizes.add(members[0].batches.sizes()[0])
        return findings

    def _compare_sizes(self, findings: Findings, members: Sequence[Member]) -> None:
        """Compare a step for each new batch size, such as the size of incomplete last batches.

        The step uses the first images of the jobs' first batches. Raise CannotStack like `_first_findings`.
        """
        largest = [member.batches.sizes()[0] for member in members]
        wanted: set[tuple[int, ...]] = set()
        for member in members:
            wanted.update(member.batches.sizes())
        for sizes in sorted(wanted - findings.sizes):
            able = []
            for member, most in zip(members, largest, strict=True):
                if all(size <= most_of_stream for size, most_of_stream in zip(sizes, most, strict=True)):
                    able.append(member)
            two = [able[0], able[-1]][: len(able)]
            batches = []
            for member in two:
                batches.append([first_images(batch, sizes) for batch in first_batch(member.batches)])
            if signature_of(batches[0][0]) != signature_of(batches[-1][0]):
                two, batches = two[:1], batches[:1]
            self._compare_on(two, batches)
            findings.sizes.add(sizes)

    def _compare_on(self, two: Sequence[Member], batches: Sequence[Sequence[LocalBatch]]) -> Findings:
        """Take a step of one or two jobs on these batches separately and together. Raise CannotStack if they differ."""
        self._shared.counts.compared += 1
        batches = [list(map(batch_in_double, of_job)) for of_job in batches]
        singles = [self._alone(member, batch) for member, batch in zip(two, batches, strict=True)]
        uses = singles[0].uses.joined(singles[-1].uses)
        twice = uses.in_two_places(two[0])
        if twice is not None:
            raise CannotStack(f"{twice!r} is in two entries of its client state and notes; make a copy")
        if uses.shape(two[0]) != uses.shape(two[-1]):
            two, batches, singles = two[:1], batches[:1], singles[:1]
        doubles = [in_double(with_fresh_streams(member)) for member in two]
        group = Group(self.networks_for(two[0], double=True), doubles, self._settings, uses, self._device)
        results = group.step(range(len(two)), batches, 0)
        for at, single in enumerate(singles):
            compare(single.results, group.results_of(at, results))
        return Findings(uses=uses, flops=singles[0].flops)

    def _alone(self, member: Member, batches: Sequence[LocalBatch]) -> Alone:
        member = in_double(with_fresh_streams(member))
        # The network's own layers; only dropout on a GPU is replaced, so that its masks are drawn from the job's
        # stream.
        rules = {} if self._device.type == "cpu" else DROPOUT
        network = with_rules(member.prototype(), rules).double()
        job = member.job
        module = module_class(job)(job, member.local, network, self._settings, member.rate_at)
        module.draw = member.draw
        return alone(module, batches, member.dropout)

    def networks_for(self, member: Member, *, double: bool = False) -> JobNetworks:
        """Return networks for a job, in float64 if `double`. Jobs with equal weight sets share them."""
        local = member.local
        key = (member.job.network, tuple(local.trainable), tuple(local.frozen), local.layers, double)
        if key not in self._shared.networks or member.has_own_network:
            trainable = {
                name: self._network_of(member, name, weights, double) for name, weights in local.trainable.items()
            }
            frozen = {name: self._network_of(member, name, weights, double) for name, weights in local.frozen.items()}
            self._shared.networks[key] = JobNetworks(nn.ModuleDict(trainable), nn.ModuleDict(frozen))
        networks = self._shared.networks[key]
        networks.trainable.train()
        networks.frozen.eval()
        return networks

    def _network_of(self, member: Member, name: str, weights: Weights, double: bool) -> nn.Module:
        if name in member.local.layers:
            layers = empty_layers(weights)
            return layers.double() if double else layers
        network = with_rules(member.prototype())
        if self._precision == "bf16" and not double:
            pass_in_bfloat16(network)
        return network.double() if double else network
