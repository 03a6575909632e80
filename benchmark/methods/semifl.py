"""SemiFL: the server and the clients train alternately, the clients on their confident pseudo-labels.

Diao, Ding, Tarokh. SemiFL: Semi-Supervised Federated Learning for Unlabeled Clients with Alternate Training. NeurIPS
2022. Algorithm 1, Eqs. 1-9. Released code: dem123456789/SemiFL, 4ec3663 (paths under src/).

When a client receives the model, it labels all its images once, from one weak view in evaluation mode. D+ are the
images with a confidence of at least tau (Eq. 3), and D- equally many other images, drawn with replacement (Eq. 4). The
loss is L_fix + lambda L_mix (Eqs. 6 to 8). A client without D+ sends nothing.

Section 3.2 contrasts this alternate training with a "vanilla extension": the server and the clients train in parallel,
from the same weights, and their results are averaged. The released code has it as `ft = 0`.

Deviations: reports/semifl/departures.md, entries 1 to 9 and 26. In addition:
1. Weak views are mixed after augmentation, since a strong or weak view of a mixed image would need floating-point
   images.
2. With static batch norms, a round of Algorithm 1 ends with a mean of clients, which has no statistics. The model that
   the round sent to its clients is therefore evaluated, as in the released code, and after the last round the final
   model. Without such layers there is no pass for statistics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from benchmark.config import Count, NotNegative, Positive, Share, ShareBelow1, Whole, added
from benchmark.losses import mix_loss, mixup, pseudo_labels, supervised_loss
from benchmark.methods import protocol as fl
from benchmark.methods.shared import (
    RunningMean,
    StudentUpdate,
    fit_each,
    mean_of,
    momentum_step,
    sent,
    trained_at_server,
    with_own_labels,
)
from benchmark.methods.static_norm import with_static_statistics

NO_LABEL = -1


@dataclass(frozen=True, kw_only=True)
class SemiFL(fl.Method):
    """SemiFL (Algorithm 1). The comments name the symbols of Algorithm 1 and Table 5."""

    threshold: Share = 0.95  # tau
    mix_weight: NotNegative = 1.0  # lambda
    beta: Positive = 0.75  # a       of Beta(a, a)
    server_momentum: ShareBelow1 = 0.5  # beta_g
    batch_size: Count = 10  # B_m
    server_batch_size: Count = 10  # B_s    250 if the server has more than 1,000 images (utils.py:145-148)
    # Eq. 4 draws D- from the images below tau; the released code from all images. Default: the paper.
    mix_source: Literal["paper", "released_code"] = "paper"
    # If no image is below tau, Eq. 4 has no image to draw. Default: skip_mix, which adds no rule to the paper's.
    nothing_below: Literal["skip_mix", "draw_from_all"] = "skip_mix"
    # The paper does not mention momentum buffers; the released code keeps a client's buffers for its next round
    # (modules.py:207-218). Default: reset, since the clients of Algorithm 1 keep nothing.
    momentum: Literal["reset", "released_code"] = "reset"
    # Algorithm 1 trains the server first, and once more after the last round. In the released code the clients train
    # first (train_classifier_ssfl.py:83-96), from untrained weights in round 1. Default: the paper.
    order: Literal["paper", "released_code"] = "paper"
    # The participants with the images for the statistics of static batch norms (Table 6); only for model.norm = sbn.
    # "server_and_clients": all clients, in and outside the cohort; "server_and_cohort": only the cohort.
    statistics: Literal["server", "server_and_clients", "server_and_cohort"] = "server_and_clients"
    # "pooled": mean and variance of all data together (section 3.4). "released_code": means over batches of the batch
    # means and variances (data.py:242-254); this variance is too small if clients differ. Default: the paper.
    moments: Literal["pooled", "released_code"] = added("pooled")
    warm_start_rounds: Whole = 0  # initial rounds with training only at the server; reduced profiles need them
    # Epochs of the server per epoch of a client. Table 5 has one E for both; the E = 1 of Table 4 names no server.
    server_epochs_each: Count = added(1)
    # Section 3.2. alternate: Algorithm 1. parallel: `ft = 0` of the released code (train_classifier_ssfl.py:83-96,
    # modules.py:88-110).
    training: Literal["alternate", "parallel"] = added("alternate")

    read_with: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {"order": ("training", ("alternate",))}
    needs = frozenset({"server", "everywhere", "open"})
    asks_for_statistics = True

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"student": setup.initial_weights(), "velocity": None})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        weights, velocity = state.server["student"], state.server["velocity"]
        evaluated: fl.Weights | None = None
        if world.round <= self.warm_start_rounds:
            weights = self._server_update(weights, world, draw=0)
        elif self.training == "parallel":
            weights, velocity = self._in_parallel(weights, velocity, world)
        elif self.order == "paper":
            evaluated = weights = self._server_update(weights, world, draw=0)
            weights, velocity = self._clients(weights, velocity, world)
            if world.round == world.rounds:  # "Finally": the last two lines of Algorithm 1
                evaluated = weights = self._server_update(weights, world, draw=1)
        else:
            # Pseudo-labels need statistics; train_classifier_ssfl.py:83-96 also measures them first.
            if world.round == 1:
                weights = self._measure_statistics(weights, world)
            weights, velocity = self._clients(weights, velocity, world)
            weights = self._server_update(weights, world, draw=0)
        server: dict[str, Any] = {"student": weights, "velocity": velocity}
        if evaluated is not None and world.model.norm == "sbn":
            server["evaluated"] = evaluated
        return fl.State(server=server), {}

    def models(self, state: fl.State) -> dict[str, fl.Weights]:
        return {"student": state.server["evaluated" if "evaluated" in state.server else "student"]}

    def _server_update(self, weights: fl.Weights, world: fl.World, draw: int) -> fl.Weights:
        """Run ServerUpdate of Algorithm 1, then its line "Update the sBN statistics"."""
        trained = trained_at_server(weights, world, self.server_batch_size, draw, self.server_epochs_each)
        return self._measure_statistics(trained, world)

    def _measure_statistics(self, weights: fl.Weights, world: fl.World) -> fl.Weights:
        asked = {"server": (), "server_and_clients": range(world.K), "server_and_cohort": world.cohort()}
        return with_static_statistics(weights, world, asked[self.statistics], pooled=self.moments == "pooled")

    def _clients(
        self, weights: fl.Weights, velocity: fl.Weights | None, world: fl.World
    ) -> tuple[fl.Weights, fl.Weights | None]:
        """Run ClientUpdate at the cohort, and take the step of global momentum (Eq. 9).

        Return the new weights and velocity.
        """
        mean = mean_of(self._client_updates(weights, world), otherwise=None)
        return momentum_step(weights, mean, velocity, self.server_momentum, world.buffers())

    def _client_updates(self, weights: fl.Weights, world: fl.World) -> Iterator[fl.Outcome]:
        """Run ClientUpdate of Algorithm 1 at the cohort."""
        update = ClientUpdate(method=self, keeps_momentum=self.momentum == "released_code")
        data = {"fix": fl.Stream.whole("unlabelled", self.batch_size, "weak", "strong")}
        if self.mix_weight:
            data["mix"] = fl.Stream.whole("unlabelled", self.batch_size)
        return fit_each(world, world.cohort(), update, {"student": weights}, data)

    def _in_parallel(
        self, weights: fl.Weights, velocity: fl.Weights | None, world: fl.World
    ) -> tuple[fl.Weights, fl.Weights]:
        """Train server and clients from the same weights, and take the step of global momentum towards their mean.

        The server has half of the weight, or all of it if no client sent anything. As in the released code, the step
        begins at the server's result and not at the weights of the round's start.

        Return the new weights and velocity.
        """
        if world.round == 1:  # pseudo-labels need statistics
            weights = self._measure_statistics(weights, world)
        average = RunningMean()
        for _, sends in sent(self._client_updates(weights, world)):
            average.add(sends["student"])
        at_server = trained_at_server(weights, world, self.server_batch_size, times=self.server_epochs_each)
        average.add(at_server, average.total or 1.0)
        moved, velocity = momentum_step(at_server, average.value(), velocity, self.server_momentum, world.buffers())
        assert velocity is not None
        return self._measure_statistics(moved, world), velocity


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(StudentUpdate):
    """Local work of a client (ClientUpdate of Algorithm 1)."""

    method: SemiFL

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        """Label all images once and build the sets D+ and D- (Eqs. 2 to 4). A client without D+ trains nothing."""
        method = self.method
        labels_N, _, kept_N = pseudo_labels(reader.predict(received["student"], "unlabelled", "weak"), method.threshold)
        local = with_own_labels(self.begin(received, private, reader), labels_N, kept_N, stream="fix")
        if local.trainable:
            # D- is drawn from the images below tau (Eq. 4), or from all images (modules.py:259-262, data.py:310-322).
            all_sure = bool(kept_N.all())
            by_paper = method.mix_source == "paper"
            others_N = (~kept_N).nonzero().flatten() if by_paper and not all_sure else torch.arange(len(kept_N))
            count = len(local.selected["fix"].positions_N)
            drawn_N = others_N[torch.randint(len(others_N), (count,), generator=reader.draw)]
            skipped = by_paper and method.nothing_below == "skip_mix" and all_sure
            mix_labels_N = torch.full_like(drawn_N, NO_LABEL) if skipped else labels_N[drawn_N]
            local.selected["mix"] = fl.Selected(positions_N=drawn_N, labels_N=mix_labels_N)
        return local

    def draws(self, generator: torch.Generator, batch: Mapping[str, fl.Batch]) -> dict[str, Tensor]:
        """Draw lambda of Eq. 5 from Beta(a, a), a scalar.

        NumPy draws it, since torch cannot draw from a Beta distribution with a generator.
        """
        if not self.method.mix_weight:
            return {}
        rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
        return {"lambda": torch.tensor(rng.beta(self.method.beta, self.method.beta), dtype=torch.float64)}

    def loss(self, step: fl.Step) -> fl.Loss:
        """Compute L_fix + lambda L_mix of Eqs. 5 to 8.

        There is one lambda per batch, without the maximum of lambda and 1 - lambda
        (utils.py:115-185).
        """
        network = step.student
        fix = step.batch["fix"]
        fix_loss = supervised_loss(network(fix.views["strong"]), fix.given_N)
        if not self.method.mix_weight:
            return fix_loss, {"client/loss": fix_loss}
        mix = step.batch["mix"]
        lam = step.drawn["lambda"]
        mixed_NCHW = mixup(fix.views["weak"], mix.views["weak"], lam.to(fix.views["weak"]))
        counts = (mix.given_N != NO_LABEL).float().mean()  # 1, or 0 if the mix is skipped
        mixed_loss = counts * mix_loss(network(mixed_NCHW), fix.given_N, mix.given_N.clamp(min=0), lam)
        loss = fix_loss + self.method.mix_weight * mixed_loss
        return loss, {"client/loss": loss, "client/mix_loss": mixed_loss}
