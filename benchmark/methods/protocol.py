"""What a federated method is: three functions over explicit state, and the local work they ask for.

A method never loops over SGD steps, never touches a device and never sees an image. Its `round` says which
clients do which local work (`Job`), hands all of it to `world.fit` at once, and combines what comes back
(`Outcome`), in job order. A whole method, as a toy that averages one number over the cohort:

    @dataclass(frozen=True, kw_only=True)
    class Toy:
        def init(self, setup):          return State(server={"student": setup.initial_weights()})
        def round(self, state, world):  ... world.fit([Job(key=Key(client=k), ...) for k in world.cohort()]) ...
        def models(self, state):        return {"student": state.server["student"]}

Legend of shape suffixes: N images of a batch, C channels, H W pixels, D classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]  # one network's parameters and buffers, by name
Tree = dict[str, Any]  # nested dicts of tensors and numbers: what can be sent, kept and saved

SERVER = -1  # the holder of the server's data, in place of a client's number
CENTRAL = -2  # the holder of everything, in centralised methods


@dataclass(frozen=True, kw_only=True)
class Key:
    """Whose work this is; seeds every random stream of the job, so that equal keys in a round see equal batches."""

    client: int  # 0..K-1, SERVER or CENTRAL
    draw: int = 0  # tells jobs of one holder in one round apart (server replicas, a client drawn twice)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A named stream of batches from the images of the job's holder, reshuffled at every pass."""

    part: Literal["labelled", "unlabelled", "validation"]
    batch_size: int  # B; a holder with fewer images gives them all in every batch
    views: tuple[str, ...]  # of "plain", "weak", "strong"
    drop_last: bool = True  # leave out the incomplete batch at the end of a pass


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How long a job trains: a number of local steps, or of passes over its longest stream."""

    steps: int | None = None
    epochs: int | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One local step's images of one stream. `labels_N` is None wherever the label setting hides labels."""

    views: Mapping[str, Tensor]  # name -> images_NCHW, float32, normalised
    labels_N: Tensor | None


@dataclass(kw_only=True)
class Local:
    """One job's weight sets while it trains. After training the engine writes the new weights back into it."""

    trainable: dict[str, Weights]  # stepped by the optimizer
    frozen: dict[str, Weights] = field(default_factory=dict)  # only read by the loss (a teacher, helpers)
    momentum: dict[str, Weights] | None = None  # momentum buffers to start from and, in the end, those left
    private: Tree | None = None  # stays with the holder; None: nothing is kept


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a job leaves: `sends` goes to the server (counted as bytes up), `private` stays with the holder."""

    key: Key
    sends: Tree
    private: Tree | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0


Networks = nn.ModuleDict  # weight set -> network
Predict = Callable[[Weights, str, str], Tensor]  # (weights, part, view) -> logits_ND, evaluation mode


@runtime_checkable
class LocalUpdate(Protocol):
    """The ClientUpdate or ServerUpdate box of a paper: a frozen dataclass at module level, so that it pickles."""

    def start(self, received: Tree, private: Tree | None, predict: Predict) -> Local | None:
        """The weight sets to train, from what was received and kept. None: this client sits the round out."""
        ...

    def loss(
        self, trainable: Networks, frozen: Networks, batch: Mapping[str, Batch], draw: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The loss of one local step, and what to report: "labels_N" and "kept_N" are the pseudo-labels of the
        stream "unlabelled" (their quality is measured outside, the method never sees a hidden label); every
        other entry is a scalar, averaged over the job's steps."""
        ...

    def after_step(self, local: Networks, frozen: Networks) -> None:
        """Work between local steps, in place (an EMA teacher in `frozen`)."""
        ...

    def finish(self, local: Local) -> Tree:
        """What is sent. What stays is left in `local.private`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of local work."""

    key: Key
    update: LocalUpdate
    receives: Tree  # named weight sets and tensors, counted as bytes down (nothing is counted for the server itself)
    data: Mapping[str, Stream]
    limit: Limit
    keeps: str | None = None  # under which name private state is kept; None: the client's own number


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything a method carries from round to round; a checkpoint is this and the round's number."""

    server: Tree
    clients: dict[str, Tree] = field(default_factory=dict)  # private state by keeper, created on first use


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a method may know before the first round."""

    initial_weights: Callable[[], Weights]  # the same for the same seed
    K: int
    C: int
    T: int
    sizes: Mapping[int, int]  # unlabelled images of each client, labelled images of SERVER


@dataclass(frozen=True, kw_only=True)
class World:
    """One round as a method sees it."""

    round: int  # 1 is the first
    rounds: int
    K: int
    C: int
    T: int
    sizes: Mapping[int, int]
    generator: Callable[..., np.random.Generator]  # generator("groups"): this round's named stream
    fit: Callable[[Sequence[Job]], Iterator[Outcome]]

    def cohort(self) -> list[int]:
        """C of the K clients, uniformly without replacement, in random order (so that a cut gives random groups)."""
        return [int(k) for k in self.generator("cohort").permutation(self.K)[: self.C]]


class Method(Protocol):
    """The contract. `needs` says which label settings the method can work in; a misfit fails before training."""

    needs: frozenset[str]

    def init(self, setup: Setup) -> State: ...

    def round(self, state: State, world: World) -> tuple[State, Mapping[str, float]]: ...

    def models(self, state: State) -> dict[str, Weights]:
        """What may be evaluated, by name; the first is the default."""
        ...

    def check(self, setup: Setup) -> None:
        """Raise ConfigError where the method cannot work with these factors (S > C)."""
        ...
