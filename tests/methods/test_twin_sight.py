"""Twin-sight: whole rounds against plain torch, and its two losses image by image."""

import math
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.federated.environment import weights_of
from benchmark.methods.protocol import Stream
from benchmark.methods.twin_sight import TwinSight, instance_loss, neighbour_loss
from tests.methods.plain_torch import PlainRounds, batches, compared, partly_labelled, step
from tests.methods.watch import tiny_with, watched

METHOD = TwinSight(
    threshold=0.14,
    unlabelled_weight=2.0,
    instance_weight=0.3,
    neighbour_weight=0.2,
    mu=0.4,
    temperature=0.5,
    hidden=6,
    projected=5,
    batch_size=8,
    labelled_batch_size=12,
)
WAYS: dict[str, TwinSight] = {
    "released": METHOD,
    "paper's mean": replace(METHOD, neighbours="paper"),
    "one threshold": replace(METHOD, confident="threshold"),
    "not proximal": replace(METHOD, mu=0.0),
    "kept momentum": replace(METHOD, momentum="kept"),
    "batch norm": METHOD,
    "batch norm, apart": replace(METHOD, forward="apart"),
}
OTHERS = {"released": "not proximal", "batch norm": "batch norm, apart", "batch norm, apart": "batch norm"}


def of(way: str) -> Any:
    return partly_labelled(WAYS[way], "bn" if "batch norm" in way else "gn", C=4, T=2)


class Plain(PlainRounds):
    """Twin-sight in plain torch: three modules per client."""

    def begin(self) -> None:
        start = self.method.init(self.environment.setup()).server
        self.twin_now, self.projector_now = start["twin"], start["projector"]

    def projector(self) -> nn.Sequential:
        first, norm, last = nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
        values = self.projector_now
        with torch.no_grad():
            for parameter, name in (
                (first.weight, "in_weight"),
                (first.bias, "in_bias"),
                (norm.weight, "scale"),
                (norm.bias, "shift"),
                (last.weight, "out_weight"),
                (last.bias, "out_bias"),
            ):
                parameter.copy_(values[name])
        return nn.Sequential(first, norm, nn.ReLU(), last).train()

    def job(self, client: int) -> Any:
        method = self.method
        student = self.network()
        twin = self.network()
        twin.load_state_dict(self.twin_now)
        projector = self.projector()
        networks = (student, twin, projector)
        before = [value.detach().clone() for network in networks for value in network.parameters()]
        sgd = self.optimizer(client, *networks)
        streams = {"labelled": Stream(part="labelled", batch_size=12, views=("weak", "strong"))}
        streams["unlabelled"] = Stream(part="unlabelled", batch_size=8, views=("weak", "strong"))
        self.top = torch.tensor(0.1)
        self.mean_D = torch.full((10,), 0.1)
        for batch in batches(self.environment, self.number, client, self.T, streams):
            labelled, unlabelled = batch["labelled"], batch["unlabelled"]
            L = len(labelled.labels_N)  # labelled images, which precede the unlabelled ones in each view
            N = L + len(unlabelled.views["weak"])
            views = [images.views[view] for view in ("weak", "strong") for images in (labelled, unlabelled)]
            logits_VD, own_VF = self.with_features(student, views)
            _, twin_VF = self.with_features(twin, views)
            instance = plain_instance_loss(projector(twin_VF), temperature=0.5)
            neighbours = self.neighbours(own_VF[:N], twin_VF[:N])
            consistency = self.consistency(weak_UD=logits_VD[L:N], strong_UD=logits_VD[N + L :])
            supervised = F.cross_entropy(logits_VD[:L], labelled.labels_N)
            loss = supervised + 2.0 * consistency + 0.3 * instance + 0.2 * neighbours
            if method.mu:
                now = [value for network in networks for value in network.parameters()]
                loss = loss + 0.4 * sum(((a - b) ** 2).sum() for a, b in zip(now, before, strict=True))
            step(sgd, loss)
        self.keep(client, sgd)
        first, norm, _, last = cast(Any, projector)
        layers = {"in_weight": first.weight, "in_bias": first.bias, "scale": norm.weight, "shift": norm.bias}
        layers |= {"out_weight": last.weight, "out_bias": last.bias}
        size = self.environment.sizes[client]
        return weights_of(student), weights_of(twin), {name: value.detach() for name, value in layers.items()}, size

    def neighbours(self, own_NF: Tensor, twin_NF: Tensor) -> Tensor:
        """Compute the squared differences of the cosines of all pairs of images in the two networks."""
        N = len(own_NF)
        own_NN, twin_NN = (F.cosine_similarity(f_NF[:, None], f_NF[None], dim=2) for f_NF in (own_NF, twin_NF))
        return ((own_NN - twin_NN) ** 2).sum() / (N * N if self.method.neighbours == "paper" else N ^ 2)

    def consistency(self, weak_UD: Tensor, strong_UD: Tensor) -> Tensor:
        """Compute the loss on the pseudo-labels of the unlabelled images, and update the running thresholds."""
        p_UD = weak_UD.detach().softmax(1)
        top_U, labels_U = p_UD.amax(1), p_UD.argmax(1)
        if self.method.confident == "released_code":
            self.top = 0.999 * self.top + 0.001 * top_U.mean()
            self.mean_D = 0.999 * self.mean_D + 0.001 * p_UD.mean(0)
            sure_U = top_U >= (self.top * self.mean_D / self.mean_D.max())[labels_U]
        else:
            sure_U = top_U >= self.method.threshold
        return (F.cross_entropy(strong_UD, labels_U, reduction="none") * sure_U).mean()

    def with_features(self, network: Any, views: list[Tensor]) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        hook = network.fc2.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        logits = torch.cat(list(self.passed(network, views)))
        hook.remove()
        return logits, torch.cat(seen)

    def ends(self, returned: list[Any]) -> None:
        total = sum(size for *_, size in returned)
        averages = []
        for place in range(3):
            average = {}
            for name, value in returned[0][place].items():
                terms = [one[place][name].double() * (one[3] / total) for one in returned]
                average[name] = torch.stack(terms).sum(0).to(value.dtype)
            averages.append(average)
        self.now, self.twin_now, self.projector_now = averages


def plain_instance_loss(z_VP: Tensor, temperature: float) -> Tensor:
    """Compute the cross-entropy of each view's cosines with all other views; its second view is the target."""
    V = len(z_VP)
    similar_VV = F.cosine_similarity(z_VP[:, None], z_VP[None], dim=2) / temperature
    others_of = [[*range(view), *range(view + 1, V)] for view in range(V)]
    targets_V = torch.tensor([others.index((view + V // 2) % V) for view, others in enumerate(others_of)])
    return F.cross_entropy(similar_VV.gather(1, torch.tensor(others_of)), targets_V)


@pytest.mark.parametrize("way", WAYS)
def test_rounds_are_those_of_plain_torch(way: str) -> None:
    module, plain = compared(Plain, of(way), of(OTHERS.get(way, "released")), 2, least=2e-6)
    for name, value in {**plain.twin_now, **plain.projector_now}.items():
        mine = {**module.state.server["twin"], **module.state.server["projector"]}[name]
        assert torch.allclose(mine.double(), value.double(), atol=2e-6), name


def test_a_client_with_all_labels_learns_these_and_the_others_pseudo_labels() -> None:
    """In "partial client", the terms of the twin and of the neighbourhoods are at both kinds of clients."""
    e = tiny_with(replace(METHOD, mu=0.0), "some_clients", K=4, C=4)
    _, watch = watched(replace(e, data=replace(e.data, labelled_clients=2)))
    assert sorted(list(job.data) for job, _ in watch.clients()) == 2 * [["labelled"]] + 2 * [["unlabelled"]]
    for job, outcome in watch.clients():
        has_labels = "labelled" in job.data
        assert ("client/supervised_loss" in outcome.metrics) == has_labels
        assert ("client/consistency_loss" in outcome.metrics) != has_labels
        assert outcome.metrics["client/instance_loss"] > 0 and outcome.metrics["client/neighbour_loss"] > 0


def test_without_a_weight_no_pseudo_label_is_learned() -> None:
    """As released, "partial client" learns none: the threshold then has no influence on the weights."""
    weights = []
    for threshold in (0.0, 1.0):
        method = replace(METHOD, mu=0.0, unlabelled_weight=0.0, confident="threshold", threshold=threshold)
        module, _ = watched(tiny_with(method, "some_clients"))
        assert module.metrics["pseudo/kept"] == (1.0 if threshold == 0.0 else 0.0)
        weights.append(module.state.server["student"])
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


def test_losses_by_hand() -> None:
    """Two images: their views at right angles, each image's second view equal to its first."""
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert float(instance_loss(z, 0.5)) == pytest.approx(math.log(math.exp(2) + 2) - 2)
    own = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])
    other = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    # Cosines 0 against 1 for the first pair, 1 against 0 for images 1 and 3, 0 against 0 for 2 and 3. Each is twice.
    assert float(neighbour_loss(own, other, "paper")) == pytest.approx(4 / 9)
    assert float(neighbour_loss(own, other, "released_code")) == pytest.approx(4 / (3 ^ 2))


def test_the_released_divisor_is_an_exclusive_or() -> None:
    """A batch of 64 is divided by 66 instead of 4,096; a batch of 2 would be divided by 0."""
    own, other = torch.eye(64), torch.ones(64, 3)
    ratio = neighbour_loss(own, other, "released_code") / neighbour_loss(own, other, "paper")
    assert float(ratio) == pytest.approx(4096 / 66)
    assert torch.isfinite(neighbour_loss(torch.eye(2), torch.ones(2, 3), "released_code"))


def test_the_twin_begins_with_the_same_values_in_another_order() -> None:
    from benchmark.federated.environment import prepare

    server = METHOD.init(prepare(of("released")).setup()).server
    for name, value in server["student"].items():
        assert torch.equal(value.flatten().sort().values, server["twin"][name].flatten().sort().values)
    assert not torch.equal(server["student"]["conv1.weight"], server["twin"]["conv1.weight"])
