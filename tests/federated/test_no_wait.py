"""Local training off the CPU: nothing waits for the device, numbers are those of the CPU, and few operations are extra.

Every method, and every kind of local step: a label setting decides which streams of images a step has. `FLAT` has the
same forward passes, losses and optimizer step as plain functions; ours may launch 1.3 times as many operations.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.data.augment import Augmentation, Gentle, Weak, make_views
from benchmark.data.randaugment import RandAugment
from benchmark.diagnostics.diversity import GradientDiversity
from benchmark.diagnostics.exchange import Exchange
from benchmark.federated.engines import ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule, fit
from benchmark.federated.trees import leaves
from benchmark.methods.fedswitch import FedSwitch, FedSwitchUpdate
from benchmark.models.build import Model
from benchmark.records.state import RunState, load, save
from tests.federated.accelerator import DEVICE, Accelerator, InAWorker, OnAccelerator, OnDevice
from tests.methods.golden import FOLDER, TRACES, trace

N, D = 8, 10
IMAGES_NCHW, LABELS_N = torch.rand(N, 1, 8, 8), torch.arange(N)


class Images:
    """The flat steps' batch, on the device."""

    def __init__(self) -> None:
        self.x, self.y = IMAGES_NCHW.to(DEVICE), LABELS_N.to(DEVICE)


def ce(net: nn.Module, at: Images, smoothing: float = 0.0) -> Tensor:
    return F.cross_entropy(net(at.x), at.y, label_smoothing=smoothing)


def where_sure(logits_ND: Tensor, weak_ND: Tensor) -> Tensor:
    confidence_N, labels_N = weak_ND.softmax(-1).max(-1)
    return (F.cross_entropy(logits_ND, labels_N, reduction="none") * (confidence_N >= 0.5)).sum() / N


def sure(net: nn.Module, at: Images, labeller: nn.Module | None = None) -> Tensor:
    with torch.no_grad():
        weak_ND = (labeller or net)(at.x)
    return where_sure(net(at.x), weak_ND)


def own_labels(net: nn.Module, at: Images) -> Tensor:
    logits_ND = net(at.x)
    return where_sure(logits_ND, logits_ND.detach())


def vector(net: nn.Module) -> Tensor:
    return torch.cat([p.flatten() for p in net.parameters()])


def near(net: nn.Module, other: nn.Module) -> Tensor:
    return 0.5 * F.mse_loss(vector(net), vector(other).detach(), reduction="sum")


def teacher(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    with torch.no_grad():
        target_ND = (other(at.x).softmax(-1).log() / 0.5).softmax(-1)
    target_ND.argmax(-1)
    return 0.5 * (net(at.x).softmax(-1) - target_ND).square().sum() / N


def divergence(logits_ND: Tensor) -> Tensor:
    share_D = logits_ND.double().softmax(-1).mean(0)
    return torch.special.xlogy(share_D, share_D).sum() + 1.0


def fedswitch(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    with torch.no_grad():
        weak_ND = other(at.x)
    strong_ND = net(at.x)
    divergence(strong_ND.detach()), divergence(weak_ND)
    return where_sure(strong_ND, weak_ND) + near(net, other)


def mixed(net: nn.Module, at: Images) -> Tensor:
    logits_ND = net(torch.lerp(at.x, at.x, 0.3))
    counts = (at.y != -1).float().mean()
    return ce(net, at) + counts * (0.3 * F.cross_entropy(logits_ND, at.y) + 0.7 * F.cross_entropy(logits_ND, at.y))


def relations(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    with torch.no_grad():
        target_ND = (other(at.x).softmax(-1).log() / 1.0).softmax(-1)
    logits_ND = net(at.x)
    mean_ND = logits_ND.softmax(-1)
    loss = (mean_ND - target_ND).square().sum() / N
    entropy_N, (confidence_N, labels_N) = -torch.xlogy(mean_ND.detach(), mean_ND.detach()).sum(-1), mean_ND.max(-1)
    kept_N1 = ((entropy_N < 2) & (confidence_N >= 0.3))[:, None]
    one_hot_ND, logits_ND = F.one_hot(labels_N, D).float() * kept_N1, logits_ND * kept_N1
    counts_D1 = one_hot_ND.sum(0)[:, None]
    mine_DD = ((one_hot_ND.T @ logits_ND / counts_D1.clamp(min=1)) / 2).softmax(-1) * (counts_D1 > 0)
    both_D1 = (mine_DD.sum(-1, keepdim=True) > 0) & (mine_DD.sum(-1, keepdim=True) > 0)
    theirs_DD = mine_DD.detach() * both_D1
    mine_DD = mine_DD * both_D1
    divergences = (theirs_DD - mine_DD) * (theirs_DD.clamp(min=1e-9).log() - mine_DD.clamp(min=1e-9).log())
    return loss + 0.5 * divergences.sum() / D


def summed(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    """logits_ND of the sum of two weight sets."""
    names = [name for name, _ in net.named_parameters()]
    theta = torch._foreach_add(list(net.parameters()), [p.detach() for p in other.parameters()])
    return torch.func.functional_call(net, dict(zip(names, theta, strict=True)), (at.x,))


def psi(net: nn.Module, other: nn.Module, at: Images, helpers: int = 0) -> Tensor:
    """FedMatch without labels."""
    with torch.set_grad_enabled(helpers > 0):
        own_ND = summed(net, other, at)
    with torch.no_grad():
        helpers_ND = [other(at.x).log_softmax(-1) for _ in range(helpers)]
        kept_N = own_ND.softmax(-1).max(-1).values >= 0.5
        votes = [F.one_hot(logits_ND.argmax(-1), D) for logits_ND in [own_ND, *helpers_ND]]
        labels_N = torch.stack(votes).sum(0).argmax(-1)
    losses_N = F.cross_entropy(summed(net, other, at), labels_N, reduction="none") * kept_N
    loss = 0.01 * losses_N.sum() / N * N / kept_N.sum().clamp(min=1) + near(net, other)
    if helpers:
        log_ND = own_ND.log_softmax(-1)
        terms = [F.kl_div(log_ND, h_ND, reduction="none", log_target=True).sum(-1) for h_ND in helpers_ND]
        loss = loss + 0.01 * ((torch.stack(terms).mean(0) * kept_N).sum() / kept_N.sum().clamp(min=1))
    return loss + 1e-5 * vector(net).abs().sum()


def squares(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    """Pi-Model and Mean Teacher."""
    with torch.no_grad():
        target_ND = other(at.x).softmax(-1)
    return ce(net, at) + 10 * ((net(at.x).softmax(-1) - target_ND).square().sum() / N / D)


def mixmatch(net: nn.Module, at: Images, guesses: int) -> Tensor:
    with torch.no_grad():
        guess_ND = torch.stack([net(at.x).softmax(-1) for _ in range(guesses)]).mean(0)
        guess_ND = (guess_ND.log() / 0.5).softmax(-1)
        guess_ND.argmax(-1)
    images_MCHW = torch.cat([at.x] * 3)
    targets_MD = torch.cat([F.one_hot(at.y, D).float(), guess_ND, guess_ND])
    lam_M1 = torch.rand(3 * N).to(DEVICE, non_blocking=True)[:, None]
    other_M = torch.arange(3 * N, device=DEVICE)
    targets_MD = torch.lerp(targets_MD[other_M], targets_MD, lam_M1)
    logits_MD = net(torch.lerp(images_MCHW[other_M], images_MCHW, lam_M1[:, :, None, None]))
    loss = F.cross_entropy(logits_MD[:N], targets_MD[:N])
    if guesses == 1:
        return loss + 1.5 * F.cross_entropy(logits_MD[N:], targets_MD[N:]) + F.cross_entropy(net(at.x), guess_ND)
    return loss + 75 * ((logits_MD[N:].softmax(-1) - targets_MD[N:]).square().sum() / N / D)


def uda(net: nn.Module, at: Images) -> Tensor:
    with torch.no_grad():
        weak_ND = net(at.x)
        kept_N, target_ND = weak_ND.softmax(-1).max(-1).values >= 0.5, (weak_ND / 0.5).softmax(-1)
    log_ND = net(at.x).log_softmax(-1)
    return ce(net, at) + ((torch.xlogy(target_ND, target_ND) - target_ND * log_ND).sum(-1) * kept_N).sum() / N


def heterofl(net: nn.Module, at: Images) -> Tensor:
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)][:-1]
    hooks = [layer.register_forward_hook(lambda layer, given, out: out / 0.5) for layer in layers]
    logits_ND = net(at.x) * torch.zeros(D, device=DEVICE).index_fill_(0, at.y, 1.0)
    for hook in hooks:
        hook.remove()
    return F.cross_entropy(logits_ND, at.y)


def apart(net: nn.Module, at: Images) -> tuple[Tensor, ...]:
    """Labelled, weak and strong views in one pass."""
    return net(torch.cat([at.x] * 3)).split([N] * 3)


def proxies(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    layers = [torch.zeros(64, 64, device=DEVICE, requires_grad=True) for _ in range(2)]
    classes_D, share_D = torch.arange(D, device=DEVICE), torch.full((D,), 1 / D, device=DEVICE)
    pieces = net.features(torch.cat([at.x] * 3)).split([N] * 3)  # type: ignore[operator]
    labelled_ND, weak_ND, strong_ND = (net.fc2(piece) for piece in pieces)  # type: ignore[operator]
    with torch.no_grad():
        labels_p_ND, p_ND = other(at.x).softmax(-1), other(at.x).softmax(-1)
    sure, (own, _), (best, label_N) = labels_p_ND.max(-1), weak_ND.softmax(-1).max(-1), p_ND.max(-1)
    kept_N = (own >= 0.5) | (best >= 0.5)
    loss = (
        F.cross_entropy(labelled_ND, at.y) + (F.cross_entropy(strong_ND, label_N, reduction="none") * kept_N).sum() / N
    )
    best_ND, unsure_N1 = label_N[:, None] == classes_D, ~kept_N[:, None]
    share_D + (at.y[:, None] == classes_D).sum(0) + (best_ND & kept_N[:, None]).sum(0)
    above_ND, x_above_ND = p_ND > share_D, labels_p_ND > share_D
    sets_ND = torch.where(unsure_N1, above_ND, best_ND)
    x_sets_ND = torch.where((sure.values >= 0.5)[:, None], sure.indices[:, None] == classes_D, x_above_ND)
    weights_ND = torch.where(unsure_N1, p_ND * above_ND, best_ND.float()).repeat(2, 1)
    sets_ND = torch.cat([x_sets_ND, sets_ND, sets_ND]).float()
    z_NF = F.normalize(F.linear(torch.cat(pieces), layers[0]), dim=-1)
    W_DF = F.normalize(F.linear(net.fc2.weight, layers[1]), dim=-1)  # type: ignore[arg-type, union-attr]
    near_N1 = (z_NF[N:] * (weights_ND @ W_DF)).sum(-1, keepdim=True)
    alike_NN = z_NF[N:] @ z_NF.T
    others_NN = alike_NN.masked_fill((sets_ND[N:] @ sets_ND.T > 0) | (alike_NN < 1e-6), -torch.inf)
    return loss + (torch.cat([near_N1, others_NN], -1).logsumexp(-1) - near_N1[:, 0]).mean()


def fine(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    hidden, last = (torch.zeros(*shape, device=DEVICE, requires_grad=True) for shape in ((100, D), (1, 100)))
    p_ND = apart(net, at)[1].detach().softmax(-1)
    weights_N = F.linear(F.linear(p_ND, hidden).relu(), last).sigmoid()[:, 0]
    before = {name: value.detach().requires_grad_() for name, value in other.named_parameters()}
    losses_N = F.cross_entropy(torch.func.functional_call(other, before, (at.x,)), p_ND.argmax(-1), reduction="none")
    slopes = torch.autograd.grad((weights_N * losses_N).mean(), list(before.values()), create_graph=True)
    after = {name: value - 0.1 * slope for (name, value), slope in zip(before.items(), slopes, strict=True)}
    return F.cross_entropy(torch.func.functional_call(other, after, (at.x,)), at.y)


def of_copy(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    with torch.no_grad():
        ce(other, at)
        weights_N = F.linear(
            F.linear(torch.zeros(N, D, device=DEVICE), torch.zeros(9, D, device=DEVICE)).relu(),
            torch.zeros(1, 9, device=DEVICE),
        ).sigmoid()[:, 0]
    return (weights_N * F.cross_entropy(net(at.x), at.y, reduction="none")).mean()


def of_student(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    """Its forward pass is in the first phase; here is the backward pass."""
    return of_copy(net, other, at) + ce(net, at)


Flat = Callable[[nn.Module, nn.Module, Images], Tensor]  # of the trained network, another one and the batch


def on_labels(net: nn.Module, other: nn.Module, at: Images) -> Tensor:
    return ce(net, at)


# By trace: the kinds of its steps and their loss; "follows" is in the name of a step after which a network follows.
FLAT: dict[str, dict[str, Flat]] = {
    "crl-fedavg": {
        "ServerUpdate labelled": on_labels,
        "ConsistencyUpdate unlabelled": lambda net, other, at: sure(net, at),
    },
    "self-training": {"SelfTrainingUpdate unlabelled": lambda net, other, at: sure(net, at)},
    "crl-labels-at-client": {
        "ConsistencyUpdate labelled unlabelled": lambda net, other, at: ce(net, at) + sure(net, at)
    },
    "crl-labels-at-client-released": {
        "TwoViewSelfTrainingUpdate labelled unlabelled": lambda net, other, at: ce(net, at) + own_labels(net, at)
    },
    "supervised": {"SupervisedUpdate unlabelled": on_labels},
    "server-only": {"ServerUpdate labelled": on_labels},
    "semifl": {"ClientUpdate fix mix": lambda net, other, at: mixed(net, at)},
    "rscfed": {"LabelledUpdate labelled": on_labels, "MeanTeacherUpdate unlabelled follows": teacher},
    "rscfed-partly-labelled": {
        "MeanTeacherUpdate labelled unlabelled follows": lambda net, other, at: ce(net, at) + teacher(net, other, at)
    },
    "fed-consist": {"LabelledUpdate labelled": on_labels, "MeanTeacherUpdate unlabelled follows": teacher},
    "fedirm": {"RelationMatching unlabelled follows": relations},
    "fedirm-released": {
        "LabelledAndKept labelled": lambda net, other, at: ce(net, at, 0.1) + ce(net, at, 0.1),
        "RelationMatching unlabelled follows": relations,
    },
    "fedprox-fixmatch": {"ProximalFixMatchUpdate unlabelled": lambda net, other, at: sure(net, at) + near(net, other)},
    "fedprox-fixmatch-every-client": {
        "ProximalFixMatchUpdate labelled unlabelled": lambda net, other, at: (
            ce(net, at) + sure(net, at) + near(net, other)
        )
    },
    "ts-server-ema-some-clients": {
        "ProximalFixMatchUpdate labelled": lambda net, other, at: ce(net, at) + near(net, other)
    },
    "ts-client-ema-share": {
        "TSClientUpdate labelled unlabelled follows": lambda net, other, at: (
            ce(net, at) + sure(net, at, other) + near(net, other)
        )
    },
    "fedswitch": {"FedSwitchUpdate unlabelled follows": fedswitch},
    "fedswitch-some-clients": {
        "FedSwitchUpdate labelled follows": lambda net, other, at: ce(net, at) + near(net, other)
    },
    "fedswitch-share": {
        "FedSwitchUpdate labelled unlabelled follows": lambda net, other, at: ce(net, at) + fedswitch(net, other, at)
    },
    "proxyfl": {"ProxyUpdate labelled unlabelled": proxies},
    "feddure": {
        "RegulatedUpdate labelled unlabelled of_fine": fine,
        "RegulatedUpdate labelled unlabelled of_copy": of_copy,
        "RegulatedUpdate labelled unlabelled of_student": of_student,
    },
    "supervised-fl-proximal": {"FedProxUpdate labelled": lambda net, other, at: ce(net, at) + near(net, other)},
    "fedmatch": {
        "ServerSigmaUpdate labelled": lambda net, other, at: 10 * F.cross_entropy(summed(net, other, at), at.y),
        "PsiUpdate unlabelled": psi,
        "PsiUpdate unlabelled helper 0 helper 1": lambda net, other, at: psi(net, other, at, helpers=2),
    },
    "data-sharing-server": {
        "DataSharingUpdate labelled unlabelled": lambda net, other, at: ce(net, at) + sure(net, at)
    },
    "easgd": {"ElasticUpdate labelled": on_labels},
    "overlap-sgd": {"ElasticUpdate labelled": on_labels},
    "lg-fedavg": {"ClientUpdate labelled": on_labels},
    "feddyn": {
        "ClientUpdate labelled": lambda net, other, at: (
            ce(net, at) - vector(other).detach() @ vector(net) + near(net, other)
        )
    },
    "heterofl": {"ClientUpdate labelled": lambda net, other, at: heterofl(net, at)},
    "fixmatch-average": {
        "CentralUpdate labelled unlabelled follows": lambda net, other, at: ce(net, at) + sure(net, at)
    },
    "pi-model": {"CentralUpdate labelled unlabelled follows": squares},
    "mean-teacher": {"CentralUpdate labelled unlabelled follows": squares},
    "pseudo-labeling": {
        "CentralUpdate labelled unlabelled follows": lambda net, other, at: ce(net, at) + own_labels(net, at)
    },
    "mixmatch": {"CentralUpdate labelled unlabelled follows": lambda net, other, at: mixmatch(net, at, 2)},
    "uda": {"CentralUpdate labelled unlabelled follows": lambda net, other, at: uda(net, at)},
    "remixmatch": {"CentralUpdate labelled unlabelled follows": lambda net, other, at: mixmatch(net, at, 1)},
}


def flat_operations(environment: Environment, loss: Flat, follows: bool) -> int:
    """Operations of one step of plain functions."""
    with Accelerator() as accelerator:
        net = environment.network().to(memory_format=torch.contiguous_format).to(DEVICE)
        other, at = copy.deepcopy(net), Images()
        optimizer = torch.optim.SGD(
            net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True
        )
        with accelerator.step("flat"):
            loss(net, other, at).backward()
            optimizer.step()
            if follows:
                with torch.no_grad():
                    torch._foreach_mul_(list(other.parameters()), 0.9)
                    torch._foreach_add_(list(other.parameters()), list(net.parameters()), alpha=0.1)
    return accelerator.operations["flat"]


def counted(name: str, engine: type[OnAccelerator] = OnAccelerator) -> tuple[Accelerator, Environment]:
    """Two rounds of a trace on the device, which give the numbers of the CPU."""
    environment = prepare(TRACES[name])
    with Accelerator() as accelerator:
        lines = trace(TRACES[name], FederatedModule(environment, engine(environment)))
    golden = json.loads((FOLDER / f"{name}.json").read_text())
    for ours, theirs in zip(lines, golden, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-4, abs=1e-7)
    return accelerator, environment


def compared(name: str, accelerator: Accelerator, environment: Environment) -> dict[str, tuple[float, int]]:
    """Operations of a step by kind: ours and the flat ones."""
    return {
        kind: (
            accelerator.operations[ours] / accelerator.steps[ours],
            flat_operations(environment, loss, follows=ours != kind),
        )
        for kind, loss in FLAT[name].items()
        for ours in [kind.removesuffix(" follows")]
    }


@pytest.mark.parametrize("name", FLAT)
def test_local_training_waits_for_nothing(name):
    """From the first batch on, also while views are made; per job and stream the positions, and a span's draws (and
    pseudo-labels, and affine maps) are sent. MixMatch draws within its loss and sends that without waiting."""
    accelerator, environment = counted(name)
    assert accelerator.steps and not accelerator.waits
    assert accelerator.sent[True] == ("mixmatch" in name) * accelerator.steps.total()
    for kind, (operations, flat) in compared(name, accelerator, environment).items():
        assert operations <= 1.3 * flat, f"{kind}: {operations:.0f} operations, {flat} when written flat"


@pytest.mark.parametrize(
    "name",
    [
        *("fedmatch-every-client", "easgd", "feddyn", "fedirm-released", "remixmatch", "rscfed"),
        *("sage", "fedlabel", "fixmatch-gpl", "flexmatch-lpl", "feddb", "proxyfl", "feddure"),
    ],
)
def test_a_worker_with_a_device_is_sent_tensors_of_the_host(name):
    """Methods whose local work begins or ends with what was received, kept or given to the update."""
    accelerator, _ = counted(name, InAWorker)
    assert accelerator.steps and not accelerator.waits


@pytest.mark.parametrize(("strong", "sent"), [(RandAugment(), 1), (RandAugment(pool="semifl"), 1), (Gentle(), 2)])
def test_views_are_those_of_the_cpu_from_one_copy_of_the_draws(strong, sent):
    """Gentle's affine maps are a second one: sines differ in their last bits from device to device."""
    augmentation = Augmentation(weak=Weak(), strong=strong)
    images_NCHW = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)

    def views(images_NCHW: Tensor) -> dict[str, Tensor]:
        draw, names = torch.Generator().manual_seed(1), ("plain", "weak", "weak2", "strong")
        return make_views(images_NCHW, names, augmentation, (0.5,) * 3, (0.25,) * 3, draw)

    expected = views(images_NCHW)
    with Accelerator() as accelerator:
        there_NCHW = images_NCHW.to(DEVICE)
        views(there_NCHW)  # tables are made once
        accelerator.training = True
        found = views(there_NCHW)
        accelerator.training = False
        found = {name: view.cpu() for name, view in found.items()}
    assert not accelerator.waits and accelerator.sent[False] == sent
    assert all(torch.equal(found[name], view) for name, view in expected.items())


@pytest.mark.parametrize("prediction", ["mean_softmax", "histogram"])
def test_fedswitch_counts_sure_images_without_waiting(prediction):
    """As on the CPU, also where no image is sure."""
    method = FedSwitch(threshold=0.7, counted="kept", prediction=prediction)
    update = FedSwitchUpdate(method=method, labeller="teacher")
    logits_ND = torch.tensor([[3.0, 1], [3, 1], [1, 3], [1, 1]]).log()
    unsure_ND = torch.zeros(4, 2)
    expected = update.divergences(logits_ND, unsure_ND)
    with Accelerator() as accelerator:
        there_ND, unsure_there_ND = logits_ND.to(DEVICE), unsure_ND.to(DEVICE)
        with accelerator.step("divergences"):
            measured = update.divergences(there_ND, unsure_there_ND)
        found = {name: float(value) for name, value in measured.items()}
    assert not accelerator.waits
    assert found == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-12)


def test_fedswitch_on_resnet18_launches_at_most_300_operations():
    """809 where the proximal term and the teacher's average went tensor by tensor."""
    experiment = replace(
        TRACES["fedswitch"],
        model=Model(network="resnet18", norm="gn"),
        federation=replace(TRACES["fedswitch"].federation, C=1, T=1),
    )
    environment = prepare(experiment)
    with Accelerator() as accelerator:
        FederatedModule(environment, OnAccelerator(environment)).training_step(1, 0)
    assert accelerator.operations["FedSwitchUpdate unlabelled"] <= 300


@pytest.mark.parametrize("name", ["crl-grouping", "fedmatch", "rscfed", "heterofl", "remixmatch"])
def test_whole_runs_stay_on_the_device(name):
    """Under Lightning's Trainer, which moves its module to the CPU, and with all that watches a run."""
    experiment = replace(TRACES[name], federation=replace(TRACES[name].federation, rounds=2))
    environment, lines = prepare(experiment), []

    class Notes(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
            assert isinstance(pl_module, FederatedModule)
            lines.append(dict(pl_module.metrics))

    def numbers(module: FederatedModule) -> list[dict[str, float]]:
        lines.clear()
        fit(module, [GradientDiversity(every=1), Exchange(), Notes()])
        return list(lines)

    expected = numbers(FederatedModule(environment, ReferenceEngine(environment, fast=True)))
    with Accelerator():
        module = FederatedModule(environment, OnAccelerator(environment))
        measured = numbers(module)
        assert all(isinstance(value, OnDevice) for _, value in leaves(dict(module.models())))
    assert measured == [pytest.approx(line, rel=2e-4, abs=1e-7) for line in expected]


def test_a_run_s_state_is_saved_from_the_device(tmp_path):
    """Weight sets and what clients keep stay on the device from job to job; the file has them as a CPU's has."""
    environment = prepare(TRACES["rscfed"])
    with Accelerator():
        module = FederatedModule(environment, OnAccelerator(environment))
        module.training_step(1, 0)
        student, kept = module.state.server["student"], module.state.clients
        assert all(isinstance(value, OnDevice) for value in student.values())
        assert any(isinstance(value, OnDevice) for tree in kept.values() for value in tree.get("teacher", {}).values())
        save(tmp_path, RunState(state=module.state, lines=("{}\n",), measured={}, exchange={}), "run")
    saved = load(tmp_path, "run")
    assert saved is not None and saved.state.server["student"].keys() == student.keys()
    assert all(type(value) is Tensor and value.is_cpu for value in saved.state.server["student"].values())
