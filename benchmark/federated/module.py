"""Define `FederatedModule`, which runs one communication round per `training_step`, and the single Trainer of a run."""

import logging
import time
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytorch_lightning as pl
from pytorch_lightning.plugins.environments import LightningEnvironment
from torch import Tensor

from benchmark.errors import Diverged
from benchmark.federated.engines import Engine
from benchmark.federated.environment import Environment
from benchmark.federated.evaluate import Evaluator
from benchmark.federated.jobs import REMEDY
from benchmark.federated.round_metrics import RoundMetrics
from benchmark.federated.stopping import check
from benchmark.federated.trees import first_not_finite, moved, with_own_leaves
from benchmark.methods.calls import (
    Marks,
    first_state,
    jobs_given,
    marks_of,
    models_of,
    play_round,
    refuse_change,
    voters_of,
)
from benchmark.methods.protocol import Job, Outcome, Round, State, Tree, World
from benchmark.streams import seed_globals


class Observer(pl.Callback):
    """A callback that receives a round's jobs and outcomes, and must not change them."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.observers.append(self)

    def on_job(self, job: Job, round_number: int) -> None: ...

    def on_outcome(self, job: Job, outcome: Outcome) -> None: ...


class FederatedModule(pl.LightningModule):
    """A Lightning module that runs a method's rounds with an engine.

    `metrics` contains the current round's metrics; callbacks add their own to it.
    """

    def __init__(
        self,
        environment: Environment,
        engine: Engine,
        state: State | None = None,
        rounds_done: int = 0,
        downloaded: Mapping[str, int] | None = None,
    ) -> None:
        """Create the module; `downloaded` are the bytes of fixed parameters that clients have, if the run resumes."""
        super().__init__()
        self.automatic_optimization = False
        self.environment, self.engine = environment, engine
        self.experiment = environment.experiment
        if state is None:
            self._seed("start")
            state = first_state(self.experiment.method, environment.setup())
        # Models are averaged and evaluated on the engine's device; the Trainer decides a LightningModule's own device.
        server, clients = moved(state.server, engine.device), moved(dict(state.clients), engine.device)
        self.state = replace(state, server=server, clients=clients)
        self.rounds_done = rounds_done
        # By client: the bytes of the parameters that are not trained, which it downloads with its first job.
        self.downloaded = dict(downloaded or {})
        self._kept: ChainMap[str, Tree] = ChainMap()
        # In the current round: the values that its jobs received, and the client state of each participant after its
        # job.
        self._received: list[tuple[Job, Marks]] = []
        self._left: dict[str, tuple[Marks, Tree]] = {}
        self._outcomes = 0  # number of outcomes that were passed to the method
        self.metrics: dict[str, float] = {}
        self.server_seconds = 0.0  # of the last round: the method's `round` without waiting for the work of clients
        self._client_seconds = 0.0
        self.observers: list[Observer] = []
        self.evaluator = Evaluator(environment, engine.device)
        self._round_metrics = RoundMetrics(self.environment.data.num_classes, self.environment.tied)

    def configure_optimizers(self) -> None:
        """Return None, because every optimizer belongs to a local module."""

    def remaining_rounds(self) -> range:
        return range(self.rounds_done + 1, self.experiment.federation.rounds + 1)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """Run one round: the method's `round`, the metrics of its jobs, and the evaluation if it is due.

        Raise Diverged if a model or the server state is not finite after averaging.
        """
        round_number = int(batch)
        self._round_metrics = RoundMetrics(self.environment.data.num_classes, self.environment.tied)
        world = self.environment.world(round_number, lambda jobs: self._fit(jobs, round_number))
        self._kept = ChainMap({}, dict(self.state.clients))  # an abandoned round does not change the state
        began = time.perf_counter()
        self._client_seconds = 0.0
        state, reported = self._played(world)
        self.server_seconds = time.perf_counter() - began - self._client_seconds
        self._seed("models", round_number)
        for tree in (models_of(self.experiment.method, state), state.server):  # the last finite state is kept
            if name := first_not_finite(tree):
                raise Diverged(f"round {round_number}, after averaging: {name} is not finite; {REMEDY}")
        self.state = replace(state, clients=dict(self._kept))
        self.rounds_done = round_number
        self.metrics = {**reported, **self._round_metrics.metrics()}
        if round_number % self.experiment.evaluation.every == 0 or round_number == self.experiment.federation.rounds:
            self.metrics.update(self.evaluator.measure(self.tested()))

    def _played(self, world: World) -> Round:
        """Return the result of the method's `round`, which gets a copy of the server's state that it may change.

        Raise ConfigError if it changes client states, or values that jobs received, because observers still read them.
        """
        method = self.experiment.method
        function = f"round {world.round}"
        self._received, self._left, self._outcomes = [], {}, 0
        self._seed("round", world.round)
        played = play_round(method, replace(self.state, server=with_own_leaves(self.state.server)), world)
        for job, marks in self._received:
            refuse_change(method, function, "what a job received", marks, job.receives)
        for state_key in self._left:
            self._refuse_changed(state_key, world.round)
        return played

    def _refuse_changed(self, state_key: str, round_number: int) -> None:
        """Raise ConfigError if the method changed the participant's client state after its last job of the round."""
        if state_key in self._left:
            method = self.experiment.method
            function = f"round {round_number}"
            refuse_change(method, function, f"what {state_key} keeps", *self._left[state_key])

    def _seed(self, *names: str | int) -> None:
        """Seed the global generators for code of the method that draws from them."""
        seed_globals(self.experiment.seed, *names)

    @property
    def kept_before(self) -> Mapping[str, Tree]:
        """Return the client states from before the last round, by state key."""
        return self._kept.parents

    def models(self) -> Mapping[str, dict[str, Tensor]]:
        self._seed("models", self.rounds_done)
        return models_of(self.experiment.method, self.state)

    def tested(self) -> Sequence[dict[str, Tensor]]:
        """Return the weights to evaluate: the method's voters if it has any, or the first of its models."""
        self._seed("voters", self.rounds_done)
        voters = voters_of(self.experiment.method, self.state)
        return voters or [next(iter(self.models().values()))]

    def _fit(self, jobs: Sequence[Job], round_number: int) -> Iterator[Outcome]:
        """Yield the engine's outcomes after adding them to the round's metrics and passing them to the observers.

        Global generators are seeded for each outcome, because jobs of an engine without workers also draw from them.
        """
        self._received += [(job, marks_of(job.receives)) for job in jobs_given(jobs, self.environment.K)]
        for job in jobs:
            for observer in self.observers:
                observer.on_job(job, round_number)
        sent = [job if job.begins is None else replace(job, begins=None) for job in jobs]
        for job, outcome in self._timed(jobs, self.engine.fit(sent, round_number, self._kept)):
            check()
            outcome = replace(outcome, sends=moved(outcome.sends, self.engine.device))
            self._round_metrics.enter(job, outcome, self._first_download(job))
            for observer in self.observers:
                observer.on_outcome(job, outcome)
            if outcome.private is not None:
                self._refuse_changed(job.state_key, round_number)
                self._left[job.state_key] = (marks_of(outcome.private), outcome.private)
            self._outcomes += 1
            self._seed("round", round_number, "outcome", self._outcomes)
            yield outcome

    def _timed(self, jobs: Sequence[Job], outcomes: Iterator[Outcome]) -> Iterator[tuple[Job, Outcome]]:
        """Yield each job with its outcome, and add up how long the round waits for outcomes of clients."""
        pairs = zip(jobs, outcomes, strict=True)
        while True:
            began = time.perf_counter()
            pair = next(pairs, None)
            if pair is None:
                return
            if pair[0].key.client >= 0:
                self._client_seconds += time.perf_counter() - began
            yield pair

    def _first_download(self, job: Job) -> int:
        """Return the bytes of fixed parameters that the job's client does not have yet, and note that it has them."""
        if job.key.client < 0 or not self.environment.fixed:
            return 0
        client = str(job.key.client)
        has = self.environment.fixed_bytes(job.network)
        missing = max(0, has - self.downloaded.get(client, 0))
        self.downloaded[client] = self.downloaded.get(client, 0) + missing
        return missing


# Warnings that do not concern users: rounds need no loader workers, the server never validates through Lightning,
# engines choose devices, and Lightning 2.6 uses names that torch 2.15 has renamed.
NOTHING_TO_A_USER = (
    "does not have many workers",
    "`training_step` returned `None`",
    "configure_optimizers",
    "GPU available but not used",
    r"isinstance\(treespec, LeafSpec\)",
)


def fit(module: FederatedModule, callbacks: Sequence[pl.Callback] = ()) -> None:
    """Run the remaining rounds in one epoch of a Trainer. Callbacks only observe; they change no other number.

    Lightning's checkpoints, progress bars and distributed set-up are disabled, because the suite replaces them by run
    records, progress lines and engines.
    """
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in NOTHING_TO_A_USER:
        warnings.filterwarnings("ignore", message=f".*{message}")
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        # Lightning must ignore a scheduler's environment variables, because the suite's engines start the processes.
        plugins=[LightningEnvironment()],
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
    )
    if len(remaining := module.remaining_rounds()):
        trainer.fit(module, train_dataloaders=remaining)
