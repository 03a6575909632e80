"""The state that runs share if their jobs train together."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmark.federated.environment import Environment
from benchmark.federated.jobs import TRAINED_ON
from benchmark.federated.stacked.capture import Recorder
from benchmark.federated.stacked.group import Group
from benchmark.federated.stacked.guard import Findings
from benchmark.federated.stacked.kinds import Kind
from benchmark.federated.stacked.passes import Passes
from benchmark.federated.stacked.tick import JobNetworks
from benchmark.federated.trees import moved


@dataclass(kw_only=True)
class Counts:
    """Counts of the jobs that were trained in each way, for tests and messages."""

    ticks: int = 0
    compared: int = 0  # steps that the guard compared
    steps: int = 0  # local steps of all jobs in these ticks
    together: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # jobs by kind
    # The number of jobs that were trained one at a time, by update.
    one_at_a_time: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    reasons: dict[str, str] = field(default_factory=dict)  # why a kind trains one job at a time
    not_recorded: dict[str, str] = field(default_factory=dict)  # why a kind's steps are not recorded


@dataclass(kw_only=True, eq=False)
class Shared:
    """The state that runs share if their jobs train together: findings on kinds, groups, networks and images."""

    most: int | None = None  # jobs in one step; if None, the largest number within `FLOPS_PER_TICK` and memory
    recorder: Recorder | None = None  # records steps as graphs; with None, steps are not recorded
    groups: dict[tuple[object, ...], Group] = field(default_factory=dict)  # groups that reuse their memory
    networks: dict[tuple[object, ...], JobNetworks] = field(default_factory=dict)
    findings: dict[Kind, Findings | None] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    passes: Passes = field(default_factory=Passes)  # passes over images for `start`
    images: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by id: a tensor and its copy on the device

    def on_device(self, environment: Environment, device: torch.device) -> Environment:
        """Return the run's environment with its training images on the device.

        Runs that loaded the same images share one copy.
        """
        tensors = {name: getattr(environment.data, name) for name in TRAINED_ON}
        there: dict[str, Any] = {}
        for name, tensor in tensors.items():
            if tensor is not None:
                if id(tensor) not in self.images:
                    self.images[id(tensor)] = tensor, moved(tensor, device)
                there[name] = self.images[id(tensor)][1]
        return replace(environment, data=replace(environment.data, **there))

    @property
    def least(self) -> int:
        """Return the smallest size of a group. Recorded steps are faster even for a single job."""
        return 1 if self.recorder else 2
