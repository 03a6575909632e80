"""Calls of a method's functions, with checks of what they return.

A return value that the contract does not allow ends in one line that names the function and what to return.
"""

import inspect
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.methods import protocol as fl
from benchmark.methods.catalogue import method_name


def first_state(method: Any, setup: fl.Setup) -> fl.State:
    """`init`, which returns a State. Raises ConfigError, as all of these."""
    state = method.init(setup)
    if not isinstance(state, fl.State):
        _refuse(method, "init", _type(state), "State(server={...})")
    return state


def play_round(method: Any, state: fl.State, world: fl.World) -> fl.Round:
    """`round`, which returns a State and numbers."""
    wanted = "a State and the numbers to record, such as `state, {}`"
    state, named = _pair(method, f"round {world.round}", method.round(state, world), fl.State, Real, wanted)
    return state, {name: value if type(value) is int else float(value) for name, value in named.items()}


def models_of(method: Any, state: fl.State) -> dict[str, fl.Weights]:
    """`models`, which names one set of weights or more."""
    models = method.models(state)
    if not isinstance(models, Mapping) or not models or not all(map(_is_weights, models.values())):
        _refuse(method, "models", _type(models), "the weights to evaluate by name, such as {'student': weights}")
    return dict(models)


def jobs_given(jobs: Sequence[fl.Job]) -> Sequence[fl.Job]:
    """What a method hands to `world.fit`."""
    if not isinstance(jobs, Sequence) or not all(isinstance(job, fl.Job) for job in jobs):
        raise ConfigError(f"world.fit was given {_type(jobs)}; give it a list of Job(...)")
    return jobs


def started(update: fl.LocalUpdate, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
    """Call `start`, which returns the weight sets to train, or None.

    Raise ConfigError also if a loss or `after_step` cannot be called with one `Step`, before anything is trained.
    """
    for function in (*update.phases, "after_step"):
        _check_takes_a_step(update, function)
    local = update.start(received, private, reader)
    if local is not None and not (isinstance(local, fl.Local) and all(map(_is_weights, local.trainable.values()))):
        _refuse(update, "start", _type(local), "None or Local(trainable={'student': weights})")
    return local


def _check_takes_a_step(update: fl.LocalUpdate, function: str) -> None:
    """Raise ConfigError if the function takes other arguments than one `Step`, as in earlier versions."""
    signature = inspect.signature(getattr(update, function))
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(
            f"{method_name(update)}, {function}: takes {signature}, but it is called with one Step; write "
            f"`def {function}(self, step)` and use step.trainable, step.frozen, step.batch, step.draw, step.received, "
            "step.private, step.notes and step.number"
        ) from None


def loss_of(update: fl.LocalUpdate, phase: int, step: fl.Step) -> fl.Loss:
    """The loss of one local step and what to report. A scalar tensor, and scalar tensors by name.

    Of pseudo-labels "labels_N", whole numbers, and "kept_N", bools.
    """
    name = update.phases[phase]
    wanted = "the loss, a scalar tensor, and scalar tensors to report, such as `loss, {}`"
    loss, aux = _pair(update, name, getattr(update, name)(step), Tensor, Tensor, wanted)
    labels_N, kept_N = aux.get("labels_N"), aux.get("kept_N")
    for reported, value in aux.items():
        if value.dim() and reported not in ("labels_N", "kept_N"):
            _refuse(update, name, f"{_type(value)} as {reported!r}", wanted)
    if kept_N is not None and (
        labels_N is None or labels_N.shape != kept_N.shape or labels_N.is_floating_point() or kept_N.dtype != torch.bool
    ):
        given = " and ".join(f"{_type(t)} of {getattr(t, 'dtype', None)}" for t in (labels_N, kept_N))
        _refuse(update, name, f"'labels_N' and 'kept_N' as {given}", "a whole number and a bool for each image")
    return loss, aux


def finished(update: fl.LocalUpdate, local: fl.Local) -> fl.Tree:
    """`finish`, which returns what is sent."""
    sends = update.finish(local)
    if not isinstance(sends, Mapping):
        _refuse(update, "finish", _type(sends), "what is sent by name, such as {'student': weights}")
    return dict(sends)


def _pair(owner: object, function: str, result: Any, first: type, values: type, wanted: str) -> Any:
    """The result, which has to be a pair of a `first`, a scalar where it is a tensor, and of `values` by name."""
    match result:
        case (head, Mapping() as named) if isinstance(head, first) and not (isinstance(head, Tensor) and head.dim()):
            right = {name for name, value in named.items() if isinstance(name, str) and isinstance(value, values)}
            wrong = [f"{_type(value)} as {name!r}" for name, value in named.items() if name not in right]
            if not wrong:
                return result
            given = wrong[0]
        case tuple():
            given = " and ".join(map(_type, result))
        case _:
            given = _type(result)
    _refuse(owner, function, given, wanted)


def _refuse(owner: object, function: str, given: str, wanted: str) -> NoReturn:
    raise ConfigError(f"{method_name(owner)}, {function}: returned {given}; return {wanted}")


def _is_weights(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(tensor, Tensor) for tensor in value.values())


def _type(value: object) -> str:
    """A value in a message: its type, a tensor's shape, a mapping's entries."""
    if isinstance(value, torch.Tensor):
        return f"Tensor{list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {type(held).__name__}' for name, held in list(value.items())[:3])}}}"
    return type(value).__name__
