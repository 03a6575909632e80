"""Jobs that train as one give the numbers of the same jobs one after another.

In float64 the two differ by rounding only, so that every fault of a rule shows. In float32 one rounding may flip a
ReLU, and so only the first round is compared.
"""

import copy
import dataclasses
import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmark.errors import Diverged
from benchmark.experiment import Experiment
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.stacked.engine import StackedEngine, waves
from benchmark.federated.stacked.group import Group
from benchmark.federated.stacked.kinds import signature_of
from benchmark.federated.stacked.layers import Masks, drawing, with_rules
from benchmark.federated.trees import leaves
from benchmark.methods import protocol as fl
from benchmark.methods.fedswitch import FedSwitchUpdate
from benchmark.methods.shared import SupervisedUpdate, mean_of
from benchmark.methods.ssfl import ConsistencyUpdate
from benchmark.models.norms import StaticBatchNorm2d
from benchmark.optimizer import Cosine
from tests.conftest import tiny_experiment
from tests.methods.golden import TRACES

MOST = 64
# Traces whose rounds have one job of a kind at a time. They stack across runs (`test_together`).
ONE_AT_A_TIME = {
    "server-only",
    "server-only-everyones",
    "sage-shared-momentum",
    "flexmatch-lpl",
    "fixmatch",
    "fixmatch-average",
    "uda",
    "pi-model",
    "pseudo-labeling",
    "mean-teacher",
    "mixmatch",
    "remixmatch",
}


def longer(experiment: Experiment, rounds: int, **fields: Any) -> Experiment:
    return replace(
        experiment,
        federation=replace(experiment.federation, rounds=rounds, **fields),
        evaluation=replace(experiment.evaluation, every=1000, gradient_diversity_every=0),
    )


class Both:
    """A run by the reference engine and one by the stacked engine, round by round."""

    def __init__(self, experiment: Experiment, **options: Any) -> None:
        environment = prepare(experiment)
        self.reference = FederatedModule(environment, ReferenceEngine(environment))
        self.engine = StackedEngine(environment, **{"most": MOST, **options})
        self.stacked = FederatedModule(environment, self.engine)

    def play(self, rounds: int) -> None:
        for number in range(1, rounds + 1):
            self.play_round(number)

    def play_round(self, number: int) -> None:
        self.reference.training_step(number, 0)
        self.stacked.training_step(number, 0)

    @property
    def off(self) -> float:
        """Return the largest difference of any entry of the server's and the clients' state, and of any metric."""
        states = [{"server": m.state.server, "clients": dict(m.state.clients)} for m in (self.reference, self.stacked)]
        assert self.reference.metrics.keys() == self.stacked.metrics.keys()
        metrics = [abs(value - self.stacked.metrics[name]) for name, value in self.reference.metrics.items()]
        return max([difference(*states), *metrics])

    @property
    def together(self) -> dict[str, int]:
        return dict(self.engine.runner.counts.together)


def difference(left: Any, right: Any) -> float:
    mine, theirs = dict(leaves(left)), dict(leaves(right))
    assert mine.keys() == theirs.keys()
    worst = 0.0
    for name, value in mine.items():
        if isinstance(value, Tensor) and value.numel():
            assert value.dtype == theirs[name].dtype and value.shape == theirs[name].shape
            off = float((value.double() - theirs[name].double()).abs().max())
            worst = max(worst, off if math.isfinite(off) else math.inf)
    return worst


STACKING = [name for name in TRACES if name not in ONE_AT_A_TIME]
# One trace for each way in which a round depends on earlier ones.
LONG = {
    "crl-grouping",
    "semifl",
    "flfl-released",
    "cbafed",
    "rscfed",
    "fedswitch",
    "fedmatch",
    "easgd",
    "heterofl",
    "feddyn",
    "fixmatch-lpl",
    "feddure",
}


@pytest.mark.parametrize("name", STACKING)
def test_every_trace_agrees_in_float64(name, in_float64):
    """After five rounds, or after two."""
    rounds = 5 if name in LONG else 2
    both = Both(longer(TRACES[name], rounds))
    both.play(rounds)
    assert both.together and not both.engine.runner.counts.reasons
    assert both.off < 1e-11


@pytest.mark.parametrize("name", ["crl-fedavg", "semifl-static-batch-norm", "fedswitch", "rscfed", "sage", "fedmatch"])
def test_float32_agrees_after_one_round(name):
    both = Both(longer(TRACES[name], 1))
    both.play(1)
    assert both.together and 0.0 < both.off < 1e-6


UNEQUAL: dict[str, dict[str, Any]] = {
    "crl-labels-at-client": {},
    "semifl": {"clip": 1.0},
    "semifl-static-batch-norm": {"clip": 1.0},
    "rscfed": {"clip": 5.0},
    "fedprox-fixmatch-drawn-apart": {},
    "heterofl": {},
    "feddyn": {"clip": 10.0},
    "sage": {"rule": "adam", "nesterov": False, "lr": 1e-3},
    "flfl": {"momentum": 0.0, "nesterov": False},
    "easgd": {"rule": "adam", "nesterov": False, "lr": 1e-3},  # whose clients keep Adam's state
}


FEW = 120  # images: of `heterofl` and of `fedprox-fixmatch-drawn-apart` a last batch has one image
MORE = {"crl-labels-at-client": 300}  # for its labels


@pytest.mark.parametrize("name", UNEQUAL)
def test_jobs_of_unequal_lengths_with_clipping_and_rates_by_step(name, in_float64, monkeypatch):
    """Two passes over data of unequal sizes, with incomplete last batches and a rate for each step of each job."""
    trace = TRACES[name]
    optimizer = replace(trace.optimizer, schedule=Cosine(), **UNEQUAL[name])
    data = replace(trace.data, images=MORE.get(name, FEW))
    both = Both(replace(longer(trace, 2, epochs=2), optimizer=optimizer, data=data))
    jobs_and_sizes = set()
    step = Group.step

    def noting(self: Group, jobs: Any, batches: Any, number: int) -> Any:
        jobs_and_sizes.add((len(jobs), signature_of(batches[0][0])))
        return step(self, jobs, batches, number)

    monkeypatch.setattr(Group, "step", noting)
    both.play(2)
    assert both.together and not both.engine.runner.counts.reasons
    assert name in MORE or len(jobs_and_sizes) > 1
    assert both.off < 1e-11


def test_more_jobs_than_fit_into_one_step(in_float64):
    both = Both(longer(TRACES["crl-fedavg"], 2), most=2)
    both.play(2)
    counts = both.engine.runner.counts
    assert counts.steps == 2 * counts.ticks and both.off < 1e-11


@pytest.mark.parametrize("name", ["crl-fedavg", "semifl-static-batch-norm", "feddure", "fedmatch-released", "heterofl"])
def test_gradients_at_what_was_received(name, in_float64):
    """Gradient diversity takes gradients of the whole data, with incomplete batches weighted by their size."""
    both = Both(longer(TRACES[name], 1))
    asked: list[tuple[list[fl.Job], dict[str, fl.Tree]]] = []
    fit = both.reference.engine.fit

    def remembering(jobs: Any, round_number: int, kept: Any) -> Any:
        asked.append((list(jobs), dict(kept)))
        return fit(jobs, round_number, kept)

    both.reference.engine.fit = remembering  # type: ignore[method-assign]
    both.play(1)
    compared = 0
    for jobs, kept in asked:
        expected = both.reference.engine.gradients(jobs, 1, kept)
        for wanted, given in zip(expected, both.engine.gradients(jobs, 1, kept), strict=True):
            assert difference(wanted, given) < 1e-12
            compared += bool(wanted)
    assert compared > 1


def test_batch_norm_keeps_each_clients_statistics(in_float64):
    """`vmap` alone updates a copy of statistics that are not contiguous, without a message."""
    both = Both(longer(TRACES["crl-batch-norm"], 1))
    both.play(1)
    moved = next(iter(both.stacked.models().values()))["norm1.running_mean"].abs().max()
    assert both.together and both.off < 1e-11 and float(moved) > 1e-3


LAYERS = [
    *(nn.Conv2d(4, 6, 3, padding=1, stride=2), nn.Conv2d(4, 6, 1), nn.GroupNorm(2, 4), nn.BatchNorm2d(4)),
    *(nn.GroupNorm(4, 4), nn.GroupNorm(1, 4)),  # instance norm and layer norm
    *(nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(1), nn.Linear(2, 3), nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))),
    nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(), StaticBatchNorm2d(4), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)),
    nn.Sequential(nn.Conv2d(4, 4, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.AdaptiveMaxPool2d(1)),
]


@pytest.mark.parametrize("N", [1, 5])
@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_a_layer_s_rule_gives_the_values_and_gradients_of_each_job(layer, N, in_float64):
    """Also for one image: the strides of a single image do not say in which order it lies."""
    draw = torch.Generator().manual_seed(N)
    layer = copy.deepcopy(layer).double()
    shape = (2, N, 2) if isinstance(layer, nn.Linear) else (2, N, 4, 6, 6)
    weights = {name: torch.rand(2, *value.shape, generator=draw) for name, value in layer.named_parameters()}
    fixed = {name: torch.stack([value, value]) for name, value in layer.named_buffers()}
    images = torch.randn(shape, generator=draw)

    def gradients(outputs: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
        factors = torch.linspace(-1.0, 1.0, outputs.numel()).view(outputs.shape)
        return torch.autograd.grad((outputs**2 * factors).sum(), leaves)

    leaves = [value.clone().requires_grad_() for value in (images, *weights.values())]
    given = dict(zip(weights, leaves[1:], strict=True)) | {name: value.clone() for name, value in fixed.items()}
    rule = with_rules(layer)
    outputs = vmap(lambda tensors, own: functional_call(rule, tensors, (own,)))(given, leaves[0])
    found = gradients(outputs, leaves)
    for job in range(2):
        own = [value[job].clone().requires_grad_() for value in (images, *weights.values())]
        buffers = {name: value[job].clone() for name, value in fixed.items()}
        alone = functional_call(layer, dict(zip(weights, own[1:], strict=True)) | buffers, (own[0],))
        torch.testing.assert_close(outputs[job], alone, rtol=0, atol=1e-12)
        factors = torch.linspace(-1.0, 1.0, outputs.numel()).view(outputs.shape)[job]
        expected = torch.autograd.grad((alone**2 * factors).sum(), own)
        for gradient, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(gradient[job], wanted, rtol=1e-9, atol=1e-11)
        for name, value in buffers.items():
            torch.testing.assert_close(given[name][job], value)


@pytest.mark.parametrize("norm", ["gn", "bn", "none"])
def test_dropout_masks_are_those_of_each_job(norm, in_float64):
    trace = TRACES["crl-fedavg"]
    model = replace(trace.model, network="emnist_cnn", dropout=0.25, norm=norm)
    both = Both(replace(longer(trace, 2), model=model))
    both.play(2)
    assert both.together and not both.engine.runner.counts.reasons
    assert both.off < 1e-11


def spoiling(client: int) -> Callable[..., Any]:
    """Return `Group.__init__`, but with a NaN among the weights of one client."""
    begin = Group.__init__

    def init(self: Group, networks: Any, members: Any, *rest: Any) -> None:
        begin(self, networks, members, *rest)
        for at, member in enumerate(members):
            if member.job.key.client == client and next(networks.parameters()).dtype == torch.float32:
                first = next(iter(self.state.trainable.values()))
                next(iter(first.values()))[at].fill_(torch.nan)

    return init


@pytest.mark.parametrize("name", ["crl-fedavg", "supervised-fl-every-client", "sage", "feddyn", "easgd"])
def test_a_nan_stays_in_its_job(name, monkeypatch):
    """Beside a job of NaN the other jobs have the bits that they have without it."""
    environment = prepare(longer(TRACES[name], 1))
    outcomes: list[dict[int, fl.Outcome]] = []
    for spoil in (False, True):
        engine = StackedEngine(environment, most=MOST)
        found: dict[int, fl.Outcome] = {}

        def check(outcome: fl.Outcome, *rest: Any, found: dict[int, fl.Outcome] = found) -> None:
            found[outcome.key.client] = outcome

        with monkeypatch.context() as patch:
            patch.setattr("benchmark.federated.stacked.runner.check_finite", check)
            if spoil:
                patch.setattr(Group, "__init__", spoiling(2))
            module = FederatedModule(environment, engine)
            with pytest.raises(Diverged) if spoil else warnings.catch_warnings():
                module.training_step(1, 0)
        assert engine.runner.counts.together
        outcomes.append(found)
    clean, beside = outcomes
    assert {0, 1, 2, 3} <= clean.keys() == beside.keys()
    for client in (0, 1, 3):
        assert difference(clean[client].sends, beside[client].sends) == 0.0
    assert difference(clean[2].sends, beside[2].sends) == math.inf


def test_a_job_that_diverges_is_named(monkeypatch):
    environment = prepare(longer(TRACES["crl-fedavg"], 1))
    monkeypatch.setattr(Group, "__init__", spoiling(2))
    module = FederatedModule(environment, StackedEngine(environment, most=MOST))
    with pytest.raises(Diverged, match="round 1, client 2: the loss of local step 1 is nan"):
        module.training_step(1, 0)


def test_too_little_memory_halves_the_group(monkeypatch, in_float64):
    step = Group.step
    fit = 2

    def limited(self: Group, jobs: Any, *rest: Any) -> Any:
        if len(jobs) > fit:
            raise torch.OutOfMemoryError
        return step(self, jobs, *rest)

    monkeypatch.setattr(Group, "step", limited)
    both = Both(longer(TRACES["crl-fedavg"], 2))
    both.play(2)
    counts = both.engine.runner.counts
    assert counts.steps == fit * counts.ticks > 0 and both.off < 1e-11


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_dropout_within_a_transform_of_a_loss_is_refused(transform, in_float64):
    """Its masks would be those of another job, or the same for all images."""
    layer = with_rules(nn.Dropout(0.5)).train()
    draw = torch.Generator()

    def loss(images: Tensor) -> Tensor:
        return layer(images).sum()

    def step(images: Tensor) -> Tensor:
        inner: Tensor = transform(loss)(images)
        return inner

    images = torch.ones(2, 5, 3)
    with drawing(Masks([draw, draw])), pytest.raises(RuntimeError):
        vmap(step)(images)


USERS_FILE = """from dataclasses import dataclass

from benchmark.methods.protocol import Method, State, Stream
from benchmark.methods.shared import SupervisedUpdate, fit_each, mean_of


@dataclass(frozen=True, kw_only=True)
class Reading(SupervisedUpdate):
    def loss(self, step):
        loss, aux = super().loss(step)
        return loss * float(loss.detach()), aux


@dataclass(frozen=True, kw_only=True)
class Mine(Method):
    needs = frozenset({"every_client"})

    def round(self, state, world):
        update, data = Reading(reports="client/loss"), {"labelled": Stream.whole("labelled", 8)}
        outcomes = fit_each(world, world.cohort(), update, {"student": state.server["student"]}, data)
        return State(server={"student": mean_of(outcomes, state.server["student"])}), {}
"""


def test_a_method_in_a_user_s_file_that_reads_a_number_is_named_with_its_line(tmp_path, monkeypatch, in_float64):
    """It trains one job at a time, to the same numbers, and the run says so once."""
    (tmp_path / "users_method.py").write_text(USERS_FILE)
    monkeypatch.syspath_prepend(tmp_path)
    method = importlib.import_module("users_method").Mine()
    line = USERS_FILE.splitlines().index("        return loss * float(loss.detach()), aux") + 1
    experiment = longer(replace(TRACES["supervised-fl-every-client"], method=method), 2)
    with pytest.warns(UserWarning, match=f"^Reading: .*users_method.py:{line}: ") as caught:
        both = Both(experiment)
        both.play(2)
    assert len([one for one in caught if "Reading" in str(one.message)]) == 1
    assert not both.together and both.off == 0.0


def reading(self: Any, step: fl.Step) -> fl.Loss:
    loss = step.student(step.batch["unlabelled"].views["weak"]).square().mean()
    return loss * float(loss.detach()), {}


CALLS: list[int] = []


def counting_calls(self: Any, step: fl.Step) -> fl.Loss:
    """Return a loss that is no function of its step: `vmap` calls it once for all jobs."""
    CALLS.append(1)
    return step.student(step.batch["unlabelled"].views["weak"]).square().mean() * len(CALLS), {}


def noting(self: Any, step: fl.Step) -> fl.Loss:
    loss = step.student(step.batch["unlabelled"].views["weak"]).square().mean()
    return loss + step.notes.get("before", 0.0), {}


@pytest.mark.parametrize(
    ("loss", "token"), [(reading, "test_stacked.py:"), (counting_calls, "differs by"), (noting, "'before'")]
)
def test_a_loss_that_cannot_be_stacked_trains_one_job_at_a_time_and_says_so(loss, token, monkeypatch):
    monkeypatch.setattr(ConsistencyUpdate, "loss", loss)
    monkeypatch.setattr("benchmark.federated.stacked.guard._file_of", lambda base: __file__)
    with pytest.warns(UserWarning, match="ConsistencyUpdate: its jobs train one at a time") as caught:
        both = Both(longer(tiny_experiment(), 2))
        both.play(2)
    said = [str(one.message) for one in caught if "ConsistencyUpdate" in str(one.message)]
    assert len(said) == 1 and token in said[0]
    assert not both.together and (loss is counting_calls or both.off == 0.0)


@dataclass(frozen=True, kw_only=True)
class Counting(SupervisedUpdate):
    """An update whose steps use private state and notes."""

    def start(self, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
        local = fl.Local(trainable={"student": received["student"]})
        one = next(iter(received["student"].values())).new_ones(())
        local.private = private or {
            "pull": one,
            "rounds": 0,
            "unused": torch.arange(int(reader.draw.initial_seed() % 5) + 1),
        }
        local.notes = {"sum": torch.zeros_like(one), "words": "kept for finish", "last": None}
        return local

    def loss(self, step: fl.Step) -> fl.Loss:
        loss, aux = super().loss(step)
        step.notes["sum"] = step.notes["sum"] + loss.detach()
        return loss * step.private["pull"], aux

    def after_step(self, step: fl.Step) -> None:
        step.private["pull"].mul_(0.9)

    def finish(self, local: fl.Local) -> fl.Tree:
        assert local.private is not None and local.notes["words"] == "kept for finish"
        local.private = {**local.private, "rounds": local.private["rounds"] + 1, "seen": local.notes["sum"]}
        return {"student": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class Mine(fl.Method):
    """A user's method."""

    needs = frozenset({"every_client", "everywhere"})

    def round(self, state: fl.State, world: fl.World) -> fl.Round:
        data = {"labelled": fl.Stream.whole("labelled", 8)}
        update = Counting(reports="client/loss")
        received = {"student": state.server["student"]}
        outcomes = world.fit([world.job(client, update, received, data) for client in world.cohort()])
        return fl.State(server={"student": mean_of(outcomes, state.server["student"])}), {}


def test_private_state_and_notes_of_a_users_method(in_float64):
    """Steps may use and change them in place; what they do not use may have any shape."""
    both = Both(longer(replace(TRACES["supervised-fl-every-client"], method=Mine()), 3))
    both.play(3)
    assert both.together and not both.engine.runner.counts.reasons
    kept = next(iter(both.stacked.state.clients.values()))
    assert kept["rounds"] == 3 and float(kept["pull"]) < 1.0
    assert both.off < 1e-11


def test_what_is_kept_has_memory_of_its_own():
    """A view of a group's tensors would keep those of all of its jobs."""
    both = Both(longer(TRACES["easgd"], 2))
    both.play(2)
    kept = [value for _, value in leaves(dict(both.stacked.state.clients)) if isinstance(value, Tensor)]
    assert kept and both.together
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in kept)


def test_fields_that_steps_do_not_use_make_no_other_kind():
    """They have `repr=False`: without it, each client's jobs would be of a kind of their own."""
    of_one_client = [f.name for f in dataclasses.fields(FedSwitchUpdate) if f.name in ("client", "own", "M") and f.repr]
    assert not of_one_client
    both = Both(longer(TRACES["data-sharing"], 3))
    both.play(3)
    assert both.together


def test_jobs_with_one_state_key_train_one_after_another():
    def job(client: int, keeps: str | None = None) -> fl.Job:
        update = SupervisedUpdate(reports="client/loss")
        return fl.Job(
            key=fl.Key(client=client), update=update, receives={}, data={}, limit=fl.Limit(steps=1), keeps=keeps
        )

    assert waves([job(0), job(1), job(0), job(2), job(0)]) == [[0, 1, 3], [2], [4]]
    assert waves([job(0, "all"), job(1, "all")]) == [[0], [1]]
    assert waves([]) == []
