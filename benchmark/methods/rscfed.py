"""RSCFed: the mean of the distance-reweighted consensus models of several random subsets.

Liang, Lin, Fu, Zhu, Li. RSCFed: Random Sampling Consensus Federated Semi-supervised Learning. CVPR 2022, Eqs. 1-7,
Algorithm 1. Released code: XMed-Lab/RSCFed; DMA is train_main.py:284-310 and FedAvg.py:24-31.

In each round, M subsets of K clients are drawn and trained from the global model (`fed_consist`). Each subset gives a
sub-consensus model by distance-reweighted model aggregation (DMA, section 3.3): models near the average of the subset
have a higher weight. The next global model is the plain mean of the sub-consensus models. With beta = 0 the distances
have no effect, which is "Basic + SSO" in Table 2.

Deviations: reports/rscfed/departures.md. In addition:
1. A subset that contains only one kind of clients, labelled or not, is weighted by size. With `per_round` the same
   applies to a round of only one kind.
2. A pass includes all images of a client, also the incomplete last batch, as in the released code.
3. A client without images is never drawn. `federation.C` only limits the warm start, since a round has M x K jobs.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from benchmark.config import Count, NotNegative, Positive, ShareBetween
from benchmark.errors import ConfigError
from benchmark.methods import protocol as fl
from benchmark.methods.fed_consist import MeanTeacherMethod, Member, member_of, share_of_labelled, weighed_by_share
from benchmark.methods.shared import RunningMean, is_statistic, mean

# Lower bound of a weight before it is scaled: if all weights of a kind are 0 in float64, the clients count equally.
LEAST = 1e-300


@dataclass(frozen=True, kw_only=True)
class RSCFed(MeanTeacherMethod):
    """RSCFed (Algorithm 1)."""

    M: Count = 3  # M       subsets per round
    subset: Count = 5  # K       clients per subset
    # beta of Eq. 6, in images per unit of distance: exp(-beta d / N_i). 10,000 is for clients with 7,300 images, as
    # in SVHN divided among ten clients. With fewer images it must decrease in proportion, or a single client has nearly
    # all of the weight in a subset. .01 for ISIC 2018.
    beta: NotNegative = 10_000.0
    # The weight of labelled clients (section 4.2: "about 50%, and other nine unlabeled clients share the remaining 50%
    # weight in each FSSL synchronization round").
    # per_round: they have `labelled_share` of the round, whatever the distances are: the weights of Eq. 6, by size,
    # are scaled over the M subsets.
    # per_subset: they have `labelled_share` of each subset that contains a labelled client, before distances; with one
    # labelled client of ten this is .25 of a round on average.
    # released_code: their sizes are multiplied by 6 in Eq. 5, and once more in Eq. 6 (train_main.py:284-310); this is
    # about .9 of such a subset, and .44 of a round.
    # released_command: their sizes are multiplied once, the effect of --un_dist=avg in the README; .28 of a round.
    # by_size: Eqs. 5 and 6 as published.
    # Default: the sentence of section 4.2. The resulting share is recorded as `aggregation/labelled_share`.
    labelled_weight: Literal["per_round", "per_subset", "released_code", "released_command", "by_size"] = field(
        default="per_round",
        metadata={"former": {"per_subset": "paper"}},  # the name in older run records
    )
    labelled_share: ShareBetween = 0.5
    labelled_times: Positive = 6.0  # README: --w_mul_times
    # Eq. 6 has a single beta. The released code has a different one, `beta_labelled`, for all clients of a subset that
    # contains a labelled client (train_main.py:302-315, README: --sup_scale=100). Default: the paper.
    beta_rule: Literal["paper", "released_code"] = "paper"
    beta_labelled: NotNegative = 100.0
    # Eq. 6 has one norm over all parameters. released_code: the sum of the tensors' norms (FedAvg.py:24-31), which is
    # never smaller. Default: the paper.
    distance: Literal["paper", "released_code"] = "paper"
    # A client in two subsets. Algorithm 1 (line 4) and the released code (train_main.py:210-282) train it twice, the
    # second time with the client state that the first job left (teacher, momentum). reused: it trains once, and its
    # model counts in both subsets; the paper only writes that the global model need not be sent again (section 3.3),
    # and this suite does not send it again. Default: the paper and the code.
    drawn_twice: Literal["released_code", "reused"] = "released_code"

    read_with = {
        "labelled_share": ("labelled_weight", ("per_round", "per_subset")),
        "labelled_times": ("labelled_weight", ("released_code", "released_command")),
        "beta_labelled": ("beta_rule", ("released_code",)),
    }

    def check(self, setup: fl.Setup) -> None:
        with_images = sum(setup.sizes[client] > 0 for client in range(setup.K))
        if self.subset > with_images:
            raise ConfigError(
                f"method.subset is {self.subset}, but only {with_images} clients have images; choose 1 to {with_images}"
            )

    def federated_round(self, state: fl.State, world: fl.World) -> fl.Round:
        subsets = self._subsets(world)
        draws = [client for subset in subsets for client in subset]
        if self.drawn_twice == "reused":
            draws = list(dict.fromkeys(draws))
        outcomes = world.fit(self.local_jobs(state, world, draws))
        by_subset = self._group_by_subset(subsets, world, outcomes)
        student, share = (self._shared_round if self.labelled_weight == "per_round" else self._mean)(by_subset)
        return fl.State(server={**state.server, "student": student}), share_of_labelled(world, share)

    def _mean(self, subsets: Iterable[tuple[list[Member], list[fl.Weights]]]) -> tuple[fl.Weights, float]:
        """Compute the plain mean of the sub-consensus models (Eq. 7), and the weight of labelled clients in it."""
        average = RunningMean()
        share = 0.0
        for members, models in subsets:
            theta_sub, weights = self.consensus(models, members)
            average.add(theta_sub)
            share += sum(w for w, member in zip(weights, members, strict=True) if member.labelled) / self.M
        return average.value(), share

    def _shared_round(self, subsets: Iterable[tuple[list[Member], list[fl.Weights]]]) -> tuple[fl.Weights, float]:
        """Compute Eq. 7 with a fixed share of the round for labelled clients, and return the mean and this share.

        The weights of each of the two kinds of clients are scaled for it. If the round has only one kind, labelled
        clients have a share of 1 or 0.
        """
        kinds = {True: RunningMean(), False: RunningMean()}
        for members, models in subsets:
            _, weights = self.consensus(models, members)
            for member, model, weight in zip(members, models, weights, strict=True):
                kinds[member.labelled].add(model, max(weight, LEAST))
        if not kinds[True].total or not kinds[False].total:
            (only,) = (kind for kind in kinds if kinds[kind].total)
            return kinds[only].value(), float(only)
        share = self.labelled_share
        return mean([kinds[True].value(), kinds[False].value()], [share, 1.0 - share]), share

    def _subsets(self, world: fl.World) -> list[list[int]]:
        """Draw M subsets of K clients, without replacement within a subset."""
        with_images = [client for client in range(world.K) if world.sizes[client]]
        subsets = []
        for m in range(self.M):
            order = world.generator("subset", m).permutation(len(with_images))
            subsets.append([with_images[i] for i in order[: self.subset]])
        return subsets

    def _group_by_subset(
        self, subsets: Sequence[Sequence[int]], world: fl.World, outcomes: Iterator[fl.Outcome]
    ) -> Iterator[tuple[list[Member], list[fl.Weights]]]:
        """Yield the clients and local models of each subset, in the order of the outcomes.

        With `drawn_twice` = reused a model is stored for later subsets.
        """
        trained: dict[int, fl.Weights] = {}
        for subset in subsets:
            models = []
            for client in subset:
                model = trained[client] if client in trained else next(outcomes).sends["student"]
                if self.drawn_twice == "reused":
                    trained[client] = model
                models.append(model)
            yield [member_of(world, client) for client in subset], models

    def consensus(self, models: Sequence[fl.Weights], members: Sequence[Member]) -> tuple[fl.Weights, list[float]]:
        """Compute theta_sub of one subset, and the weights w of its clients (Eqs. 5 and 6, Algorithm 1 lines 5 to 7).

        With beta = 0, theta_sub is the plain weighted mean, and no distance is computed. If a distance is not finite,
        theta_sub is also the plain weighted mean, so that a model that is not finite makes theta_sub not finite.
        """
        other_beta = self.beta_rule == "released_code" and any(member.labelled for member in members)
        beta = self.beta_labelled if other_beta else self.beta
        for_average, for_weights = self.frequencies(members)
        plain = [f / sum(for_weights) for f in for_weights]
        if beta == 0.0:
            return mean(models, for_weights), plain
        average = mean(models, for_average)
        distance = norm_of_all if self.distance == "paper" else sum_of_norms
        distances = [distance(model, average) for model in models]
        if not all(map(math.isfinite, distances)):
            return mean(models, for_weights), plain
        weights = reweighted(for_weights, distances, [member.size for member in members], beta)
        return mean(models, weights), weights

    def frequencies(self, members: Sequence[Member]) -> tuple[list[float], list[float]]:
        """Compute the values for N_i / N_total in Eq. 5 and in Eq. 6. They are positive and not normalised."""
        sizes = [float(member.size) for member in members]
        if self.labelled_weight in ("by_size", "per_round"):
            return sizes, sizes
        if self.labelled_weight == "per_subset":
            shares = weighed_by_share(members, self.labelled_share)
            return shares, shares
        times = [self.labelled_times if member.labelled else 1.0 for member in members]
        once = [factor * size for factor, size in zip(times, sizes, strict=True)]
        if self.labelled_weight == "released_command":  # with --un_dist=avg train_main.py:284 does not change the sizes
            return sizes, once
        return once, [factor * size for factor, size in zip(times, once, strict=True)]  # train_main.py:284-287, 307-310


def norm_of_all(left: fl.Weights, right: fl.Weights) -> float:
    """Compute ||left - right||_2 over all trained parameters as one vector (Eq. 6)."""
    return math.sqrt(sum(_squares(left, right, [name for name in left if not is_statistic(name)])))


def sum_of_norms(left: fl.Weights, right: fl.Weights) -> float:
    """Sum the norms of the differences of all tensors, including running statistics, but not integer counters.

    Source: FedAvg.py:24-31.
    """
    names = [name for name, value in left.items() if value.is_floating_point()]
    return sum(map(math.sqrt, _squares(left, right, names)))


def _squares(left: fl.Weights, right: fl.Weights, names: Sequence[str]) -> list[float]:
    """Compute ||left - right||_2^2 of each named tensor.

    All results are read at once, since each read would wait for the device.
    """
    squares = [(left[name].double() - right[name].double()).square().sum() for name in names]
    numbers: list[float] = torch.stack(squares).tolist() if squares else []
    return numbers


def reweighted(
    frequencies: Sequence[float], distances: Sequence[float], sizes: Sequence[int], beta: float
) -> list[float]:
    """Compute the weights of Eq. 6, f_i exp(-beta d_i / N_i), normalised to sum 1.

    Frequencies and sizes must be positive. The largest logarithm is subtracted first, because exp is 0 for values of
    beta d / N of some hundreds, and the result would be 0 / 0.
    """
    logs = [math.log(f) - beta * d / size for f, d, size in zip(frequencies, distances, sizes, strict=True)]
    largest = max(logs)
    powers = [math.exp(value - largest) for value in logs]
    return [power / sum(powers) for power in powers]
