"""TS-Client EMA: each client's teacher follows its student step by step.

The server averages both. Zhao, Ghosh, Bharadwaj, Ma. arXiv:2301.10114, sections 3.2 and 3.3, Eq. 1. No released code.

Clients receive student and teacher, label with their teacher, move it by Eq. 1 after every local step, and send both
back. The server takes the mean of the students and the mean of the teachers.

Departures: reports/fedswitch/departures.md, entry 8, and those of `fedprox_fixmatch`; the teacher labels in evaluation
mode, T_0 = S_0, and T = S until a warm start is over. Where `server_teacher` is the mean alone, the teacher sees
ServerUpdate through the clients only.
"""

from dataclasses import dataclass
from typing import Literal

from benchmark.methods import protocol as fl
from benchmark.methods.fedprox_fixmatch import ProximalFixMatchUpdate, TeacherStudent
from benchmark.methods.shared import RunningMean, ema, sent


@dataclass(frozen=True, kw_only=True)
class TSClientUpdate(ProximalFixMatchUpdate):
    """ClientUpdate with a local teacher that is sent back."""

    def finish(self, local: fl.Local) -> fl.Tree:
        return {**super().finish(local), "teacher": local.frozen["teacher"]}


@dataclass(frozen=True, kw_only=True)
class TSClientEMA(TeacherStudent):
    """Teacher labels throughout; two models down, two up."""

    # Default: both sentences of the paper; its Algorithms 1 and 2 end with Eq. 1, too.
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
