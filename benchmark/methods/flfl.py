"""(FL)^2: clients have individual thresholds, and learn consistent predictions under perturbed weights.

Lee, Le, Shin, Lee. (FL)^2: Overcoming Few Labels in Federated Semi-Supervised Learning. NeurIPS 2024, arXiv:2410.23227.
Algorithm 1, Eqs. 7-15, Table 4. Released code: seungjoo-ai/FLFL-NeurIPS24, decdf7d (paths under src/).

A client labels its images once, from one weak view in evaluation mode, and trains on the images above the client's
threshold of their class (Eqs. 7 to 10). The images with a confidence of at least tau_f define the direction of the
weights' perturbation (Eqs. 11 and 12). Predictions at the perturbed weights learn the predictions at the original
weights (Eq. 13). Less confident clients have a higher weight in the mean (Eq. 15). Server and clients train
alternately, as in `semifl`.

Deviations: reports/semifl/departures.md, entries 22 to 24. In addition:
1. The server update at the beginning of a round in Algorithm 1 takes place at the end of the previous round, as in the
   released code, and the first round also begins with one. The order of all work is the same, and the model of every
   round has its statistics.
2. An image exactly at its threshold is selected, as in the released code, so that every client selects at least one
   image; Eq. 10 only selects images above the threshold.
3. Eq. 13 specifies neither the images nor the mean: the loss is summed over the images with a confidence of at least
   tau_f and divided by the size of the batch, as in the released code (algorithm/criterion.py). No gradient flows into
   the prediction at the original weights.
4. Statistics are pooled (entry 8 of reports/semifl/departures.md), and a forward pass at perturbed weights does not
   change them.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from benchmark.config import Count, NotNegative, Share, ShareBelow1, Whole
from benchmark.losses import divergence_loss
from benchmark.methods import protocol as fl
from benchmark.methods import shared
from benchmark.methods.static_norm import with_static_statistics

ETA = 0.01  # eta of ASAM; it also perturbs weights of 0 (algorithm/sam.py)
LEAST = 1e-12  # lower bound of a client's weight, so that clients count equally if all of them have a confidence of 1


@dataclass(frozen=True, kw_only=True)
class FL2(fl.Method):
    """(FL)^2 (Algorithm 1). The comments name the symbols of Table 4."""

    threshold: Share = 0.95  # tau_f
    rho: NotNegative = 0.1  # rho     1 on CIFAR-100; appendix C's text has .5, against Table 4 and section 5.1
    consistency_weight: NotNegative = 1.0  # w_cs    w_a is 1
    server_momentum: ShareBelow1 = 0.5  # FedAvg momentum
    batch_size: Count = 32
    server_batch_size: Count = 10
    # The view for the prediction at the original weights. strong: the same view as for the perturbed weights (Eq. 13;
    # config.yml: use_weak: False). weak: the other setting of the released code. Default: the paper's, which is also
    # the default of the code.
    anchor: Literal["strong", "weak"] = "strong"
    # Algorithm 1 does not mention momentum buffers; the released code keeps the buffers of clients and server for their
    # next round (modules/client.py:53-56, 80; modules/server.py). Default: reset, as in `semifl`.
    momentum: Literal["reset", "released_code"] = "reset"
    # Initial rounds with training only at the server. Released code: 10 on CIFAR-10, and about 2,048 steps on SVHN;
    # Algorithm 1 has none.
    warm_start_rounds: Whole = 0

    needs = frozenset({"server", "open"})
    asks_for_statistics = True

    def init(self, setup: fl.Setup) -> fl.State:
        return fl.State(server={"student": setup.initial_weights(), "velocity": None})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        student, velocity = state.server["student"], state.server["velocity"]
        is_warm = world.round <= self.warm_start_rounds
        if is_warm or world.round == 1:
            student = self._server_update(student, world, draw=0)
        if not is_warm:
            student, velocity = self._clients(student, velocity, world)
            student = self._server_update(student, world, draw=1)
        return fl.State(server={"student": student, "velocity": velocity}), {}

    def _server_update(self, student: fl.Weights, world: fl.World, draw: int) -> fl.Weights:
        """Run lines 4 and 5: train on the server's labels and measure the statistics."""
        keeps = self.momentum == "released_code"
        trained = shared.trained_at_server(student, world, self.server_batch_size, draw, keeps_momentum=keeps)
        return with_static_statistics(trained, world, range(world.K))

    def _clients(
        self, student: fl.Weights, velocity: fl.Weights | None, world: fl.World
    ) -> tuple[fl.Weights, fl.Weights | None]:
        """Run lines 6 to 26: train the cohort and take a step of global momentum (appendix C).

        Less confident clients have a higher weight in the mean (Eq. 15). Return the new weights and velocity.
        """
        views = ("strong",) if self.anchor == "strong" else ("weak", "strong")
        data = {"unlabelled": fl.Stream.whole("unlabelled", self.batch_size, *views)}
        most = max(world.unlabelled(client) for client in range(world.K))
        update = ClientUpdate(
            method=self, keeps_momentum=self.momentum == "released_code", most=most, fixed=tuple(world.fixed())
        )
        average = shared.RunningMean()
        for _, sends in shared.sent(shared.fit_each(world, world.cohort(), update, {"student": student}, data)):
            average.add(sends["student"], max(1.0 - sends["tau"], LEAST))
        mean = average.value() if average.total else None
        return shared.momentum_step(student, mean, velocity, self.server_momentum, world.buffers())


class Labelled(NamedTuple):
    """The pseudo-labels of a client."""

    labels_N: Tensor
    kept_N: Tensor  # bool: whether the image is selected, with a confidence at or above the threshold of its class
    sure_N: Tensor  # bool: whether it is selected and has a confidence of at least tau_f
    tau: float  # Eq. 7


def adaptively_labelled(logits_ND: Tensor, threshold: float) -> Labelled:
    """Compute pseudo-labels and adaptive thresholds by Eqs. 7 to 10.

    Means are computed in float64, so that rounding cannot put the most confident image below the mean.
    """
    probs_ND = torch.softmax(logits_ND, dim=-1).double()
    confidence_N, labels_N = probs_ND.max(dim=-1)
    tau = confidence_N.mean()
    share_D = probs_ND.mean(dim=0)
    tau_D = share_D / share_D.max() * tau
    kept_N = confidence_N >= tau_D[labels_N]
    return Labelled(labels_N, kept_N, kept_N & (confidence_N >= threshold), float(tau))


def perturbed(weights: fl.Weights, gradients: fl.Weights, rho: float) -> fl.Weights:
    """Return the weights after the ascent step of ASAM with these gradients.

    The step is Eq. 12 with T^2 in place of the identity: e = rho T^2 g / ||T g||, where T is |w| + ETA for tensors with
    "weight" in their name, and 1 for others (algorithm/sam.py:17-57). The step does not depend on the scale of the
    loss, and is 0 for a gradient of 0. No gradient flows into the step, so that the gradient with respect to the result
    is the gradient with respect to the weights.
    """
    with torch.no_grad():
        sizes = {
            name: weight.abs() + ETA if "weight" in name else torch.ones_like(weight)
            for name, weight in weights.items()
        }
        steps = {name: size * gradients[name] for name, size in sizes.items()}
        length = torch.stack([step.norm() for step in steps.values()]).norm().clamp(min=1e-16)
        steps = {name: step * sizes[name] * (rho / length) for name, step in steps.items()}
    return {name: weight + steps[name] for name, weight in weights.items()}


@dataclass(frozen=True, kw_only=True)
class ClientUpdate(shared.StudentUpdate):
    """Local work of a client (lines 9 to 22)."""

    method: FL2
    most: int  # the largest number of images at a client, so that tensors have the same shape at all clients
    fixed: tuple[str, ...] = ()  # parameters that are not trained, and therefore not perturbed

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        """Label all images once (line 9). A client without images skips the round."""
        logits_ND = reader.predict(received["student"], "unlabelled", "weak")
        if not len(logits_ND):
            return None
        given = adaptively_labelled(logits_ND, self.method.threshold)
        local = shared.with_own_labels(self.begin(received, private, reader), given.labels_N, given.kept_N)
        sure_M = nn.functional.pad(given.sure_N, (0, self.most - len(given.sure_N)))
        local.notes.update(tau=given.tau, sure_M=sure_M)
        return local

    def finish(self, local: fl.Local) -> fl.Tree:
        """Return the student and tau (line 24)."""
        return {**super().finish(local), "tau": local.notes["tau"]}

    def loss(self, step: fl.Step) -> fl.Loss:
        """Compute the loss of lines 15 to 21 (Eqs. 10 to 14)."""
        method = self.method
        network = step.student
        images = step.batch["unlabelled"]
        sure_N = images.of_images(step.notes["sure_M"])
        weights: fl.Weights = {name: w for name, w in network.named_parameters() if name not in self.fixed}

        def losses_of(weights: fl.Weights) -> tuple[Tensor, tuple[Tensor, fl.Weights]]:
            buffers = shared.buffers_within(network, weights)
            logits_ND = functional_call(network, {**weights, **buffers}, (images.views["strong"],))
            losses_N = nn.functional.cross_entropy(logits_ND, images.given_N, reduction="none")
            return losses_N, (logits_ND, buffers)

        losses_N, slopes_of, (logits_ND, buffers) = vjp(losses_of, weights, has_aux=True)  # type: ignore[misc]  # torch's type
        shared.put_buffers(network, buffers)
        loss = losses_N.mean()
        if not method.consistency_weight:
            return loss, {"client/loss": loss}
        (gradients,) = slopes_of(sure_N.to(losses_N.dtype))
        moved = perturbed(weights, gradients, method.rho)
        # The pass at `moved` updates these copies, and not the statistics of the network.
        left_out = {name: buffer.clone() for name, buffer in network.named_buffers()}
        weak = method.anchor == "weak"
        anchor_ND = shared.predict_weak(network, images.views["weak"], "train") if weak else logits_ND
        moved_ND = functional_call(network, {**moved, **left_out}, (images.views["strong"],))
        consistency = divergence_loss(moved_ND, torch.softmax(anchor_ND, dim=-1), sure_N)
        loss = loss + method.consistency_weight * consistency
        return loss, {"client/loss": loss, "client/consistency": consistency}
