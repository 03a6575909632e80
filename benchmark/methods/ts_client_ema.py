"""TS-Client EMA: each client's teacher follows its student step by step.

Zhao, Ghosh, Bharadwaj, Ma. arXiv:2301.10114, sections 3.2 and 3.3, Eq. 1. No released code.

Clients receive student and teacher, label images with their teacher, update it by Eq. 1 after every local step, and
send both back. The server computes the mean of the students and the mean of the teachers.

Deviations: reports/fedswitch/departures.md, entry 8, and the deviations of `fedprox_fixmatch`. The teacher labels in
evaluation mode, T_0 = S_0, and T = S until the end of a warm start. If `server_teacher` is "mean", ServerUpdate only
affects the teacher through the clients.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.methods import protocol as fl
from benchmark.methods.fedprox_fixmatch import ProximalFixMatchUpdate, TeacherStudent
from benchmark.methods.shared import RunningMean, ema, sent


@dataclass(frozen=True, kw_only=True)
class TSClientUpdate(ProximalFixMatchUpdate):
    """Local work of a client (ClientUpdate) with a local teacher that is sent back."""

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), "teacher": local.frozen["teacher"]}


@dataclass(frozen=True, kw_only=True)
class TSClientEMA(TeacherStudent):
    """TS-Client EMA with the teacher as the only labeller; two models are sent down and two up."""

    # The paper describes both the mean and Eq. 1, and its Algorithms 1 and 2 also end with Eq. 1. Default: both.
    server_teacher: Literal["mean_then_ema", "mean"] = "mean_then_ema"

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        received = {name: state.server[name] for name in ("student", "teacher")}
        update = TSClientUpdate(method=self, labeller="teacher", local_ratio=self.ratio)
        means = {name: RunningMean() for name in received}
        for _, sends in sent(world.fit(self.client_jobs(world, update, received))):
            for name, mean in means.items():
                mean.add(sends[name])
        student, teacher = (mean.value() if mean.total else received[name] for name, mean in means.items())
        student = self.server_update(student, world)
        if self.server_teacher == "mean_then_ema":
            teacher = ema(teacher, student, self.ratio)
        return fl.State(server={"student": student, "teacher": teacher}), {}
