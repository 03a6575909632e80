"""FedProx-FixMatch: each client trains on its own confident pseudo-labels, held near the weights it received.

The baseline of FedMatch (Jeong et al. 2021) as FedSwitch has it: arXiv:2301.10114, sections 3.3 ("setting T = S and
skipping the EMA update") and 6.1. Algorithms 1 and 2 with T' empty in every round. No released code.

The student labels the weak view and learns the strong one; students are averaged with equal weights, and the server
trains on its labels afterwards, if it has any. Departures: those of `proximal_fixmatch`; the student labels in training
mode (`pseudo_label_mode`), as in FixMatch; FedMatch's own runs of this baseline (200 rounds) are not in its code.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchmark.methods.averaging import mean_of
from benchmark.methods.protocol import State, World
from benchmark.methods.proximal_fixmatch import ProximalFixMatch, ProximalFixMatchUpdate


@dataclass(frozen=True, kw_only=True)
class FedProxFixMatch(ProximalFixMatch):
    """Student labels throughout."""

    pseudo_label_mode: Literal["train", "eval"] = "train"  # the paper is silent; FixMatch's

    takes_missing_updates = True  # a round goes on with whoever sent something

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        student = state.server["student"]
        if world.round <= self.warm_start_rounds:
            return State(server={"student": self.warm_start(student, world)}, clients=state.clients), {}
        update = ProximalFixMatchUpdate(method=self, pseudo_label_mode=self.pseudo_label_mode)
        student = mean_of(world.fit(self.client_jobs(world, update, {"student": student})), otherwise=student)
        return State(server={"student": self.server_update(student, world)}, clients=state.clients), {}
