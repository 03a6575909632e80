"""Defines the project's only local step (`ServerModule` and `ClientModule`) and the loop that every engine runs.

A plain `Trainer(max_steps=T).fit(ClientModule(...), batches)` gives the same weights as an engine for the same job.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from benchmark.data.image_ops import to_device
from benchmark.errors import ConfigError
from benchmark.experiment import Precision
from benchmark.federated.batches import LocalBatch, key_names
from benchmark.federated.environment import fixed_names, weights_of
from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.trees import moved, read_at_once
from benchmark.methods.calls import OF_PSEUDO_LABELS, check_size, finished, loss_of
from benchmark.methods.protocol import SERVER, Job, Local, Outcome, Step, Weights
from benchmark.methods.registry import method_name
from benchmark.optimizer import Optimizer
from benchmark.streams import seed_global, stream_seed, torch_stream

BETA_2 = 0.999  # beta_2 of Adam
SLOT = "/"  # separates a parameter's name from the name of a tensor that Adam stores for it


class LocalModule(pl.LightningModule):
    """One job's local training: networks with the weight sets of `local`, the update's loss, and the optimizer.

    `network` is a prototype that is copied for each weight set. `rate_at` gives the learning rate at a step of the job,
    counted from 0, as a share of the base rate. With `fused`, the optimizer's step is one kernel, which rounds
    differently from the plain one; on devices other than a CPU it is always one kernel.
    """

    def __init__(
        self,
        job: Job,
        local: Local,
        network: nn.Module,
        settings: Optimizer,
        rate_at: Callable[[int], float],
        *,
        precision: Precision = "fp32",
        fused: bool = False,
    ) -> None:
        super().__init__()
        device = next(network.parameters()).device
        self.fixed = fixed_names(network)  # before the gradients of frozen weight sets are switched off
        self.settings = settings
        self.fused = fused or device.type != "cpu"
        self.trainable = nn.ModuleDict(
            {
                name: empty_layers(weights) if name in local.layers else copy.deepcopy(network)
                for name, weights in local.trainable.items()
            }
        )
        self.frozen = nn.ModuleDict({name: copy.deepcopy(network) for name in local.frozen})
        if precision == "bf16":
            for copied in (*self.trainable.values(), *self.frozen.values()):
                pass_in_bfloat16(copied)
        self.draw = torch.Generator()
        self.reuse(job, local, rate_at)

    def reuse(self, job: Job, local: Local, rate_at: Callable[[int], float]) -> None:
        """Start a job: load its weight sets and reset counters. Engines reuse modules for many jobs."""
        self.update, self.local, self.rate_at = job.update, local, rate_at
        self.base_rate = base_rate(self.settings, job)
        self.local_device = next(self.trainable.parameters()).device
        self.step = Step(
            trainable=self.trainable,
            frozen=self.frozen,
            received=job.receives,
            private=moved(local.private or {}, self.local_device),
            notes=moved(local.notes, self.local_device),
        )
        # The reported values and losses are read after the job, since a read within a step would wait for the device.
        self.reported: dict[str, list[Tensor]] = defaultdict(list)
        self.losses: list[Tensor] = []
        self.taken = 0  # optimizer steps
        self.pseudo = PseudoLabelQuality()
        for networks, weight_sets in ((self.trainable, local.trainable), (self.frozen, local.frozen)):
            for name, weights in weight_sets.items():
                load(networks[name], weights, self.fixed)
        self.trainable.train()
        self.frozen.eval().requires_grad_(False)

    def training_step(self, batch: LocalBatch, batch_idx: int) -> Tensor:
        self.step.batch = batch.streams
        drawn = self.update.draws(self.draw, batch.streams)
        self.step.drawn = {name: to_device(value, self.local_device) for name, value in drawn.items()}
        loss, aux = loss_of(self.update, batch.phase, self.step)
        self.losses.append(loss.detach())
        for name, value in aux.items():
            if name not in OF_PSEUDO_LABELS:
                self.reported[name].append(value.detach())
        if "kept_N" in aux:
            self.pseudo.add(aux["labels_N"], aux["kept_N"], batch.truth_N, aux.get("candidates_ND"))
        return loss

    def configure_optimizers(self) -> Any:
        """Return the optimizer and the learning-rate schedule for a Lightning Trainer."""
        optimizer = self.new_optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate_at)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def new_optimizer(self) -> torch.optim.Optimizer:
        """Return the job's optimizer at its base rate, with the job's initial momentum."""
        common: Any = {
            "lr": self.base_rate,
            "weight_decay": self.settings.weight_decay,
            "foreach": not self.fused,
            "fused": self.fused,
        }
        weights = self.trainable.parameters()
        momentum = self.settings.momentum
        optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(weights, betas=(momentum, BETA_2), **common)
            if self.settings.rule == "adam"
            else torch.optim.SGD(weights, momentum=momentum, nesterov=self.settings.nesterov, **common)
        )
        for name, buffers in (self.local.momentum or {}).items():
            for tensor, value in buffers.items():
                owner, _, slot = tensor.partition(SLOT)
                parameter = self.trainable[name].get_parameter(owner)
                optimizer.state[parameter][slot or "momentum_buffer"] = value.to(parameter.device, copy=True)
        return optimizer

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """Clip the joint norm of all gradients to the experiment's limit. Lightning calls this before each step."""
        if self.settings.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.trainable.parameters(), self.settings.clip)

    def on_train_batch_end(self, outputs: Any, batch: LocalBatch, batch_idx: int) -> None:
        self.taken += 1
        self.step.number = self.taken
        with torch.no_grad():
            self.update.after_step(self.step)


def base_rate(settings: Optimizer, job: Job) -> float:
    """Return the learning rate of the job's participant, before the schedule."""
    is_server = job.learning_rate == "server" or (job.learning_rate is None and job.key.client == SERVER)
    return settings.server_lr if is_server and settings.server_lr is not None else settings.lr


def added_up(values: Iterable[float]) -> float:
    """Return the sum of the values, added one after the other, because Python's `sum` rounds differently."""
    total = 0.0
    for value in values:
        total += value
    return total


def empty_layers(weights: Weights) -> nn.ParameterDict:
    """Return uninitialised parameters for a method's own layers (`Local.layers`); `load` sets their values."""
    return nn.ParameterDict({name: nn.Parameter(torch.empty_like(value)) for name, value in weights.items()})


class ServerModule(LocalModule):
    """Local training at the server, with its labelled images and its learning rate."""


class ClientModule(LocalModule):
    """Local training at a client, or at the only participant of a centralised method."""


def module_class(job: Job) -> type[LocalModule]:
    return ServerModule if job.key.client == SERVER else ClientModule


def pass_in_bfloat16(network: nn.Module) -> None:
    """Run forward and backward passes in bfloat16 if autocast does; weights, gradients and logits stay float32.

    The loss is not in bfloat16, because probabilities of bfloat16 have steps of 0.4 % near 1, where tau is.
    """

    def in_bfloat16(plain: Callable[[Tensor], Tensor], images_NCHW: Tensor) -> Tensor:
        with torch.autocast(images_NCHW.device.type, torch.bfloat16):
            return plain(images_NCHW).float()

    for name in ("features", "forward"):
        if hasattr(type(network), name):  # only methods of the network are wrapped, since `features` may also be layers
            setattr(network, name, partial(in_bfloat16, getattr(network, name)))


@torch.no_grad()
def load(network: nn.Module, weights: Weights, fixed: Collection[str] | None = None) -> None:
    """Copy weights into the network in place, parameters and buffers.

    Parameters in `fixed` may be missing and then do not change; by default these are the parameters that are not
    trained.
    """
    own = network.state_dict(keep_vars=True)
    if own.keys() != weights.keys():
        fixed = fixed_names(network) if fixed is None else fixed
        own = {name: tensor for name, tensor in own.items() if name in weights or name not in fixed}
    if own.keys() != weights.keys():
        names = ", ".join(sorted(own.keys() ^ weights.keys())[:3])
        raise ConfigError(
            f"a weight set does not fit the network (missing or unknown: {names}); `models` and "
            "`start` need all weights of a network, such as setup.initial_weights()"
        )
    for name, tensor in own.items():
        given = weights[name]
        if given.shape != tensor.shape or given.is_floating_point() != tensor.is_floating_point():
            was, wanted = (f"{list(one.shape)} of {one.dtype}" for one in (given, tensor))
            raise ConfigError(f"a weight set does not fit the network: its {name} is {was}, the network's {wanted}")
        tensor.copy_(given)


def train(module: LocalModule, batches: Iterable[LocalBatch]) -> dict[str, Weights]:
    """Run local steps as Lightning's automatic optimization does, but without a Trainer. Return momentum buffers."""
    optimizer = module.new_optimizer()
    parameters = list(module.trainable.parameters())
    (group,) = optimizer.param_groups
    base = group["lr"]
    take_step = quick_step(optimizer)
    for index, batch in enumerate(batches):
        for parameter in parameters:
            parameter.grad = None
        group["lr"] = base * module.rate_at(index)
        loss = module.training_step(batch, index)
        if not loss.requires_grad:
            raise ConfigError(
                f"the loss of {method_name(module.update)} depends on no weight that is trained; compute it from "
                "step.trainable, and not under no_grad or from detached values"
            )
        loss.backward()
        module.configure_gradient_clipping(optimizer)
        take_step()
        module.on_train_batch_end(loss, batch, index)
    return momentum_of(module, optimizer)


def quick_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return the optimizer's `step` without torch's overhead at every call, which is a twentieth of a small step.

    The overhead is the check for hooks and profilers and, for fused SGD on a CPU, sorting tensors by device and type.
    """
    (group,) = optimizer.param_groups
    step = partial(torch.no_grad()(inspect.unwrap(type(optimizer).step)), optimizer)
    parameters = group["params"]
    if not isinstance(optimizer, torch.optim.SGD) or not group["fused"] or not parameters[0].is_cpu:
        return step
    names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")

    @torch.no_grad()
    def fused() -> None:
        gradients = [parameter.grad for parameter in parameters]
        momentum = [optimizer.state[parameter].get("momentum_buffer") for parameter in parameters]
        if any(tensor is None for tensor in (*gradients, *momentum)):
            step()
        else:
            torch._fused_sgd_(parameters, gradients, momentum, **{n: group[n] for n in names}, is_first_step=False)

    return fused


def momentum_of(module: LocalModule, optimizer: torch.optim.Optimizer) -> dict[str, Weights]:
    """Return the momentum buffers by weight set and parameter name; zeros if a parameter never had a gradient.

    For Adam, return the tensors that it stores for each parameter that had a gradient, under the parameter's name with
    the tensor's name appended.
    """
    kept: dict[str, Weights] = {}
    for name, network in module.trainable.items():
        kept[name] = {}
        for tensor, parameter in network.named_parameters():
            if not parameter.requires_grad:
                continue
            state = optimizer.state[parameter]
            if module.settings.rule == "adam":
                kept[name].update({f"{tensor}{SLOT}{slot}": value.detach() for slot, value in state.items()})
            else:
                kept[name][tensor] = state.get("momentum_buffer", torch.zeros_like(parameter)).detach()
    return kept


def gradient(module: LocalModule, batches: Iterable[LocalBatch]) -> dict[str, Weights]:
    """Compute the gradient of the update's mean loss over images, at the weights received.

    SSFL Eq. 1: "evaluated on all data held by the k-th user"; the weights do not change. The loss of an incomplete
    batch counts by its size, so that the result is the gradient of the mean loss over images.
    """
    module.zero_grad(set_to_none=True)
    images = 0
    for index, batch in enumerate(batches):
        size = max(len(next(iter(stream.views.values()))) for stream in batch.streams.values())
        (module.training_step(batch, index) * size).backward()
        images += size if batch.phase == 0 else 0
    gradients: dict[str, Weights] = {}
    for name, network in module.trainable.items():
        gradients[name] = {
            tensor: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / images
            for tensor, parameter in network.named_parameters()
        }
    return gradients


def seed_job(module: LocalModule, seed: int, round_number: int, job: Job, purpose: str = "train") -> None:
    """Seed the random draws of a job's training: the update's generator, and torch's global one for dropout."""
    names = (purpose, "round", round_number, *key_names(job.key))
    module.draw = torch_stream(seed, *names, "loss")
    seed_global(stream_seed(seed, *names, "dropout"))


@dataclass
class Trained:
    """The result of a job's local training. It shares no tensors with the module, which may train the next job."""

    local: Local  # with the new weights
    losses: list[Tensor]  # of each local step and phase
    reported: dict[str, list[Tensor]]  # the values that the losses report, by name
    pseudo: PseudoLabelQuality

    def tensors(self) -> list[Tensor]:
        """Return the tensors that `outcome_from` needs on the host."""
        reported = []
        for values in self.reported.values():
            reported.append(torch.stack([value.double() for value in values]))
        return [*reported, *self.pseudo.tensors()]


def trained_of(module: LocalModule, momentum: dict[str, Weights]) -> Trained:
    """Copy the weights of a trained module without reading any tensor on the host."""
    local = module.local
    local.trainable = _like(local.trainable, module.trainable)
    local.frozen = _like(local.frozen, module.frozen)
    local.momentum, local.notes, local.steps = momentum, module.step.notes, module.taken
    if local.private is not None or module.step.private:
        local.private = module.step.private
    return Trained(local=local, losses=module.losses, reported=module.reported, pseudo=module.pseudo)


def _like(weight_sets: Mapping[str, Weights], networks: nn.ModuleDict) -> dict[str, Weights]:
    """Return copies of the networks' weights, with the entries of the job's initial weight sets."""
    return {name: weights_of(network, weight_sets[name].keys()) for name, network in networks.items()}


def outcome_from(job: Job, trained: Trained, read: Sequence[Tensor]) -> Outcome:
    """Return the sent weights, the client state and the metrics of a job. `read` is `trained.tensors()` on the host."""
    of_reported, of_pseudo = read[: len(trained.reported)], read[len(trained.reported) :]
    reported = {name: values_S.tolist() for name, values_S in zip(trained.reported, of_reported, strict=True)}
    return concluded(job, trained.local, reported, trained.pseudo, of_pseudo)


def concluded(
    job: Job,
    local: Local,
    reported: Mapping[str, Sequence[float]],
    pseudo: PseudoLabelQuality,
    read: Sequence[Tensor] | None = None,
) -> Outcome:
    """Call `finish` with the state after training, and sum metrics over local steps. The caller divides them.

    `reported` contains the values that the loss reported, step by step. `read` is `pseudo.tensors()`
    if they are already on the host.
    """
    local.totals = {name: added_up(values) for name, values in reported.items()}
    for name, total in local.totals.items():
        check_size(job.update, "loss", name, total)
    sends = finished(job.update, local)
    # If several losses take turns, each reports in a share of the steps, and its mean is over these steps only.
    totals = {name: total * (local.steps / len(reported[name])) for name, total in local.totals.items()}
    metrics = {**totals, **pseudo.metrics(read)}
    return Outcome(key=job.key, sends=sends, private=local.private, metrics=metrics, steps=local.steps)


def outcome_of(job: Job, module: LocalModule, momentum: dict[str, Weights]) -> Outcome:
    """Return the outcome of the job that the module has trained."""
    trained = trained_of(module, momentum)
    return outcome_from(job, trained, read_at_once(trained.tensors()))
