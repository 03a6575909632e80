"""The contract of a method: three functions over explicit state.

A method never loops over SGD steps, never touches a device and never sees an image. Its `round` defines which clients
do which local work (`Job`), passes all of it to `world.fit` at once, and combines the results (`Outcome`) in job order.
`README.md` in this folder contains a complete method.

Legend of shape suffixes in all methods: N images of a batch or of a data subset, C channels, H height, W width,
D classes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from benchmark.config import Checked
from benchmark.models.build import Model

Weights = dict[str, Tensor]  # one network's trained parameters and its buffers, by name
Tree = dict[str, Any]  # nested dicts of tensors and numbers, which can be sent, kept and saved
# The data subsets of a participant:
# "with_shared": a client's labelled images, followed by all labelled images of the server (DataSharing).
# "everyones": all images with labels that their owners can see; only CENTRAL has this subset.
PartName = Literal["labelled", "unlabelled", "validation", "with_shared", "everyones"]

SERVER = -1  # used in place of a client's number for the participant that owns the server's data
CENTRAL = -2  # the owner of all data, in centralised methods


@dataclass(frozen=True, kw_only=True)
class Key:
    """The participant that a job belongs to.

    The key seeds every random stream of the job, so that jobs with equal keys in a round see equal batches.
    """

    client: int  # 0..K-1, SERVER or CENTRAL
    draw: int = 0  # distinguishes jobs of a participant in a round, such as server replicas or a client drawn twice

    @property
    def participant(self) -> str:
        """Return the name of the participant in messages."""
        return {SERVER: "the server", CENTRAL: "the owner of all images"}.get(self.client, f"client {self.client}")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream of batches from a data subset of the job's participant. The images are reshuffled before every pass."""

    part: PartName  # "labelled", "unlabelled", "validation", "with_shared" (DataSharing) or "everyones" (CENTRAL)
    batch_size: int  # B; if the participant has fewer images, every batch contains all of them
    views: tuple[str, ...]  # a selection of "plain", "weak", "strong", and "weak2", a second draw of the weak view
    drop_last: bool = True  # leave out the incomplete batch at the end of a pass

    @classmethod
    def whole(cls, part: PartName, batch_size: int, *views: str) -> "Stream":
        """Build a stream that includes the incomplete last batch of a pass. Without `views` it has weak views."""
        return cls(part=part, batch_size=batch_size, views=views or ("weak",), drop_last=False)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The length of a job: a number of local steps, or of passes over its longest stream.

    A job that only reads takes no steps, whatever its limit is.
    """

    steps: int | None = None  # number of local steps
    epochs: int | None = None  # number of passes, if `steps` is None

    def times(self, factor: int) -> "Limit":
        """Return this limit times `factor`."""
        return Limit(**{name: factor * value for name, value in vars(self).items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The images of one stream in one local step."""

    views: Mapping[str, Tensor]  # name -> images_NCHW, float32, normalised
    labels_N: Tensor | None  # None if the label setting hides the labels
    pseudo_labels_N: Tensor | None = None  # the labels that `start` assigned to the images (`Selected`)
    positions_N: Tensor | None = None  # int64, of the images in the participant's data subset; the engine sets them

    @property
    def known_N(self) -> Tensor:
        """Return the labels, which must exist: the label setting has been checked before."""
        assert self.labels_N is not None
        return self.labels_N

    @property
    def given_N(self) -> Tensor:
        """Return the pseudo-labels, which `start` must have assigned."""
        assert self.pseudo_labels_N is not None
        return self.pseudo_labels_N

    def of_images(self, values_M: Tensor) -> Tensor:
        """Return values_N, the entries of this batch's images, from one value per image of the data subset."""
        assert self.positions_N is not None
        return values_M[self.positions_N]


@dataclass(frozen=True, kw_only=True)
class Selected:
    """The images that a stream draws from, if `start` selects them (SemiFL)."""

    positions_N: Tensor  # int64, positions in the data subset; an image may occur more than once
    labels_N: Tensor | None = None  # pseudo-labels of these images


@dataclass(frozen=True, kw_only=True)
class PseudoLabelled:
    """Pseudo-labels that `start` assigned to all unlabelled images of the participant.

    The suite measures their quality, since a method never sees a hidden label.
    """

    labels_N: Tensor
    kept_N: Tensor  # bool: whether the pseudo-label is selected, that is, confident enough to be used


@dataclass(kw_only=True)
class Local:
    """The weight sets of one job while it trains. After training the engine writes the new weights into it."""

    trainable: dict[str, Weights]  # updated by the optimizer; if there are none, the job only reads
    frozen: dict[str, Weights] = field(default_factory=dict)  # only read by the loss, such as a teacher or an anchor
    # Names of the weight sets in `trainable` that are not networks, but layers that the method adds. The loss sees an
    # nn.ParameterDict for each of them.
    layers: tuple[str, ...] = ()
    momentum: dict[str, Weights] | None = None  # momentum buffers: before training the first, after it the last ones
    private: Tree | None = None  # the client state that the participant keeps, or None
    selected: dict[str, Selected] = field(default_factory=dict)  # stream -> its images; default: the whole data subset
    pseudo: PseudoLabelled | None = None
    notes: Tree = field(default_factory=dict)  # values that `start` passes to the steps and to `finish`
    totals: dict[str, float] = field(default_factory=dict)  # after training: sums over the steps of the loss's reports
    steps: int = 0  # after training: the number of local steps


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a job.

    `sends` goes to the server and is counted as bytes up; `private` stays with the participant.
    """

    key: Key
    sends: Tree
    private: Tree | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    steps: int = 0

    @property
    def sat_out(self) -> bool:
        """Return whether the client skipped the round: it sent nothing."""
        return not self.sends


Networks = nn.ModuleDict  # weight set -> network, or nn.ParameterDict of `Local.layers`


class Reader(Protocol):
    """Read-only passes over the participant's images for `start`.

    `draw` is the random stream of the job.
    """

    draw: torch.Generator

    def predict(self, weights: Weights, part: PartName, view: str) -> Tensor:
        """Compute logits_ND of all images of the data subset, in its order and in evaluation mode."""

    def labels(self, part: PartName) -> Tensor | None:
        """Return labels_N of all images of the data subset, in its order.

        Return None if these labels are hidden from the participant.
        """

    def statistics(self, weights: Weights, part: PartName, batch_size: int, pooled: bool) -> tuple[Weights, int]:
        """Measure the statistics of the network's static batch norms over batches of the data subset.

        The images are read in their order and without augmentation. Return each `running_mean` and `running_var` by
        name (float64; see `statistics_over` in models.norms), and the number of images if `pooled`, of batches if not.
        Return an empty dict and 0 if the participant has no such images.
        """

    def on_noise(self, weights: Weights) -> Tensor:
        """Compute logits_D of one image of Gaussian noise, in evaluation mode.

        All participants and rounds use the same image.
        """


class Examiner(Protocol):
    """Read-only passes for `Method.measures`: over the test images, and over the labelled images of all participants.

    A trial uses the held-out labelled images instead of the test images.
    """

    labels_N: Tensor  # of the test images
    labelled_N: Tensor  # labels of the labelled images; empty if there are none

    def predict(self, weights: Weights, images: Literal["test", "labelled"] = "test") -> Tensor:
        """Compute logits_ND of all these images, in the order of their labels and in evaluation mode."""

    def features(self, weights: Weights, images: Literal["test", "labelled"] = "test") -> Tensor:
        """Compute features_NF, the inputs of the last layer. Raise ConfigError for a network without features."""


@dataclass(kw_only=True)
class Step:
    """The networks, images and values of one local step that `loss` and `after_step` may use.

    The networks, `private` and `notes` may be changed in place. `notes` belong to the job: `start` leaves the first
    notes in `Local.notes`, every step sees the notes of the previous step, and `finish` gets the last ones.
    """

    trainable: Networks
    frozen: Networks
    batch: Mapping[str, Batch] = field(default_factory=dict)  # by stream name
    drawn: Mapping[str, Tensor] = field(default_factory=dict)  # the random numbers of `LocalUpdate.draws` for this step
    received: Tree = field(default_factory=dict)
    private: Tree = field(default_factory=dict)
    notes: Tree = field(default_factory=dict)
    number: int = 0  # the local steps that the job has taken: in `loss` without this step, in `after_step` including it

    @property
    def student(self) -> nn.Module:
        return self.trainable["student"]

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError that lists the fields of a step.

        Methods written for an earlier version look for fields that were renamed.
        """
        names = ", ".join(vars(self))
        raise AttributeError(f"a local step has no {name!r}; it has {names} and student")


Loss = tuple[Tensor, Mapping[str, Tensor]]  # the loss of one local step, and the tensors to report


class LocalUpdate:
    """The ClientUpdate or ServerUpdate box of a paper.

    A subclass is a frozen dataclass at module level, so that it can be pickled. It only has to define `loss`: the
    functions of this class train the weight set "student" and send it back.
    """

    # The losses that are minimised one after the other on each batch, each with a separate optimizer step. FedMatch
    # first trains sigma on labelled, then psi on unlabelled images. A weight set that a loss does not depend on is not
    # updated.
    phases: ClassVar[tuple[str, ...]] = ("loss",)

    # Whether local steps begin at the received weights. If a client continues from a model that the server does not
    # have, the change that its steps made cannot be measured, and the run has no gradient diversity.
    starts_from_received: ClassVar[bool] = True

    # A hint that changes no result and may be left out:
    # whether only changed entries are sent, so that the number of bytes is only known after training.
    sends_changes: ClassVar[bool] = False
    # whether the job neither uses nor changes the client state, so that the participant's jobs can run at the same time
    is_stateless: ClassVar[bool] = False

    def start(self, received: Tree, private: Tree | None, reader: Reader) -> Local | None:
        """Build the weight sets to train from the received tree and the client state.

        Return None if this client skips the round. An engine may interrupt `start` at a pass of `reader` and call it
        again from the beginning, with the same random numbers and a fresh copy of `private`. So it changes nothing
        outside of its arguments.
        """
        return Local(trainable={"student": received["student"]})

    def draws(self, generator: torch.Generator, batch: Mapping[str, Batch]) -> Mapping[str, Tensor]:
        """Draw the random numbers that one local step needs besides its views, on the CPU; `step.drawn` has them.

        `generator` is the random stream of the job. `loss` and `after_step` draw nothing themselves.
        """
        return {}

    def loss(self, step: Step) -> Loss:
        """Compute the loss of one local step, a scalar, and the tensors to report.

        "labels_N" and "kept_N" are the pseudo-labels of the stream "unlabelled" and whether each of them is selected.
        The suite measures their quality, since a method never sees a hidden label. If a method has a set of candidate
        classes for each of these images, "candidates_ND" says which classes they are. Every other entry is a scalar,
        which is averaged over the job's steps without its gradient.

        `loss` and `after_step` are functions of the step's tensors: they draw nothing, read no number from a tensor
        (`float`, `.item()`, `if tensor`), and perform the same operations in every step, whatever `step.number` is. A
        value that changes from step to step is a tensor in `step.notes`. Therefore a step can be recorded once and
        repeated.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    def after_step(self, step: Step) -> None:
        """Update networks, `private` or `notes` in place after a local step, such as a teacher in `step.frozen`."""

    def finish(self, local: Local) -> Tree:
        """Return the tree that is sent, and leave the new client state in `local.private`.

        An empty tree means that the client skips the round.
        """
        return {"student": local.trainable["student"]}


@dataclass(frozen=True, kw_only=True)
class Job:
    """The local work of one participant: a local update, its input, its data and its length."""

    key: Key
    update: LocalUpdate
    receives: Tree  # named weight sets and tensors, counted as bytes down, except for jobs of the server
    data: Mapping[str, Stream]
    limit: Limit
    keeps: str | None = None  # the state key of the client state, or None for the client's number
    network: Model | None = None  # the experiment's network if None; set for a sub-network (HeteroFL)
    # None: the participant's own learning rate; "server" is used for labelled images at a client.
    learning_rate: Literal["client", "server"] | None = None
    # Only for measurements, if `receives` does not contain it: the complete weight sets that the job begins with. Their
    # sum is the model that is trained. This field is not sent, and local work does not see it.
    begins: Mapping[str, Weights] | None = None
    group: int = 0  # only for measurements: clients of the same group are averaged with each other

    @property
    def state_key(self) -> str:
        """Return the key of the client state that the job reads and replaces."""
        return str(self.key.client) if self.keeps is None else self.keeps


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that a run carries from round to round and saves."""

    server: Tree  # what the server keeps, such as the weights of the student and of its teacher
    # The client states by state key, created on first use. The engine sets this field; it ignores the value that a
    # method returns.
    clients: Mapping[str, Tree] = field(default_factory=dict)


Round = tuple[State, Mapping[str, float]]  # the state after a round, and numbers to record


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The values that a method may use before the first round."""

    # The same for the same seed. `initial_weights(model)` gives the weights of a network that is not the experiment's.
    initial_weights: Callable[..., Weights]
    generator: Callable[..., np.random.Generator]  # generator("layers"): the run's named stream
    model: Model  # the experiment's network
    num_classes: int  # D
    buffers: Callable[[], Sequence[str]]  # names of the network's weights that are not trained
    # Names of the network's parameters with `requires_grad` False: no weight set contains them, and they never change.
    fixed: Callable[[], Sequence[str]]
    width: Callable[[], int]  # F, the number of features; raises ConfigError if the network does not return features
    K: int  # number of clients, including a client that owns the server's labelled images
    C: int  # number of clients in a round
    T: int  # number of local steps of a job
    sizes: Mapping[int, int]  # number of images of each client, and of labelled images of SERVER
    labelled: Mapping[int, int]  # number of images with visible labels of each client and of SERVER


@dataclass(frozen=True, kw_only=True)
class World(Setup):
    """One round as a method sees it, with all fields of `Setup`. Its `generator` returns streams of this round."""

    round: int  # the first round is 1
    rounds: int
    limit: Limit  # the length of a job: T local steps, or the federation's local epochs
    fit: Callable[[Sequence[Job]], Iterator[Outcome]]

    def cohort(self) -> list[int]:
        """Draw C of the K clients uniformly without replacement.

        The order is random, so that consecutive slices of the cohort are random groups.
        """
        return [int(k) for k in self.generator("cohort").permutation(self.K)[: self.C]]

    def unlabelled(self, client: int) -> int:
        """Count the client's unlabelled images.

        The result is 0 with labels everywhere, where the data subset "unlabelled" consists of the labelled images.
        """
        return self.sizes[client] - self.labelled[client]

    def streams(self, client: int, **streams: Stream) -> dict[str, Stream]:
        """Select the streams ("labelled", "unlabelled") that the client has at least one image for."""
        images = {"labelled": self.labelled[client], "unlabelled": self.unlabelled(client)}
        return {name: stream for name, stream in streams.items() if images[name]}

    def job(
        self,
        client: int,
        update: LocalUpdate,
        receives: Tree,
        data: Mapping[str, Stream] | None = None,
        *,
        draw: int = 0,
        limit: Limit | None = None,
        **fields: Any,
    ) -> Job:
        """Build a job of local work at this participant: a client, SERVER or CENTRAL.

        Without a `limit` it has the length of the round's jobs. `fields` are further fields of `Job`.
        """
        key = Key(client=client, draw=draw)
        limit = self.limit if limit is None else limit
        return Job(key=key, update=update, receives=receives, data=data or {}, limit=limit, **fields)

    def fit_one(self, *arguments: Any, **fields: Any) -> Tree:
        """Run a single job, built by `job` from the arguments, and return the tree that it sends."""
        (outcome,) = self.fit([self.job(*arguments, **fields)])
        return outcome.sends


class Method(Checked):
    """The contract of a method, with the functions that methods of one weight set have in common.

    A method has `needs`, the label settings that it can use, and `round(state, world)`, which returns a `Round`. A
    different label setting is refused before training. A method may inherit or override `init`, `models` and `check`.
    It is a frozen keyword-only dataclass: its fields are its hyperparameters, named by the paper's symbols, and their
    types from `benchmark.config` (`threshold: Share = 0.95`) define the allowed values.
    """

    # Whether the method measures the statistics of static batch norms (`with_static_statistics`). Other methods refuse
    # such a network, which would be tested with its initial means of 0 and variances of 1.
    asks_for_statistics: ClassVar[bool] = False
    # Whether clients need all their unlabelled images from the first round. Such a method refuses
    # `data.streaming_steps` above 1.
    asks_for_all_images: ClassVar[bool] = False
    # The score of a test image that is larger for known classes, if there are unknown ones (label setting "open"): the
    # largest softmax probability, or the logarithm of the sum of the exponentials of the logits.
    unknown_score: ClassVar[Literal["max_softmax", "energy"]] = "max_softmax"
    # Whether the weight sets that the server sends depend on the reports of the clients, so that the number of bytes is
    # only known after training.
    sends_by_reports: ClassVar[bool] = False

    def check(self, setup: Setup) -> None:
        """Raise ConfigError if the method cannot use these factors (for example S > C)."""

    def init(self, setup: Setup) -> State:
        """Return the state before the first round."""
        return State(server={"student": setup.initial_weights()})

    def models(self, state: State) -> dict[str, Weights]:
        """Return the models that may be evaluated, by name; the first one is the default."""
        return {"student": state.server["student"]}

    def measures(self, state: State, examiner: Examiner) -> Mapping[str, float]:
        """Return the method's own measures on test images, by name, such as "own/prototype_accuracy".

        They are taken after each tested round. They are recorded apart from the numbers of the rounds, and nothing that
        is trained may depend on them.
        """
        return {}

    def voters(self, state: State) -> list[Weights]:
        """Return the models of an ensemble. Their mean probabilities are tested.

        This is for methods with clients that keep some layers. If the list is empty, the first entry of `models` is
        tested.
        """
        return []

    def planned(self) -> "Method":
        """Return the method that `fssl plan` counts in place of this one.

        It must create the same jobs. Only work that no job does, such as the server's own passes, may be shorter,
        because a plan does not count it.
        """
        return self
