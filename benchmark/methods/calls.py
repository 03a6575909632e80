"""Calls of a method's functions, with checks of the values that they return.

If the contract does not allow a return value, the run ends with one line that names the function and the right value.
"""

import contextlib
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from numbers import Integral, Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from benchmark.errors import ConfigError
from benchmark.methods import protocol as fl
from benchmark.methods.registry import method_name

# The tensors that a loss may report about pseudo-labels. All other reported values are scalars.
OF_PSEUDO_LABELS = ("labels_N", "kept_N", "candidates_ND")
# Names in a run record that are reserved for the measurements of the suite: a method's metrics need different names.
RESERVED_STARTS = ("test/", "validation/", "pseudo/", "diversity/", "comm/", "time/", "rounds_to/", "exchange/")
COLUMNS = (  # the columns of `benchmark.load`
    "cell_key",
    "seed",
    "status",
    "profile",
    "round",
    "local_steps",
    "method",
    "data",
    "labels",
    "network",
    "partition",
    "R",
    "alpha",
    "N_s",
    "K",
    "C",
    "T",
    "rounds",
    "lr",
)
OF_THE_SUITE = ("comm/shared_images",)  # metrics with a reserved start that methods of the suite report
LARGEST = 1e300  # the bound on the size of a number in a run record (`records.schema`)


def first_state(method: Any, setup: fl.Setup) -> fl.State:
    """Call `init` and return the State. Raise ConfigError if the method did not return a State."""
    state = method.init(setup)
    if not isinstance(state, fl.State):
        _refuse(method, "init", _type(state), "State(server={...})")
    return state


def play_round(method: Any, state: fl.State, world: fl.World) -> fl.Round:
    """Call `round` and return the State and the numbers to record, as int or float.

    Raise ConfigError if the method returned other values, used a reserved name, or changed a client state in place.
    """
    wanted = "a State and the numbers to record, such as `state, {}`"
    function = f"round {world.round}"
    clients = ReadStates(state.clients)
    result = method.round(replace(state, clients=clients), world)
    clients.refuse_change(method, function)
    state, named = _pair(method, function, result, fl.State, Real, wanted)
    for name, value in named.items():
        check_name(method, function, name)
        check_size(method, function, name, value)
    return state, {name: value if type(value) is int else float(value) for name, value in named.items()}


def check_name(owner: object, function: str, name: str) -> None:
    """Raise ConfigError if the name of a metric is reserved for the suite or cannot be shown in a table."""
    if name in COLUMNS or (name.startswith(RESERVED_STARTS) and name not in OF_THE_SUITE):
        raise ConfigError(
            f"{method_name(owner)} reports {name!r} in {function}, but this name is reserved for the suite; report it "
            f"under a different name, such as 'own/{name.rpartition('/')[2]}'"
        )
    if not name or not name.isprintable():
        raise ConfigError(
            f"{method_name(owner)} reports {name!r} in {function}, but no table can show this name; use letters and "
            "digits"
        )


def check_size(owner: object, function: str, name: str, value: Any) -> None:
    """Raise ConfigError if a number is too large for a run record.

    A number that is not finite is allowed; it counts as not measured.
    """
    try:
        is_too_large = math.isfinite(value) and not -LARGEST < value < LARGEST
    except OverflowError:  # an integer with hundreds of digits
        is_too_large = True
    if is_too_large:
        raise ConfigError(
            f"{method_name(owner)} reports a number of more than 300 digits as {name!r} in {function}, but a run "
            "record cannot contain it; report its logarithm"
        )


def models_of(method: Any, state: fl.State) -> dict[str, fl.Weights]:
    """Call `models` and return the weight sets by name. Raise ConfigError if there is none or the state lacks it."""
    with _only_read(method, "models", state) as given:
        try:
            models = method.models(given)
        except KeyError as error:
            names = ", ".join(list(state.server)[:4]) or "nothing"
            raise ConfigError(
                f"models of {method_name(method)} needs {error}, but the server of the State has {names}; return "
                f"State(server={{{error}: ...}}) from init and round, or define models"
            ) from error
    if not isinstance(models, Mapping) or not models or not all(map(_is_weights, models.values())):
        _refuse(method, "models", _type(models), "the weights to evaluate by name, such as {'student': weights}")
    return dict(models)


def voters_of(method: Any, state: fl.State) -> list[fl.Weights]:
    """Call `voters` and return the list of weight sets; it is empty for a method without this function."""
    if not hasattr(method, "voters"):
        return []
    with _only_read(method, "voters", state) as given:
        voters = method.voters(given)
    if not isinstance(voters, Sequence) or not all(map(_is_weights, voters)):
        _refuse(method, "voters", _type(voters), "a list of weights to evaluate together, such as [weights]")
    return list(voters)


def measures_of(method: Any, state: fl.State, examiner: fl.Examiner) -> dict[str, float]:
    """Call `measures` and return the numbers by name. Raise ConfigError for other values or a reserved name."""
    with _only_read(method, "measures", state) as given:
        measured = method.measures(given, examiner)
    wanted = "numbers by name, such as {'own/prototype_accuracy': 0.9}"
    if not isinstance(measured, Mapping):
        _refuse(method, "measures", _type(measured), wanted)
    for name, value in measured.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            _refuse(method, "measures", f"{_type(value)} as {name!r}", wanted)
        check_name(method, "measures", name)
        check_size(method, "measures", name, value)
    return {name: float(value) for name, value in measured.items()}


def jobs_given(jobs: Sequence[fl.Job], K: int) -> Sequence[fl.Job]:
    """Return the jobs that a method passed to `world.fit`.

    Raise ConfigError if they are not a list of jobs, or if one of them is not a job of a client 0 to K-1, SERVER or
    CENTRAL.
    """
    if not isinstance(jobs, Sequence) or not all(isinstance(job, fl.Job) for job in jobs):
        raise ConfigError(f"world.fit was called with {_type(jobs)}; call it with a list of Job(...)")
    clients: list[Any] = [job.key.client for job in jobs]
    for client in clients:
        is_whole = isinstance(client, Integral) and not isinstance(client, bool)
        if not is_whole or not (0 <= client < K or client in (fl.SERVER, fl.CENTRAL)):
            raise ConfigError(
                f"world.fit was called with a job of client {client!r}, but clients are 0 to {K - 1}; use one of "
                "these, SERVER or CENTRAL"
            )
    return jobs


class Mark(NamedTuple):
    """A leaf of a tree, with a value that differs after a change of the leaf in place."""

    name: str
    leaf: object
    version: object


Marks = list[Mark]  # of all leaves of a tree


def marks_of(tree: object, name: str = "") -> Marks:
    """Collect the marks that `change_since` needs to detect a change of a tree in place.

    The version of a tensor is the number of its changes in place, which torch counts.
    """
    if isinstance(tree, Mapping):
        return [mark for key, value in tree.items() for mark in marks_of(value, f"{name}.{key}" if name else f"{key}")]
    if isinstance(tree, list | tuple):
        return [mark for index, value in enumerate(tree) for mark in marks_of(value, f"{name}[{index}]")]
    if isinstance(tree, Tensor):
        return [Mark(name, tree, None if tree.is_inference() else tree._version)]
    return [Mark(name, tree, tree.tobytes() if isinstance(tree, np.ndarray) else None)]


def change_since(marks: Marks, tree: object) -> str | None:
    """Return the name of the first leaf that was changed, added, removed or replaced since the marks were made.

    Return None if there is no such leaf. Changes of a tensor through `.data` or through a NumPy array are not detected.
    """
    for before, now in zip_longest(marks, marks_of(tree)):
        if before is None or now is None:
            return str((before or now).name)
        if before.name != now.name or before.leaf is not now.leaf or before.version != now.version:
            return str(before.name)
    return None


def refuse_change(owner: object, function: str, what: str, marks: Marks, tree: object) -> None:
    """Raise ConfigError if the tree was changed since the marks were made."""
    if (name := change_since(marks, tree)) is not None:
        raise ConfigError(
            f"{function} of {method_name(owner)} changes {name or 'an entry'} of {what} in place; make a new tensor, "
            "for example by `weight = weight + change` instead of `weight += change`"
        )


@contextlib.contextmanager
def unchanged(owner: object, function: str, what: str, tree: object) -> Iterator[None]:
    """Raise ConfigError at the end of the `with` block if the block changed the tree in place."""
    marks = marks_of(tree)
    yield
    refuse_change(owner, function, what, marks, tree)


class ReadStates(Mapping[str, fl.Tree]):
    """A read-only view of the client states that marks each state that is read, so that changes can be detected."""

    def __init__(self, clients: Mapping[str, fl.Tree]) -> None:
        self._clients = clients
        self._marks: dict[str, Marks] = {}

    def __getitem__(self, state_key: str) -> fl.Tree:
        tree = self._clients[state_key]
        if state_key not in self._marks:
            self._marks[state_key] = marks_of(tree)
        return tree

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, state_key: object) -> bool:
        return state_key in self._clients

    def refuse_change(self, owner: object, function: str) -> None:
        """Raise ConfigError if a client state was changed in place after it was read."""
        for state_key, marks in self._marks.items():
            refuse_change(owner, function, f"the state of {state_key}", marks, self._clients[state_key])


def started(update: fl.LocalUpdate, received: fl.Tree, private: fl.Tree | None, reader: fl.Reader) -> fl.Local | None:
    """Call `start` and return the weight sets to train, or None if the client skips the round.

    Raise ConfigError if `start` returned other values, or, before the training, if a loss or `after_step`
    cannot be called with one `Step`.
    """
    for function in (*update.phases, "after_step"):
        _check_takes_a_step(update, function)
    local = update.start(received, private, reader)
    if local is not None and not (isinstance(local, fl.Local) and all(map(_is_weights, local.trainable.values()))):
        _refuse(update, "start", _type(local), "None or Local(trainable={'student': weights})")
    return local


def _check_takes_a_step(update: fl.LocalUpdate, function: str) -> None:
    """Raise ConfigError if the function cannot be called with one `Step`, as in methods for earlier versions."""
    signature = inspect.signature(getattr(update, function))
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigError(
            f"{function} of {method_name(update)} has the arguments {signature}, but it is called with one Step; write "
            f"`def {function}(self, step)` and use step.trainable, step.frozen, step.batch, step.drawn, step.received, "
            "step.private, step.notes and step.number"
        ) from None


def loss_of(update: fl.LocalUpdate, phase: int, step: fl.Step) -> fl.Loss:
    """Compute the loss of one local step, a scalar tensor, and the scalar tensors to report, by name.

    Pseudo-labels are reported as "labels_N", integers, "kept_N", bools, and optionally "candidates_ND", bools. Raise
    ConfigError if the method returned anything else or used a reserved name.
    """
    name = update.phases[phase]
    wanted = "the loss, a scalar tensor, and scalar tensors to report, such as `loss, {}`"
    loss, aux = _pair(update, name, getattr(update, name)(step), Tensor, Tensor, wanted)
    labels_N, kept_N = aux.get("labels_N"), aux.get("kept_N")
    for reported, value in aux.items():
        if reported in OF_PSEUDO_LABELS:
            continue
        check_name(update, name, reported)
        if value.dim():
            _refuse(update, name, f"{_type(value)} as {reported!r}", wanted)
    if kept_N is not None and (
        labels_N is None or labels_N.shape != kept_N.shape or labels_N.is_floating_point() or kept_N.dtype != torch.bool
    ):
        given = " and ".join(f"{_type(t)} of {getattr(t, 'dtype', None)}" for t in (labels_N, kept_N))
        _refuse(update, name, f"'labels_N' and 'kept_N' as {given}", "an integer and a bool for each image")
    candidates_ND = aux.get("candidates_ND")
    if candidates_ND is not None and (
        kept_N is None or candidates_ND.shape[:-1] != kept_N.shape or candidates_ND.dtype != torch.bool
    ):
        given = f"{_type(candidates_ND)} of {candidates_ND.dtype}"
        _refuse(update, name, f"'candidates_ND' as {given}", "a bool for each class of each image of 'kept_N'")
    return loss, aux


def finished(update: fl.LocalUpdate, local: fl.Local) -> fl.Tree:
    """Call `finish` and return the tree that is sent. Raise ConfigError if the method did not return a mapping."""
    sends = update.finish(local)
    if not isinstance(sends, Mapping):
        _refuse(update, "finish", _type(sends), "the tree to send, such as {'student': weights}")
    return dict(sends)


@contextlib.contextmanager
def _only_read(method: Any, function: str, state: fl.State) -> Iterator[fl.State]:
    """Yield the state for a function that must not change it. Raise ConfigError if the function changed it."""
    clients = ReadStates(state.clients)
    with unchanged(method, function, "the state", state.server):
        yield replace(state, clients=clients)
    clients.refuse_change(method, function)


def _pair(owner: object, function: str, result: Any, first: type, values: type, wanted: str) -> Any:
    """Return the result if it is a pair of a `first` and of `values` by name.

    If `first` is Tensor, it must be a scalar. Raise ConfigError for any other result.
    """
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
    raise ConfigError(f"{function} of {method_name(owner)} returned {given}; return {wanted}")


def _is_weights(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(tensor, Tensor) for tensor in value.values())


def _type(value: object) -> str:
    """Describe a value for a message: its type, with the shape of a tensor or the first entries of a mapping."""
    if isinstance(value, torch.Tensor):
        return f"Tensor{list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name!r}: {type(held).__name__}' for name, held in list(value.items())[:3])}}}"
    return type(value).__name__
