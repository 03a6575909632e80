"""RSCFed: several random subsets of the clients, a distance-reweighted consensus of each, and the mean of these.

Liang, Lin, Fu, Zhu, Li. RSCFed: Random Sampling Consensus Federated Semi-supervised Learning. CVPR 2022, Eqs. 1-7,
Algorithm 1. Released code: XMed-Lab/RSCFed.

M times a round, K clients are drawn and trained from the global model (`mean_teacher.py`); each draw gives a
sub-consensus in which models near the draw's average count for more (`distance.py`). The next global model is their
plain mean. With beta = 0 the distances do not count: Table 2's "Basic + SSO". Its "Basic" is `fed_consist`.

Departures and switches (each a field below or in `mean_teacher.py`, where the departures of local training are):
1. `labelled_weight`, `beta_rule`, `distance`, `drawn_twice`: the paper or its released code.
2. A subset without labelled clients, or with no others, is weighted by size.
3. `unlabelled_weight` 1, `momentum` reset, `ema_warm_up` and `teacher_start` as in the paper, not as released.
4. The released best-on-test selection (README) is `evaluation.selection`, its gradient clipping `optimizer.clip`, its
   two learning rates `optimizer.server_lr` (on labels) and `optimizer.lr`.
5. All images of a client make a pass, the incomplete last batch too, as in the released code.
6. A client without images is never drawn. `federation.C` only bounds the warm start: a round has M x K jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmark.errors import ConfigError
from benchmark.methods.averaging import RunningMean
from benchmark.methods.distance import DistanceRule, LabelledWeight, Member, Weighting, sub_consensus
from benchmark.methods.mean_teacher import MeanTeacherMethod, fully_labelled, labelled_share
from benchmark.methods.objectives import check_counts
from benchmark.methods.protocol import Outcome, Setup, State, Weights, World


@dataclass(frozen=True, kw_only=True)
class RSCFed(MeanTeacherMethod):
    """Algorithm 1."""

    M: int = 3  # M       subsets a round
    subset: int = 5  # K       clients of a subset
    beta: float = 10_000.0  # beta    of Eq. 6; .01 for ISIC 2018
    # Section 4.2: labelled clients together "about 50%" (`labelled_share`). released_code: sizes x 6 in Eq. 5, and once
    # more in Eq. 6 (train_main.py:284-310), about 90 %. released_command: once, which is what README's --un_dist=avg
    # makes of it, about 60 %. by_size: Eqs. 5 and 6 as they stand. Default: the paper.
    labelled_weight: LabelledWeight = "paper"
    labelled_share: float = 0.5
    labelled_times: float = 6.0  # README: --w_mul_times
    # Eq. 6 has one beta. The released code has another, `beta_labelled`, for all of a subset that holds a labelled
    # client (train_main.py:302-315, README: --sup_scale=100). Default: the paper.
    beta_rule: Literal["paper", "released_code"] = "paper"
    beta_labelled: float = 100.0
    # Eq. 6: one norm of all parameters. released_code: the sum of the tensors' norms (FedAvg.py:24-31), which is never
    # smaller. Default: the paper.
    distance: DistanceRule = "paper"
    # A client in two subsets: Algorithm 1 (line 4) and the released code (train_main.py:210-282) train it twice, the
    # second time with what the first has left with it (teacher, momentum). reused: its one model counts in both; the
    # paper says only that the global model need not be sent again (section 3.3), as it is not here. Default: both's.
    drawn_twice: Literal["released_code", "reused"] = "released_code"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta", "beta_labelled"):
            if getattr(self, name) < 0.0:
                raise ConfigError(f"{name}: {getattr(self, name)}; 0 or more would be right")
        if not 0.0 < self.labelled_share < 1.0:
            raise ConfigError(f"labelled_share: {self.labelled_share} is outside (0, 1); 0.5 is the paper's")
        if self.labelled_times <= 0.0:
            raise ConfigError(f"labelled_times: {self.labelled_times}; a positive factor such as 6 would be right")
        owners = {
            "labelled_share": ("labelled_weight", ("paper",)),
            "labelled_times": ("labelled_weight", ("released_code", "released_command")),
            "beta_labelled": ("beta_rule", ("released_code",)),
        }
        _refuse_idle(self, owners)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        check_counts(self, M=1, subset=1)
        holders = sum(setup.sizes[client] > 0 for client in range(setup.K))
        if self.subset > holders:
            raise ConfigError(
                f"method.subset: {self.subset} of {holders} clients with images; at most {holders} would be right"
            )

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]:
        if world.round <= self.warm_start_rounds:
            return self.warm_start(state, world), {}
        subsets = self._subsets(world)
        draws = [client for subset in subsets for client in subset]
        if self.drawn_twice == "reused":
            draws = list(dict.fromkeys(draws))
        outcomes = world.fit(self.local_jobs(state, world, draws))
        average, share = RunningMean(), 0.0
        for members, models in self._by_subset(subsets, world, outcomes):
            theta_sub, weights = self.consensus(models, members)
            average.add(theta_sub)  # Eq. 7
            share += sum(w for w, member in zip(weights, members, strict=True) if member.labelled) / self.M
        return self.next_state(state, world, average.value(), draws), labelled_share(world, share)

    def _subsets(self, world: World) -> list[list[int]]:
        """M draws of K clients, without replacement inside a draw."""
        holders = [client for client in range(world.K) if world.sizes[client]]
        orders = (world.generator("subset", m).permutation(len(holders)) for m in range(self.M))
        return [[holders[i] for i in order[: self.subset]] for order in orders]

    def _by_subset(
        self, subsets: Sequence[Sequence[int]], world: World, outcomes: Iterator[Outcome]
    ) -> Iterator[tuple[list[Member], list[Weights]]]:
        """Each subset's clients and local models, as the outcomes come; `reused` keeps a model for later subsets."""
        trained: dict[int, Weights] = {}
        for subset in subsets:
            models = []
            for client in subset:
                model = trained[client] if client in trained else next(outcomes).sends["student"]
                if self.drawn_twice == "reused":
                    trained[client] = model
                models.append(model)
            yield [Member(size=world.sizes[k], labelled=fully_labelled(world, k)) for k in subset], models

    def consensus(self, models: Sequence[Weights], members: Sequence[Member]) -> tuple[Weights, list[float]]:
        """theta_sub of one subset, and the weights of its clients."""
        weighting = Weighting(rule=self.labelled_weight, share=self.labelled_share, times=self.labelled_times)
        other_beta = self.beta_rule == "released_code" and any(member.labelled for member in members)
        beta = self.beta_labelled if other_beta else self.beta
        return sub_consensus(models, members, weighting=weighting, beta=beta, distance=self.distance)


def _refuse_idle(method: object, owners: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    """A field that moves nothing must not make another cell: field -> the switch and its values that read the field.

    Raises ConfigError where such a field is not at its default although its switch does not read it.
    """
    for name, (switch, values) in owners.items():
        value, position = getattr(method, name), getattr(method, switch)
        if position not in values and value != getattr(type(method), name):
            raise ConfigError(
                f"{name}: {value!r} does nothing with {switch} {position!r}; {' or '.join(map(repr, values))} "
                "would be right"
            )
