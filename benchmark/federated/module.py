"""`FederatedModule`: the orchestrator. One `training_step` is one communication round. And the one Trainer of a run."""

import logging
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
from benchmark.federated.jobs import REMEDY, keeper_of
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
    """Sees a round's jobs and outcomes pass by; must change neither."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        assert isinstance(pl_module, FederatedModule)
        pl_module.observers.append(self)

    def on_job(self, job: Job, round_number: int) -> None: ...

    def on_outcome(self, job: Job, outcome: Outcome) -> None: ...


class FederatedModule(pl.LightningModule):
    """Drives a method's rounds over an engine.

    `metrics` holds the current round's numbers, by the names of design section 7; callbacks add theirs to it.
    """

    def __init__(
        self, environment: Environment, engine: Engine, state: State | None = None, rounds_done: int = 0
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.environment, self.engine = environment, engine
        self.experiment = environment.experiment
        if state is None:
            self._seed("start")
            state = first_state(self.experiment.method, environment.setup())
        # Models are averaged and evaluated on the engine's device. (A LightningModule's own is what its Trainer says.)
        server, clients = moved(state.server, engine.device), moved(dict(state.clients), engine.device)
        self.state = replace(state, server=server, clients=clients)
        self.rounds_done = rounds_done
        self._kept: ChainMap[str, Tree] = ChainMap()
        # Of the round: what its jobs received, and what each holder keeps since its job.
        self._received: list[tuple[Job, Marks]] = []
        self._left: dict[str, tuple[Marks, Tree]] = {}
        self._outcomes = 0  # handed out
        self.metrics: dict[str, float] = {}
        self.observers: list[Observer] = []
        self.evaluator = Evaluator(environment, engine.device)
        self._round_metrics = RoundMetrics(self.environment.data.num_classes, self.environment.tied)

    def configure_optimizers(self) -> None:
        """None: every optimizer belongs to a local module."""

    def remaining_rounds(self) -> range:
        return range(self.rounds_done + 1, self.experiment.federation.rounds + 1)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One round: the method's `round`, the sums over its jobs, the evaluation when it is due."""
        round_number = int(batch)
        self._round_metrics = RoundMetrics(self.environment.data.num_classes, self.environment.tied)
        world = self.environment.world(round_number, lambda jobs: self._fit(jobs, round_number))
        self._kept = ChainMap({}, dict(self.state.clients))  # a round that is abandoned leaves the state as it was
        state, reported = self._played(world)
        self._seed("models", round_number)
        for tree in (models_of(self.experiment.method, state), state.server):  # the last finite state stays
            if name := first_not_finite(tree):
                raise Diverged(f"round {round_number}, after averaging: {name} is not finite; {REMEDY}")
        self.state, self.rounds_done = replace(state, clients=dict(self._kept)), round_number
        self.metrics = {**reported, **self._round_metrics.metrics()}
        if round_number % self.experiment.evaluation.every == 0 or round_number == self.experiment.federation.rounds:
            self.metrics.update(self.evaluator.measure(self.tested()))

    def _played(self, world: World) -> Round:
        """What the method's `round` returns. It has a copy of the server's state, which it may change.

        Raise ConfigError where it changes what clients keep, or what jobs received, which observers still look at.
        """
        method, function = self.experiment.method, f"round {world.round}"
        self._received, self._left, self._outcomes = [], {}, 0
        self._seed("round", world.round)
        played = play_round(method, replace(self.state, server=with_own_leaves(self.state.server)), world)
        for job, marks in self._received:
            refuse_change(method, function, "what a job received", marks, job.receives)
        for keeper in self._left:
            self._refuse_changed(keeper, world.round)
        return played

    def _refuse_changed(self, keeper: str, round_number: int) -> None:
        """Raise ConfigError where the method changed what the holder keeps since its last job of the round."""
        if keeper in self._left:
            method, function = self.experiment.method, f"round {round_number}"
            refuse_change(method, function, f"what {keeper} keeps", *self._left[keeper])

    def _seed(self, *names: str | int) -> None:
        """Seed the global generators for code of the method's that draws from them."""
        seed_globals(self.experiment.seed, *names)

    @property
    def kept_before(self) -> Mapping[str, Tree]:
        """What clients had kept before the last round, by keeper."""
        return self._kept.parents

    def models(self) -> Mapping[str, dict[str, Tensor]]:
        self._seed("models", self.rounds_done)
        return models_of(self.experiment.method, self.state)

    def tested(self) -> Sequence[dict[str, Tensor]]:
        """The method's voters where it has any, else the first of its models."""
        self._seed("voters", self.rounds_done)
        voters = voters_of(self.experiment.method, self.state)
        return voters or [next(iter(self.models().values()))]

    def _fit(self, jobs: Sequence[Job], round_number: int) -> Iterator[Outcome]:
        """The engine's outcomes, entered into the round's metrics and passed to the observers.

        Global generators are seeded for each: jobs of an engine without workers draw from them, too.
        """
        self._received += [(job, marks_of(job.receives)) for job in jobs_given(jobs, self.environment.K)]
        for job in jobs:
            for observer in self.observers:
                observer.on_job(job, round_number)
        sent = [job if job.begins is None else replace(job, begins=None) for job in jobs]
        for job, outcome in zip(jobs, self.engine.fit(sent, round_number, self._kept), strict=True):
            check()
            outcome = replace(outcome, sends=moved(outcome.sends, self.engine.device))
            self._round_metrics.enter(job, outcome)
            for observer in self.observers:
                observer.on_outcome(job, outcome)
            if outcome.private is not None:
                self._refuse_changed(keeper_of(job), round_number)
                self._left[keeper_of(job)] = (marks_of(outcome.private), outcome.private)
            self._outcomes += 1
            self._seed("round", round_number, "outcome", self._outcomes)
            yield outcome


# Rounds need no loader workers, the server never validates through Lightning, engines choose devices, and Lightning 2.6
# asks torch 2.15 for what it has renamed.
NOTHING_TO_A_USER = (
    *("does not have many workers", "`training_step` returned `None`", "configure_optimizers"),
    *("GPU available but not used", r"isinstance\(treespec, LeafSpec\)"),
)


def fit(module: FederatedModule, callbacks: Sequence[pl.Callback] = ()) -> None:
    """Run the rounds that remain, in one epoch of a Trainer. Callbacks watch; leaving one out changes no number.

    Lightning's own checkpoints, bars and distributed set-up are off: records, progress and engines are ours.
    """
    for name in ("pytorch_lightning.utilities.rank_zero", "pytorch_lightning.accelerators.cuda", "lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in NOTHING_TO_A_USER:
        warnings.filterwarnings("ignore", message=f".*{message}")
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        # What a process sees of a scheduler is nothing to Lightning: the engines are ours.
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
