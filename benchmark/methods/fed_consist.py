"""Fed-Consist: mean teachers at clients without labels, and one weighted mean of the whole cohort.

Yang et al. Federated semi-supervised learning for COVID region segmentation in chest CT. Medical Image Analysis 2021.
As RSCFed re-implements it (Liang et al., CVPR 2022, section 4.2; "Basic" of Table 2 has the same numbers): RSCFed's
local training, no sub-sampling, no distances, labelled clients together half of the mean. RSCFed's released code lacks
it.

Departures: those of `mean_teacher.py`. The original averages equally (section 1; "origi." in Figure 2), here by size
where `labelled_share` is null.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmark.errors import ConfigError
from benchmark.methods.averaging import RunningMean
from benchmark.methods.mean_teacher import MeanTeacherMethod, member_of, share_of_labelled, weighed_by_share
from benchmark.methods.objectives import check_range
from benchmark.methods.protocol import Setup, State, World


@dataclass(frozen=True, kw_only=True)
class FedConsist(MeanTeacherMethod):
    """One round: C clients train, and their mean is the next global model."""

    # Of the labelled clients together; best of {20 %, 30 %, 50 %, 70 %} (section 4.2). null: by size, as where all
    # clients are partially labelled (section 4.3).
    labelled_share: float | None = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labelled_share is not None:
            allowed = "(0, 1) (null: by size)"
            check_range("labelled_share", self.labelled_share, allowed, 0.0 < self.labelled_share < 1.0)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        empty = [client for client in range(setup.K) if not setup.sizes[client]]
        if len(empty) >= setup.C:
            raise ConfigError(
                f"federation.C: a cohort of {setup.C} could hold only clients without images, of which there are "
                f"{len(empty)}; choose C above {len(empty)}"
            )

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        if world.round <= self.warm_start_rounds:
            return self.warm_start(state, world), {}
        cohort = [client for client in world.cohort() if world.sizes[client]]
        members = [member_of(world, client) for client in cohort]
        share = self.labelled_share
        weights = [m.size for m in members] if share is None else weighed_by_share(members, share)
        average, labelled = RunningMean(), 0.0
        outcomes = world.fit(self.local_jobs(state, world, cohort))
        for member, weight, outcome in zip(members, weights, outcomes, strict=True):
            average.add(outcome.sends["student"], weight)
            labelled += weight * member.labelled
        state = self.next_state(state, world, average.value(), cohort)
        return state, share_of_labelled(world, labelled / average.total)
