"""The contract of a method: three functions over explicit state.

A method never loops over SGD steps, never touches a device and never sees an image. Its `round` says which clients do
which local work (`Job`), passes all of it to `world.fit` at once, and combines the results (`Outcome`), in job order.
`README.md` in this folder has a whole method.

Legend of shape suffixes in all methods: N images of a batch or of a part, C channels, H W pixels, D classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.config import Checked
from benchmark.models.build import Model

Weights = dict[str, Tensor]  # one network's parameters and buffers, by name
Tree = dict[str, Any]  # nested dicts of tensors and numbers: what can be sent, kept and saved
# "with_shared": a client's labelled images and, after them, all of the server's (DataSharing).
# "everyones": all images whose labels are visible to their holder; only CENTRAL has it.
PartName = Literal["labelled", "unlabelled", "validation", "with_shared", "everyones"]

SERVER = -1  # the holder of the server's data, in place of a client's number
CENTRAL = -2  # the holder of everything, in centralised methods


@dataclass(frozen=True, kw_only=True)
class Key:
    """Whose work a job is. It seeds every random stream of the job, so that equal keys in a round see equal batches."""

    client: int  # 0..K-1, SERVER or CENTRAL
    draw: int = 0  # tells jobs of one holder in one round apart (server replicas, a client drawn twice)


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A named stream of batches from the images of the job's holder. They are reshuffled at every pass."""

    part: PartName
    batch_size: int  # B; a holder with fewer images gives them all in every batch
    views: tuple[str, ...]  # of "plain", "weak", "strong", and "weak2", a second draw of the weak view
    drop_last: bool = True  # leave out the incomplete batch at the end of a pass

    @classmethod
    def whole(cls, part: PartName, batch_size: int, *views: str) -> "Stream":
        """With the incomplete last batch. Of weak views where no others are named."""
        return cls(part=part, batch_size=batch_size, views=views or ("weak",), drop_last=False)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """How long a job trains: local steps, or passes over its longest stream. One that only reads takes none."""

    steps: int | None = None
    epochs: int | None = None

    def times(self, factor: int) -> "Limit":
        return Limit(**{name: factor * value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One local step's images of one stream. `labels_N` is None wherever the label setting hides labels."""

    views: Mapping[str, Tensor]  # name -> images_NCHW, float32, normalised
    labels_N: Tensor | None
    pseudo_labels_N: Tensor | None = None  # those that `start` gave the images (`Selected`)
    positions_N: Tensor | None = None  # int64, of the images in the participant's data subset; the engine sets them

    @property
    def known_N(self) -> Tensor:
        """The labels, where the label setting has been checked: there are some."""
        assert self.labels_N is not None
        return self.labels_N

    @property
    def given_N(self) -> Tensor:
        """The pseudo-labels, where `start` gave some."""
        assert self.pseudo_labels_N is not None
        return self.pseudo_labels_N

    def of_images(self, values_M: Tensor) -> Tensor:
        """Return values_N of this batch's images from one value per image of the data subset."""
        assert self.positions_N is not None
        return values_M[self.positions_N]


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The images that a stream draws from, where `start` chooses them (SemiFL)."""

    positions_N: Tensor  # int64, into the part's images in their order; an image may come more than once
    labels_N: Tensor | None = None  # pseudo-labels given to them


@dataclass(frozen=True, kw_only=True)
class PseudoLabelled:
    """Pseudo-labels that `start` gave to all unlabelled images of the holder. Their quality is measured outside."""

    labels_N: Tensor
    kept_N: Tensor  # bool: confident enough to be used


@dataclass(kw_only=True)
class Local:
    """One job's weight sets while it trains. After training the engine writes the new weights into it."""

    trainable: dict[str, Weights]  # stepped by the optimizer; none: the job only reads
    frozen: dict[str, Weights] = field(default_factory=dict)  # only read by the loss (a teacher, an anchor)
    # Weight sets of `trainable` that are no networks: layers of the method's own. The loss has an nn.ParameterDict.
    layers: tuple[str, ...] = ()
    momentum: dict[str, Weights] | None = None  # momentum buffers to start from and, in the end, those left
    private: Tree | None = None  # stays with the holder; None: nothing is kept
    selected: dict[str, Selected] = field(default_factory=dict)  # stream -> its images, where not the whole part
    pseudo: PseudoLabelled | None = None
    notes: Tree = field(default_factory=dict)  # what `start` leaves for the steps and for `finish`
    totals: dict[str, float] = field(default_factory=dict)  # after training: sums over the steps of what `loss` reports
    steps: int = 0  # after training: local steps taken


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a job. `sends` goes to the server (counted as bytes up), `private` stays with the holder."""

    key: Key
    sends: Tree
    private: Tree | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0

    @property
    def sat_out(self) -> bool:
        return not self.sends


Networks = nn.ModuleDict  # weight set -> network, or nn.ParameterDict of `Local.layers`


class Reader(Protocol):
    """Passes over the holder's images for `start`, which only read. `draw` is the job's own random stream."""

    draw: torch.Generator

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        """logits_ND of all images of the part, in evaluation mode. In the part's order."""

    def labels(self, part: PartName) -> Tensor | None:
        """labels_N of all images of the part, in its order. None where they are hidden from the holder."""

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        """The statistics of the network's static batch norms over batches of the part. In order and without
        augmentation: `running_mean` and `running_var` by name (float64; `statistics_over` of models.norms), and the
        number of images, or of batches where they are not `pooled`. Nothing where the holder has no such images."""

    def on_noise(self, weights: Weights) -> Tensor:
        """logits_D of one image of Gaussian noise, in evaluation mode. It is the same image for every holder and
        round."""


@dataclass(kw_only=True)
class Step:
    """Hold what `loss` and `after_step` may use of one local step.

    The networks, `private` and `notes` may be changed in place. `notes` are the job's own: `start` leaves the first
    ones in `Local.notes`, every step sees the ones of the step before, and `finish` gets the last.
    """

    trainable: Networks
    frozen: Networks
    batch: Mapping[str, Batch] = field(default_factory=dict)  # by the name of their stream
    drawn: Mapping[str, Tensor] = field(default_factory=dict)  # what `LocalUpdate.draws` drew for this step
    received: Tree = field(default_factory=dict)
    private: Tree = field(default_factory=dict)
    notes: Tree = field(default_factory=dict)
    number: int = 0  # local steps taken in this job: in `loss` those before this one, in `after_step` with this one

    @property
    def student(self) -> nn.Module:
        return self.trainable["student"]

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError that names what a step has: `step` was the counter's name in `Training`."""
        names = ", ".join(vars(self))
        raise AttributeError(f"a local step has no {name!r}; it has {names} and student")


Loss = tuple[Tensor, Mapping[str, Tensor]]  # of one local step, and what to report of it


class LocalUpdate:
    """The ClientUpdate or ServerUpdate box of a paper.

    It is a frozen dataclass at module level, so that it can be pickled. It needs `loss` alone: what is not overridden
    trains the weight set "student" and sends it back.
    """

    # The losses that are taken in turn on each batch, each with an optimizer step of its own (FedMatch: first sigma on
    # labels, then psi without). A weight set that a loss does not reach is not stepped.
    phases: ClassVar[tuple[str, ...]] = ("loss",)

    # Whether local steps begin at the weights received. Where a client continues from a model of its own, which the
    # server does not know, what its steps changed cannot be measured, and it has no gradient diversity.
    starts_from_received: ClassVar[bool] = True

    # Hints that change no result and may be left out:
    # whether only changes are sent, so that bytes are known after training alone
    sends_changes: ClassVar[bool] = False
    # whether the job neither uses nor changes what the participant keeps, so that its jobs can run at the same time
    is_stateless: ClassVar[bool] = False

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        """Return the weight sets to train, from what was received and kept; None if this client skips the round.

        An engine may interrupt it at a pass of `reader` and call it again from the beginning, with the same random
        numbers and a fresh copy of `private`. So it changes nothing outside of what it is given.
        """
        return Local(trainable={"student": received["student"]})

    def draws(self, generator: torch.Generator, batch: Mapping[str, Batch]) -> Mapping[str, Tensor]:
        """Draw the random numbers that one local step needs besides its views, on the CPU; `step.drawn` has them.

        `generator` is the job's own random stream. `loss` and `after_step` draw nothing themselves.
        """
        return {}

    def loss(self, step: Step) -> Loss:
        """Compute the loss of one local step, a scalar, and what to report of it.

        "labels_N" and "kept_N" are the pseudo-labels of the stream "unlabelled": their quality is measured outside,
        since a method never sees a hidden label. Every other entry is a scalar, averaged over the job's steps without
        its gradient.

        `loss` and `after_step` are functions of the step's tensors: they read no number from a tensor (`float`,
        `.item()`, `if tensor`), draw nothing, and take the same operations in every step, whatever `step.number` is. A
        value that changes from step to step is a tensor in `step.notes`. So a step can be recorded once and repeated.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def after_step(self, step: Step) -> None:
        """Change networks, `private` or `notes` between local steps, in place (an EMA teacher in `step.frozen`)."""

    def finish(self, local: Local) -> Tree:
        """What is sent; nothing: the client sits out after all. What the client keeps is left in `local.private`."""
        return {"student": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of local work."""

    key: Key
    update: LocalUpdate
    receives: Tree  # named weight sets and tensors, counted as bytes down (nothing is counted for the server itself)
    data: Mapping[str, Stream]
    limit: Limit
    keeps: str | None = None  # under which name private state is kept; None: the client's own number
    network: Model | None = None  # None: the experiment's; another one for a sub-network (HeteroFL)
    learning_rate: Literal["client", "server"] | None = None  # None: the holder's; "server" for labels at a client
    # For measurements, where `receives` does not say it: the whole weight sets that the job begins with, whose sum is
    # what is trained. It crosses no network and reaches no local work.
    begins: Mapping[str, Weights] | None = None
    group: int = 0  # for measurements: clients of one group are averaged with each other


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything a run carries from round to round, and that is saved."""

    server: Tree
    # Private state by keeper, created on first use. The engine fills it in; what a method returns here is not read.
    clients: Mapping[str, Tree] = field(default_factory=dict)


Round = tuple[State, Mapping[str, float]]  # the state after a round, and numbers to record


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a method may know before the first round."""

    # The same for the same seed; initial_weights(model): those of another network than the experiment's.
    initial_weights: Callable[..., Weights]
    generator: Callable[..., np.random.Generator]  # generator("layers"): the run's named stream
    model: Model
    num_classes: int  # D
    buffers: Callable[[], Sequence[str]]  # names of the network's weights that are not trained
    width: Callable[[], int]  # F, of the network's features; raises ConfigError where it gives none
    K: int  # clients, also one that holds the server's labelled images
    C: int
    T: int
    sizes: Mapping[int, int]  # images of each client, labelled images of SERVER
    labelled: Mapping[int, int]  # images with visible labels of each client and of SERVER


@dataclass(frozen=True, kw_only=True)
class World(Setup):
    """One round as a method sees it. Its `generator` gives this round's named streams."""

    round: int  # 1 is the first
    rounds: int
    limit: Limit  # a job's length: T local steps, or the federation's local epochs
    fit: Callable[[Sequence[Job]], Iterator[Outcome]]

    def cohort(self) -> list[int]:
        """C of the K clients, uniformly without replacement, in random order. So consecutive parts of it are random
        groups."""
        return [int(k) for k in self.generator("cohort").permutation(self.K)[: self.C]]

    def unlabelled(self, client: int) -> int:
        """The client's unlabelled images. 0 where labels are everywhere: its part "unlabelled" is the labelled one."""
        return self.sizes[client] - self.labelled[client]

    def streams(self, client: int, **streams: Stream) -> dict[str, Stream]:
        """Of the streams "labelled" and "unlabelled" those of whose images the client has some."""
        images = {"labelled": self.labelled[client], "unlabelled": self.unlabelled(client)}
        return {name: stream for name, stream in streams.items() if images[name]}

    def job(
        self,
        holder: int,
        update: LocalUpdate,
        receives: Tree,
        data: Mapping[str, Stream] | None = None,
        *,
        draw: int = 0,
        limit: Limit | None = None,
        **fields: Any,
    ) -> Job:
        """A job of local work at this holder. Without a `limit` it is as long as the round says; `fields` are further
        ones of `Job`."""
        key, limit = Key(client=holder, draw=draw), self.limit if limit is None else limit
        return Job(key=key, update=update, receives=receives, data=data or {}, limit=limit, **fields)

    def fit_one(self, *arguments: Any, **fields: Any) -> Tree:
        """What one `job` sends."""
        (outcome,) = self.fit([self.job(*arguments, **fields)])
        return outcome.sends


class Method(Checked):
    """The contract, with what methods of one weight set share.

    A method has `needs`, the label settings that it can use (any other is refused before training), and `round(state,
    world)`, which returns a `Round`. It may inherit `init`, `models` and `check` or have them itself. It is a frozen
    keyword-only dataclass: its fields are its hyperparameters, by the paper's symbols, and the types of
    `benchmark.config` (`threshold: Share = 0.95`) say which values they may have.
    """

    # Whether it measures the statistics of static batch norms (`with_static_statistics`). Other methods are refused
    # such a network, which would be tested with its initial means 0 and variances 1.
    asks_for_statistics: ClassVar[bool] = False
    # Whether clients need all their unlabelled images from the first round: refused with `data.streaming_steps`.
    asks_for_all_images: ClassVar[bool] = False
    # Whether what the server sends depends on what clients reported: bytes are then known after training alone.
    sends_by_reports: ClassVar[bool] = False

    def check(self, setup: Setup) -> None:
        """Raise ConfigError where the method cannot use these factors (S > C)."""

    def init(self, setup: Setup) -> State:
        return State(server={"student": setup.initial_weights()})

    def models(self, state: State) -> dict[str, Weights]:
        """What may be evaluated, by name; the first is the default."""
        return {"student": state.server["student"]}

    def voters(self, state: State) -> list[Weights]:
        """The models whose mean probabilities are tested. For methods whose clients keep layers of their own. None:
        the first of `models` alone is tested."""
        return []
