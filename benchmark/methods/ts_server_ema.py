"""TS-Server EMA: a global teacher, an average of the global student over rounds, labels the clients' images.

Zhao, Ghosh, Bharadwaj, Ma. arXiv:2301.10114, section 3.3 ("Communication savings"), Eq. 1. No released code.

Clients receive student and teacher and only send the student. The teacher does not change while they train. It follows
the new global student, after ServerUpdate if there is one (the last lines of Algorithm 2). Deviations: the deviations
of `fedprox_fixmatch`. The teacher labels in evaluation mode; T_0 = S_0, and T = S until the end of a warm start.
"""

from dataclasses import dataclass

from benchmark.methods import protocol as fl
from benchmark.methods.fedprox_fixmatch import ProximalFixMatchUpdate, TeacherStudent
from benchmark.methods.shared import ema, mean_of


@dataclass(frozen=True, kw_only=True)
class TSServerEMA(TeacherStudent):
    """TS-Server EMA with the teacher as the only labeller; two models are sent down and one up."""

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        student, teacher = state.server["student"], state.server["teacher"]
        update = ProximalFixMatchUpdate(method=self, labeller="teacher")
        jobs = self.client_jobs(world, update, {"student": student, "teacher": teacher})
        student = self.server_update(mean_of(world.fit(jobs), otherwise=student), world)
        teacher = ema(teacher, student, self.ratio)
        return fl.State(server={"student": student, "teacher": teacher}), {}
