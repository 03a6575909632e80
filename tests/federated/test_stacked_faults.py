"""What a user's own method or network may do, and the stacked engine has to get right or refuse.

Most faults here are silent ones: the first step of a kind, which the guard compares, shows nothing.
"""

# mypy: disable-error-code="assignment, operator, index, attr-defined, union-attr, misc, has-type"
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmark.data.partition import Dirichlet
from benchmark.experiment import Experiment
from benchmark.federated.stacked.runner import GroupRunner
from benchmark.federated.stacked.shared import Shared
from benchmark.methods import protocol as fl
from benchmark.methods.shared import mean_of
from benchmark.models.build import Model
from benchmark.optimizer import Cosine, Optimizer
from tests.federated.test_capture import Operations, Recorder
from tests.federated.test_stacked import Both, difference, longer
from tests.methods.golden import TRACES

PLACE = "tests.federated.test_stacked_faults"


pytestmark = [pytest.mark.usefixtures("in_float64"), pytest.mark.filterwarnings("ignore")]


@dataclass(frozen=True, kw_only=True)
class Plain(fl.LocalUpdate):
    """Supervised training."""

    def loss(self, step: fl.Step) -> fl.Loss:
        batch = step.batch["labelled"]
        return F.cross_entropy(step.student(batch.views["weak"]), batch.known_N), {}


Updates = Callable[[int, int], fl.LocalUpdate]  # (client, round) -> its update
UPDATES: dict[str, Updates] = {}


@dataclass(frozen=True, kw_only=True)
class Users(fl.Method):
    """A user's method, whose clients have the updates of `UPDATES`."""

    needs = frozenset({"every_client", "everywhere"})
    updates: str
    limit: int | None = None
    batch: int = 8

    def received(self, state: fl.State, client: int, round_number: int) -> fl.Tree:
        of_client = torch.full((3,), 0.1 * (client + round_number))
        return {"student": state.server["student"], "extra": of_client}

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        data = {"labelled": fl.Stream.whole("labelled", self.batch)}
        make = UPDATES[self.updates]
        jobs = [
            world.job(client, make(client, world.round), self.received(state, client, world.round), data)
            for client in range(world.K)
        ]
        outcomes = list(world.fit(jobs))
        others: fl.Tree = {}
        for outcome in outcomes:
            sends = {name: value for name, value in outcome.sends.items() if name != "student"}
            others[f"{outcome.key.client}"] = sends
        server = {"student": mean_of(outcomes, state.server["student"]), "others": others}
        return fl.State(server=server), {}


def users(
    updates: type | Updates,
    network: type[nn.Module] | None = None,
    rounds: int = 2,
    optimizer: Optimizer | None = None,
    batch: int = 8,
    engine: Mapping[str, Any] | None = None,
    **federation: Any,
) -> Both:
    """Run both engines for some rounds of a user's method, with the settings of `users_experiment`."""
    both = Both(users_experiment(updates, network, rounds, optimizer, batch, **federation), **(engine or {}))
    both.play(rounds)
    return both


def users_experiment(
    updates: type | Updates,
    network: type[nn.Module] | None = None,
    rounds: int = 2,
    optimizer: Optimizer | None = None,
    batch: int = 8,
    **federation: Any,
) -> Experiment:
    """Make an experiment with a user's method. Data are of unequal sizes, with incomplete last batches."""
    make: Updates = (lambda client, round_number: updates()) if isinstance(updates, type) else updates
    UPDATES["own"] = make
    trace = TRACES["supervised-fl-everywhere"]
    experiment: Experiment = replace(
        longer(trace, rounds, **({"epochs": 2} | federation)),
        method=Users(updates="own", batch=batch),
        data=replace(trace.data, images=400),
        partition=Dirichlet(alpha=1.0),
    )
    if network is not None:
        experiment = replace(experiment, model=Model(network=f"{PLACE}:{network.__name__}", norm="none"))
    if optimizer is not None:
        experiment = replace(experiment, optimizer=optimizer)
    return experiment


class Small(nn.Module):
    """A user's network."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image_shape[0], 4, 3)
        self.last = nn.Linear(4, num_classes)

    def hidden(self, images: Tensor) -> Tensor:
        return torch.relu(self.conv(images)).mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.hidden(images))


def test_a_plain_update_stacks():
    both = users(Plain, Small)
    assert both.together and not both.engine.runner.counts.reasons and both.off < 1e-11


class CountsFirst(Small):
    """The first tensor of its state dict is a whole number."""

    calls: Tensor

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return super().forward(images)


def test_rates_of_jobs_are_no_whole_numbers():
    """With a rate for each job, the rates once had the type of the first tensor of the network."""
    both = users(Plain, CountsFirst, optimizer=Optimizer(lr=0.05, schedule=Cosine()))
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


CALLS = {"first": 0}


@dataclass(frozen=True, kw_only=True)
class Ignores(Plain):
    """Labels of incomplete batches are ignored in part, as those of images below a threshold would be."""

    def loss(self, step: fl.Step) -> fl.Loss:
        batch = step.batch["labelled"]
        labels_N = batch.known_N
        at_N = torch.arange(len(batch.known_N))
        if len(labels_N) < 8:
            labels_N = torch.where(at_N % 2 == 0, labels_N, -100)
        return F.cross_entropy(step.student(batch.views["weak"]), labels_N), {}


def test_cross_entropy_without_ignored_labels():
    both = users(Ignores, Small)
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [-100, 2])
def test_cross_entropy_is_that_of_torch(reduction, ignored):
    from benchmark.federated.stacked.tick import REPLACED

    logits_ND = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels_N = torch.tensor([0, 2, 3, -100 if ignored == -100 else 2, 1, 2])
    results = []
    for function in (F.cross_entropy, REPLACED["cross_entropy"]):
        loss = function(logits_ND, labels_N, ignore_index=ignored, reduction=reduction)
        (gradient,) = torch.autograd.grad(loss.sum(), logits_ND)
        results.append((loss.detach(), gradient))
    torch.testing.assert_close(results[0], results[1])


def test_a_label_that_is_no_class_does_not_count_as_none():
    from benchmark.federated.stacked.tick import REPLACED

    assert REPLACED["cross_entropy"](torch.zeros(2, 4), torch.tensor([1, 4])).isnan()


class Warms(Small):
    """Its output depends on how often it was called."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.called = 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.called += 1
        return super().forward(images) * min(1.0, self.called / 10)


def test_a_network_that_counts_its_calls():
    assert users(Plain, Warms).off < 1e-11


class Tells(Small):
    """It looks at the types of its layers."""

    def forward(self, images: Tensor) -> Tensor:
        factor = 1.0 if type(self.conv) is nn.Conv2d else 3.0
        return factor * super().forward(images)


def test_a_network_that_looks_at_its_layers():
    assert users(Plain, Tells).off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Weighted(Plain):
    """Its classes have weights, a tensor whose `repr` is rounded."""

    weight_D: Any

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        weight = self.weight_D if isinstance(self.weight_D, float) else float(self.weight_D[5])
        return loss * weight, aux


def long(value: float) -> Any:
    """Return values that differ although their `repr` is equal."""
    values = torch.ones(3000)
    values[5] += value
    return values


@pytest.mark.parametrize("kind", ["tensor", "array"])
def test_fields_whose_text_is_the_same(kind):
    def make(client: int, round_number: int) -> fl.LocalUpdate:
        values = long(0.0 if round_number == 1 or client == 0 else 0.1 * client)
        return Weighted(weight_D=values if kind == "tensor" else values.numpy())

    assert users(make, Small).off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Hidden(Plain):
    factor: float = field(repr=False)

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * self.factor, aux


def test_a_field_without_text_that_steps_use():
    def make(client: int, round_number: int) -> fl.LocalUpdate:
        return Hidden(factor=1.0 + (client if round_number == 2 else 0))

    assert users(make, Small).off < 1e-11


@dataclass(frozen=True, kw_only=True)
class ReadsLater(Plain):
    """It looks at what it received where a batch is incomplete."""

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        if len(step.batch["labelled"].known_N) < 8:
            extra = step.received.get("extra")
            loss = loss if extra is None else loss * extra.sum()
        return loss, aux


def test_what_only_later_steps_read():
    assert users(ReadsLater, Small).off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Notes(Plain):
    """Its notes change their kind where a batch is incomplete."""

    how: str

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        local = fl.Local(trainable={"student": received["student"]}, private=private or {"kept": torch.zeros(())})
        local.notes = {"count": torch.zeros((), dtype=torch.int64), "last": None, "n": 0, "vector": torch.zeros(2)}
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        is_last = len(step.batch["labelled"].known_N) < 8
        if self.how == "type":
            step.notes["count"] = step.notes["count"] + (0.5 if is_last else 1.0)
        if self.how == "tensor" and is_last:
            step.notes["last"] = loss.detach()
        if self.how == "number" and is_last:
            step.notes["n"] = step.notes["n"] + 1
        if self.how == "added":
            step.notes["new"] = loss.detach()
        if self.how == "added private" and is_last:
            step.private["new"] = loss.detach()
        if self.how == "shape":
            vector = step.notes["vector"] + 1
            step.notes["vector"] = vector.sum() if is_last and vector.dim() else vector
        return loss, aux

    def finish(self, local: fl.Local) -> fl.Tree:
        found = [local.notes.get(name) for name in ("count", "last", "n", "new", "vector")]
        numbers = [torch.as_tensor(one).double().sum() for one in found if one is not None]
        return {"student": local.trainable["student"], "notes": torch.stack(numbers)}


@pytest.mark.parametrize("how", ["type", "tensor", "number", "added", "added private", "shape"])
def test_notes_that_change_their_kind(how):
    assert users(lambda client, round_number: Notes(how=how), Small).off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Shares(Plain):
    """What it keeps is in its notes, too."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        kept = private or {"sum": torch.zeros(())}
        return fl.Local(trainable={"student": received["student"]}, private=kept, notes={"sum": kept["sum"]})

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        step.notes["sum"].add_(loss.detach())
        return loss, aux


def test_a_tensor_in_notes_and_private_state():
    assert users(Shares, Small).off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Noisy(Plain):
    """It adds noise to what it sends."""

    def finish(self, local: fl.Local) -> fl.Tree:
        import random

        import numpy as np

        noise = {name: value + 0.1 * torch.randn(value.shape) for name, value in local.trainable["student"].items()}
        return {"student": noise, "drawn": torch.tensor([random.random(), float(np.random.rand())])}


class Drops(Small):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drop = nn.Dropout(0.5)

    def hidden(self, images: Tensor) -> Tensor:
        return self.drop(super().hidden(images))


@pytest.mark.parametrize("network", [Small, Drops])
def test_noise_that_finish_draws(network):
    both = users(Noisy, network)
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Lists(Plain):
    """It keeps a list, which grows."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        kept = private or {"rounds": []}
        kept["rounds"].append(torch.ones(()))
        return fl.Local(trainable={"student": received["student"]}, private=kept)

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * float(loss.detach()), aux  # one at a time

    def finish(self, local: fl.Local) -> fl.Tree:
        return {"student": local.trainable["student"], "rounds": torch.tensor(len((local.private or {})["rounds"]))}


def test_start_of_a_job_that_trains_alone_is_called_once():
    assert users(Lists, Small, rounds=3).off == 0.0


@dataclass(frozen=True, kw_only=True)
class Frozen(Plain):
    """Its notes are a mapping of another type, and its weights are of another type than the network's."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        extra = {"extra": received["extra"] / 3000}
        student = {name: value.float() for name, value in received["student"].items()}
        return fl.Local(trainable={"student": student}, notes={"of": types.MappingProxyType(extra)})

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * (1.0 + step.notes["of"]["extra"].sum()), aux


def test_other_types_of_weights_and_mappings():
    both = users(Frozen, Small)
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


class Fixed(Small):
    """Its first layer is not trained, and it has a parameter without dimensions."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.conv.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * super().forward(images)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_parameters_that_are_not_trained_and_clipping(rule):
    adam: dict[str, Any] = {"rule": "adam", "nesterov": False} if rule == "adam" else {}
    both = users(Plain, Fixed, optimizer=Optimizer(lr=0.01, clip=0.5, schedule=Cosine(), **adam))
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Changes(Plain):
    def after_step(self, step: fl.Step) -> None:
        step.received["extra"].mul_(0.9)


def test_what_was_received_is_changed_by_steps():
    from benchmark.errors import ConfigError

    with pytest.raises(ConfigError, match="extra"):
        users(Changes, Small)
    UPDATES["own"] = lambda client, round_number: Changes()
    trace = TRACES["supervised-fl-everywhere"]
    both = Both(replace(longer(trace, 1), method=Users(updates="own")))
    with pytest.raises(ConfigError, match="extra"):
        both.stacked.training_step(1, 0)


def own_layers(*layers: Callable[[int], nn.Module]) -> type[nn.Module]:
    """Build a network with these layers after its convolution, by the number of channels."""

    class WithLayers(Small):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.more = nn.Sequential(*(layer(4) for layer in layers))

        def forward(self, images: Tensor) -> Tensor:
            return self.last(self.more(torch.relu(self.conv(images))).mean(dim=(2, 3)))

    return WithLayers


NormFree = own_layers(
    lambda C: nn.GroupNorm(2, C, affine=False), lambda C: nn.InstanceNorm2d(C, affine=True), lambda C: nn.Tanh()
)
Untracked = own_layers(lambda C: nn.BatchNorm2d(C, track_running_stats=False))
Cumulative = own_layers(lambda C: nn.BatchNorm2d(C, momentum=None))
NoScale = own_layers(lambda C: nn.BatchNorm2d(C, affine=False))
Depthwise = own_layers(lambda C: nn.Conv2d(C, C, 3, groups=C, padding=1))
Dilated = own_layers(lambda C: nn.Conv2d(C, C, 3, dilation=2, padding="same", padding_mode="circular"))
Same = own_layers(lambda C: nn.Conv2d(C, C, (3, 2), padding="same", bias=False))
Pools = own_layers(lambda C: nn.MaxPool2d(2, ceil_mode=True), lambda C: nn.AdaptiveMaxPool2d((2, None)))
Averages = own_layers(lambda C: nn.AvgPool2d(2), lambda C: nn.LocalResponseNorm(2), lambda C: nn.PReLU(C))
Transposed = own_layers(lambda C: nn.ConvTranspose2d(C, C, 3, stride=2))
Alpha = own_layers(lambda C: nn.AlphaDropout(0.3))
InPlace = own_layers(lambda C: nn.Conv2d(C, C, 1), lambda C: nn.Dropout(0.3, inplace=True))
OfChannels = own_layers(lambda C: nn.Dropout2d(0.3), lambda C: nn.Dropout3d(0.2))


class OwnConv(nn.Conv2d):
    def forward(self, images_NCHW: Tensor) -> Tensor:
        return super().forward(images_NCHW) + 1.0


Subclass = own_layers(lambda C: OwnConv(C, C, 3))
for _name in (
    "NormFree",
    "Untracked",
    "Cumulative",
    "NoScale",
    "Depthwise",
    "Dilated",
    "Same",
    "Pools",
    "Averages",
    "Transposed",
    "Alpha",
    "InPlace",
    "OfChannels",
    "Subclass",
):
    globals()[_name].__name__ = _name


class Flat(Small):
    """Norms of vectors, and an embedding."""

    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Any) -> None:
        super().__init__(image_shape, num_classes, norm)
        self.batch_norm, self.layer_norm = nn.BatchNorm1d(4), nn.LayerNorm(4)
        self.embedding = nn.Embedding(5, 4, padding_idx=0)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(images)
        hidden = self.layer_norm(self.batch_norm(hidden) if len(hidden) > 1 else hidden)
        words_N = (images.mean(dim=(1, 2, 3)) > 0).long() * 3
        return self.last(hidden + self.embedding(words_N))


class Recurrent(Small):
    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Any) -> None:
        super().__init__(image_shape, num_classes, norm)
        self.lstm = nn.LSTM(image_shape[2], 4, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.lstm(images[:, 0])[0][:, -1])


class Attends(Small):
    def __init__(self, image_shape: tuple[int, int, int], num_classes: int, norm: Any) -> None:
        super().__init__(image_shape, num_classes, norm)
        self.attention = nn.MultiheadAttention(image_shape[2], 1, batch_first=True)
        self.end = nn.Linear(image_shape[2], num_classes)

    def forward(self, images: Tensor) -> Tensor:
        rows = images[:, 0]
        return self.end(self.attention(rows, rows, rows)[0].mean(dim=1))


class Tied(Small):
    """Two layers with the same weights."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def hidden(self, images: Tensor) -> Tensor:
        return torch.relu(self.two(torch.relu(self.one(super().hidden(images)))))


class Replaces(Small):
    """A buffer is replaced, and one that is no part of the state dict is changed."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.mean: Tensor
        self.calls: Tensor
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(()), persistent=False)

    def hidden(self, images: Tensor) -> Tensor:
        hidden = super().hidden(images)
        if self.training and len(images) < 8:
            self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(dim=0)
        if self.training:
            self.calls += 0.01
        return (1.0 + self.calls) * (hidden - self.mean)


class Permuted(Small):
    """Dropout of values whose memory is in another order."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drop = nn.Dropout(0.5)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.conv(images)).permute(0, 2, 3, 1)
        return self.last(self.drop(hidden.transpose(0, 1)).mean(dim=(0, 2)))


LAYERS = [
    NormFree,
    Untracked,
    Cumulative,
    NoScale,
    Depthwise,
    Dilated,
    Same,
    Pools,
    Averages,
    Transposed,
    Alpha,
    InPlace,
    OfChannels,
    Subclass,
    Flat,
    Recurrent,
    Attends,
    Tied,
    Replaces,
    Permuted,
]


@pytest.mark.parametrize("network", LAYERS, ids=lambda network: network.__name__)
def test_networks_of_users(network):
    both = users(Plain, network)
    print(network.__name__, both.together, both.engine.runner.counts.reasons, both.off)
    assert both.off < 1e-11


class Failing(Recorder):
    """A recorder whose recordings fail at an operation near their end, as a kernel that cannot be captured does."""

    def __call__(self, function: Callable[[], None]) -> Operations:
        def stopped() -> None:
            with Stops():
                function()

        return super().__call__(stopped)


class Stops(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "fused_sgd" in str(function) or "aten.sub_" in str(function):
            raise RuntimeError("operation not permitted when stream is capturing")
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True, kw_only=True)
class Sums(Plain):
    """Its notes are a sum over steps, which its loss uses."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        return fl.Local(trainable={"student": received["student"]}, notes={"sum": torch.zeros(())})

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        step.notes["sum"] = step.notes["sum"] + loss.detach()
        return loss * (1.0 + step.notes["sum"].tanh()) / 2, aux

    def finish(self, local: fl.Local) -> fl.Tree:
        return {"student": local.trainable["student"], "sum": local.notes["sum"]}


@dataclass(frozen=True, kw_only=True)
class Draws(Sums):
    """What it draws has a size that depends on the step."""

    def draws(self, generator: torch.Generator, batch: Mapping[str, fl.Batch]) -> Mapping[str, Tensor]:
        return {"noise": torch.rand(1 + len(batch["labelled"].known_N) % 2, generator=generator)}

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * step.drawn["noise"].mean(), aux


@dataclass(frozen=True, kw_only=True)
class Shrinks(Plain):
    """From the seventh batch of a job on, it draws one number in place of three."""

    def draws(self, generator: torch.Generator, batch: Mapping[str, fl.Batch]) -> Mapping[str, Tensor]:
        before = DRAWN[generator.initial_seed()] = DRAWN.get(generator.initial_seed(), 0) + 1
        return {"noise": torch.rand(3, generator=generator)[: 3 if before < 7 else 1]}

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * step.drawn["noise"].sum() / 3, aux


DRAWN: dict[int, int] = {}


def with_recorder(recorder: Any, **options: Any) -> Callable[..., Shared]:
    def shared(**given: Any) -> Shared:
        return Shared(**{**given, **options, "recorder": recorder})

    return shared


@pytest.mark.parametrize("updates", [Plain, Sums, Draws])
@pytest.mark.parametrize("recorder", [Recorder, Failing])
def test_recorded_steps_of_users_methods(updates, recorder, monkeypatch):
    monkeypatch.setattr("benchmark.federated.stacked.engine.Shared", with_recorder(recorder()))
    both = users(updates, rounds=2)
    assert bool(both.engine.runner.counts.not_recorded) == (recorder is Failing)
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Proximal(Plain):
    """Its loss pulls towards what all clients received, which changes from round to round."""

    by_number: bool = False

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        received = step.received["student"]
        apart = sum((weight - received[name]).square().sum() for name, weight in step.student.named_parameters())
        factor = 1.0 / (1 + step.number) if self.by_number else 1.0
        return loss * step.received["extra"].sum() + factor * apart, aux


@pytest.mark.parametrize("by_number", [False, True])
@pytest.mark.parametrize("recorder", [Recorder, Failing])
def test_memory_that_is_used_again_takes_over_what_the_next_round_receives(recorder, by_number, monkeypatch):
    """Also if steps are not recorded; and the tensors that an earlier round received stay as they are."""
    monkeypatch.setattr("benchmark.federated.stacked.engine.Shared", with_recorder(recorder()))
    both = users(lambda client, round_number: Proximal(by_number=by_number), rounds=1)
    first = both.stacked.state.server["student"]
    before = {name: weight.clone() for name, weight in first.items()}
    for number in (2, 3):
        both.reference.training_step(number, 0)
        both.stacked.training_step(number, 0)
    counts = both.engine.runner.counts
    assert not counts.reasons and not counts.one_at_a_time
    assert bool(counts.not_recorded) == (recorder is Failing or by_number)
    assert both.off < 1e-11 and difference(first, before) == 0.0


def test_recorded_steps_with_more_groups_than_are_kept(monkeypatch):
    """Sizes that change, groups of one job and several kinds in a round."""
    monkeypatch.setattr("benchmark.federated.stacked.engine.Shared", with_recorder(Recorder(), most=2))
    monkeypatch.setattr("benchmark.federated.stacked.runner.MOST_RECORDED", 1)

    def make(client: int, round_number: int) -> fl.LocalUpdate:
        return Sums() if client % 2 else Plain()

    both = users(make, rounds=3, K=5, C=5)
    assert set(both.together) == {"Sums", "Plain"} and both.off < 1e-11


def test_what_is_drawn_may_not_change_its_size_once_recorded(monkeypatch):
    monkeypatch.setattr("benchmark.federated.stacked.engine.Shared", with_recorder(Recorder()))
    UPDATES["own"] = lambda client, round_number: Shrinks()
    both = Both(replace(longer(TRACES["supervised-fl-everywhere"], 1, T=12), method=Users(updates="own")))
    DRAWN.clear()
    both.reference.training_step(1, 0)
    begin = GroupRunner.train

    def counted_anew(self: Any, *arguments: Any) -> Any:  # the guard has drawn, too
        DRAWN.clear()
        return begin(self, *arguments)

    monkeypatch.setattr(GroupRunner, "train", counted_anew)
    both.stacked.training_step(1, 0)
    assert both.engine.runner.counts.not_recorded and both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class Fields(Plain):
    """Each round has another field, such as a ramp."""

    ramp: float

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        return loss * self.ramp, aux


def test_a_kind_of_each_round_leaves_no_more_behind(monkeypatch):
    both = users(lambda client, round_number: Fields(ramp=1.0 / round_number), Small, rounds=5)
    assert both.off < 1e-11


@dataclass(frozen=True, kw_only=True)
class TwoPhases(Plain):
    """Two losses in turn, of which the second reaches only the last layer."""

    phases = ("loss", "second")

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        student = received["student"]
        kept = private or {"steps": torch.zeros((), dtype=torch.int64), "momentum": None}
        return fl.Local(
            trainable={"student": student, "own": {"scale": torch.ones(3)}},
            frozen={"teacher": student},
            layers=("own",),
            private=kept,
            momentum=kept["momentum"],
            notes={"none": None, "word": "a", "deep": {"of": {"x": torch.zeros(2), "n": 3}}, "first": torch.zeros(())},
        )

    def second(self, step: fl.Step) -> fl.Loss:
        images = step.batch["labelled"].views["weak"]
        with torch.no_grad():
            teacher_ND = step.frozen["teacher"](images).softmax(dim=-1)
        student: Any = step.student
        own: Any = step.trainable["own"]
        hidden = student.hidden(images).detach()
        logits_ND = student.last(hidden) * own["scale"].mean()
        step.notes["deep"]["of"]["x"] = step.notes["deep"]["of"]["x"] + step.notes["first"]
        loss = F.kl_div(logits_ND.log_softmax(dim=-1), teacher_ND, reduction="batchmean")
        sure_N = teacher_ND.max(dim=-1).values > 0.105
        return loss, {"own/labels": teacher_ND.argmax(dim=-1).sum(), "own/sure": sure_N.any()}

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        step.notes["first"] = loss.detach()
        return loss, aux

    def after_step(self, step: fl.Step) -> None:
        step.private["steps"] = step.private["steps"] + 1
        pairs = zip(step.frozen["teacher"].parameters(), step.student.parameters(), strict=True)
        for theirs, mine in pairs:
            theirs.lerp_(mine, 0.3)

    def finish(self, local: fl.Local) -> fl.Tree:
        assert local.private is not None and local.notes["deep"]["of"]["n"] == 3 and local.notes["none"] is None
        local.private = {**local.private, "momentum": local.momentum}
        weights = local.trainable["student"]
        return {
            "student": weights,
            "again": weights["conv.weight"],
            "x": local.notes["deep"]["of"]["x"],
            "scale": local.trainable["own"]["scale"],
            "teacher": local.frozen["teacher"],
        }


SETTINGS = {
    "sgd": Optimizer(lr=0.05, clip=1.0, schedule=Cosine(), weight_decay=1e-3),
    "plain": Optimizer(lr=0.05, momentum=0.0, nesterov=False),
    "adam": Optimizer(lr=0.01, rule="adam", nesterov=False, schedule=Cosine()),
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("recorded", [False, True])
def test_two_losses_kept_momentum_and_deep_notes(settings, recorded, monkeypatch):
    if recorded:
        monkeypatch.setattr("benchmark.federated.stacked.engine.Shared", with_recorder(Recorder()))
        monkeypatch.setattr("benchmark.federated.stacked.runner.GroupRunner._is_own", lambda self, job: False)
    both = users(TwoPhases, Small, rounds=3, optimizer=SETTINGS[settings])
    assert both.together, both.engine.runner.counts.reasons
    assert both.off < 1e-11
