"""The only local step of the project: `ServerModule` and `ClientModule`, and the loop that every engine runs.

A plain `Trainer(max_steps=T).fit(ClientModule(...), batches)` gives the weights that an engine gives for the same job.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from benchmark.federated.environment import weights_of
from benchmark.federated.round_metrics import PseudoLabelQuality
from benchmark.federated.trees import moved, read_at_once
from benchmark.methods.calls import check_size, finished, loss_of
from benchmark.methods.protocol import SERVER, Job, Local, Outcome, Step, Weights
from benchmark.optimizer import Optimizer
from benchmark.streams import seed_global, stream_seed, torch_stream

BETA_2 = 0.999  # of Adam
SLOT = "/"  # between a parameter's name and that of a tensor that Adam keeps for it


class LocalModule(pl.LightningModule):
    """One job's local training: the weight sets of `local` in networks, the update's loss, SGD.

    `network` is a prototype; one copy is made for each weight set. `rate_at`: the learning rate at one of the job's
    steps (0 is the first), as a share of the base rate.
    `fused`: the optimizer's step in one kernel, which rounds otherwise than the plain one; off a CPU always.
    """

    def __init__(
        self,
        job: Job,
        local: Local,
        network: nn.Module,
        sgd: Optimizer,
        rate_at: Callable[[int], float],
        *,
        precision: Precision = "fp32",
        fused: bool = False,
    ) -> None:
        super().__init__()
        device = next(network.parameters()).device
        self.sgd, self.fused = sgd, fused or device.type != "cpu"
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
        """Start a job: its weight sets into the networks, counters at zero. An engine reuses a module for many jobs."""
        self.update, self.local, self.rate_at = job.update, local, rate_at
        self.base_rate = base_rate(self.sgd, job)
        self.local_device = next(self.trainable.parameters()).device
        self.step = Step(
            trainable=self.trainable,
            frozen=self.frozen,
            received=job.receives,
            private=moved(local.private or {}, self.local_device),
            notes=moved(local.notes, self.local_device),
        )
        # Read after the job, since a read within a step would wait for the device: what was reported, and the losses.
        self.reported: dict[str, list[Tensor]] = defaultdict(list)
        self.losses: list[Tensor] = []
        self.taken = 0  # optimizer steps
        self.pseudo = PseudoLabelQuality()
        for networks, weight_sets in ((self.trainable, local.trainable), (self.frozen, local.frozen)):
            for name, weights in weight_sets.items():
                load(networks[name], weights)
        self.trainable.train()
        self.frozen.eval().requires_grad_(False)

    def training_step(self, batch: LocalBatch, batch_idx: int) -> Tensor:
        self.step.batch = batch.streams
        drawn = self.update.draws(self.draw, batch.streams)
        self.step.drawn = {name: to_device(value, self.local_device) for name, value in drawn.items()}
        loss, aux = loss_of(self.update, batch.phase, self.step)
        self.losses.append(loss.detach())
        for name, value in aux.items():
            if name not in ("labels_N", "kept_N"):
                self.reported[name].append(value.detach())
        if "kept_N" in aux:
            self.pseudo.add(aux["labels_N"], aux["kept_N"], batch.truth_N)
        return loss

    def configure_optimizers(self) -> Any:
        """For a Trainer."""
        optimizer = self.new_optimizer()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate_at)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def new_optimizer(self) -> torch.optim.Optimizer:
        """The job's optimizer at its base rate, with the momentum that the job begins with."""
        common: Any = {
            "lr": self.base_rate,
            "weight_decay": self.sgd.weight_decay,
            "foreach": not self.fused,
            "fused": self.fused,
        }
        weights, momentum = self.trainable.parameters(), self.sgd.momentum
        optimizer: torch.optim.Optimizer = (
            torch.optim.Adam(weights, betas=(momentum, BETA_2), **common)
            if self.sgd.rule == "adam"
            else torch.optim.SGD(weights, momentum=momentum, nesterov=self.sgd.nesterov, **common)
        )
        for name, buffers in (self.local.momentum or {}).items():
            for tensor, value in buffers.items():
                owner, _, slot = tensor.partition(SLOT)
                parameter = self.trainable[name].get_parameter(owner)
                optimizer.state[parameter][slot or "momentum_buffer"] = value.to(parameter.device, copy=True)
        return optimizer

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        """The experiment's own clipping: the norm of all gradients together. Lightning calls it before each step."""
        if self.sgd.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.trainable.parameters(), self.sgd.clip)

    def on_train_batch_end(self, outputs: Any, batch: LocalBatch, batch_idx: int) -> None:
        self.taken += 1
        self.step.number = self.taken
        with torch.no_grad():
            self.update.after_step(self.step)


def base_rate(settings: Optimizer, job: Job) -> float:
    """Return the learning rate of the job's holder, before the schedule."""
    holder = job.learning_rate or ("server" if job.key.client == SERVER else "client")
    return (settings.server_lr if holder == "server" else None) or settings.lr


def added_up(values: Iterable[float]) -> float:
    """Return the sum, one value after another: Python's `sum` rounds otherwise."""
    total = 0.0
    for value in values:
        total += value
    return total


def empty_layers(weights: Weights) -> nn.ParameterDict:
    """Parameters of a method's own layers (`Local.layers`), without values: `load` sets them."""
    return nn.ParameterDict({name: nn.Parameter(torch.empty_like(value)) for name, value in weights.items()})


class ServerModule(LocalModule):
    """Local training at the server: the labelled images, the server's learning rate."""


class ClientModule(LocalModule):
    """Local training at a client (or at the one holder of a centralised method)."""


def module_class(job: Job) -> type[LocalModule]:
    return ServerModule if job.key.client == SERVER else ClientModule


def pass_in_bfloat16(network: nn.Module) -> None:
    """Forward and backward in bfloat16 where autocast does so; weights, their gradients and the logits stay float32.

    Not the loss: a probability of bfloat16 has steps of 0.4 % near 1, and tau is there.
    """

    def in_bfloat16(plain: Callable[[Tensor], Tensor], images_NCHW: Tensor) -> Tensor:
        with torch.autocast(images_NCHW.device.type, torch.bfloat16):
            return plain(images_NCHW).float()

    for name in ("features", "forward"):
        if hasattr(type(network), name):  # a method of it; `features` may also be layers
            setattr(network, name, partial(in_bfloat16, getattr(network, name)))


@torch.no_grad()
def load(network: nn.Module, weights: Weights) -> None:
    """Copy weights into the network in place, parameters and buffers."""
    own = network.state_dict(keep_vars=True)
    if own.keys() != weights.keys():
        names = ", ".join(sorted(own.keys() ^ weights.keys())[:3])
        raise ConfigError(
            f"a weight set does not fit the network (missing or unknown: {names}); what `models` names and `start` "
            "trains are whole ones, such as setup.initial_weights()"
        )
    for name, tensor in own.items():
        given = weights[name]
        if given.shape != tensor.shape or given.is_floating_point() != tensor.is_floating_point():
            was, wanted = (f"{list(one.shape)} of {one.dtype}" for one in (given, tensor))
            raise ConfigError(f"a weight set does not fit the network: its {name} is {was}, the network's {wanted}")
        tensor.copy_(given)


def train(module: LocalModule, batches: Iterable[LocalBatch]) -> dict[str, Weights]:
    """Local steps as Lightning's automatic optimization runs them, without a Trainer. Returns momentum buffers."""
    optimizer, parameters = module.new_optimizer(), list(module.trainable.parameters())
    (group,) = optimizer.param_groups
    base = group["lr"]
    take_step = quick_step(optimizer)
    for index, batch in enumerate(batches):
        for parameter in parameters:
            parameter.grad = None
        group["lr"] = base * module.rate_at(index)
        loss = module.training_step(batch, index)
        loss.backward()
        module.configure_gradient_clipping(optimizer)
        take_step()
        module.on_train_batch_end(loss, batch, index)
    return momentum_of(module, optimizer)


def quick_step(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """The optimizer's `step` without what torch does around it at every call, a twentieth of a small step.

    That is a look for hooks and profilers, and for fused SGD on a CPU the sorting of tensors by device and type.
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
    """The momentum buffers by weight set and parameter name; zeros where a parameter never had a gradient. Of Adam
    what it has of those that had one, each under the name with its own appended."""
    kept: dict[str, Weights] = {}
    for name, network in module.trainable.items():
        kept[name] = {}
        for tensor, parameter in network.named_parameters():
            state = optimizer.state[parameter]
            if module.sgd.rule == "adam":
                kept[name].update({f"{tensor}{SLOT}{slot}": value.detach() for slot, value in state.items()})
            else:
                kept[name][tensor] = state.get("momentum_buffer", torch.zeros_like(parameter)).detach()
    return kept


def gradient(module: LocalModule, batches: Iterable[LocalBatch]) -> dict[str, Weights]:
    """Compute the gradient of the update's mean loss over images, at the weights received.

    SSFL Eq. 1: "evaluated on all data held by the k-th user"; no step is taken. The loss of an incomplete batch
    counts by its size, so that the result is the gradient of the mean loss over images.
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
    """Seed what a job draws while it trains: the update's own generator, and torch's global one for dropout."""
    names = (purpose, "round", round_number, *key_names(job.key))
    module.draw = torch_stream(seed, *names, "loss")
    seed_global(stream_seed(seed, *names, "dropout"))


@dataclass
class Trained:
    """What a job's local training leaves. It shares nothing with the module, which may train the next job."""

    local: Local  # with the new weights
    losses: list[Tensor]  # of each local step and phase
    reported: dict[str, list[Tensor]]  # by name: what the losses report
    pseudo: PseudoLabelQuality

    def tensors(self) -> list[Tensor]:
        """Return what `outcome_from` reads on the host."""
        reported = []
        for values in self.reported.values():
            reported.append(torch.stack([value.double() for value in values]))
        return [*reported, *self.pseudo.tensors()]


def trained_of(module: LocalModule, momentum: dict[str, Weights]) -> Trained:
    """Copy the weights of a module that has been trained; nothing is read."""
    local = module.local
    local.trainable = {name: weights_of(network) for name, network in module.trainable.items()}
    local.frozen = {name: weights_of(network) for name, network in module.frozen.items()}
    local.momentum, local.notes, local.steps = momentum, module.step.notes, module.taken
    if local.private is not None or module.step.private:
        local.private = module.step.private
    return Trained(local=local, losses=module.losses, reported=module.reported, pseudo=module.pseudo)


def outcome_from(job: Job, trained: Trained, read: Sequence[Tensor]) -> Outcome:
    """Return what the job sends and keeps, and its metrics. `read`: `trained.tensors()` on the host."""
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
    """Call `finish` with what is left after training, and sum metrics over local steps. The caller divides them.

    `reported`: what the loss reported, step by step. `read`: `pseudo.tensors()` on the host, if they are there already.
    """
    local.totals = {name: added_up(values) for name, values in reported.items()}
    for name, total in local.totals.items():
        check_size(job.update, "loss", name, total)
    sends = finished(job.update, local)
    # What one of several losses in turn reports comes in a share of the steps: means over steps are then of these.
    totals = {name: total * (local.steps / len(reported[name])) for name, total in local.totals.items()}
    metrics = {**totals, **pseudo.metrics(read)}
    return Outcome(key=job.key, sends=sends, private=local.private, metrics=metrics, steps=local.steps)


def outcome_of(job: Job, module: LocalModule, momentum: dict[str, Weights]) -> Outcome:
    """Return the outcome of a job that the module has been trained on."""
    trained = trained_of(module, momentum)
    return outcome_from(job, trained, read_at_once(trained.tensors()))
