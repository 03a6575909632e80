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
from benchmark.federated.jobs import REMEDY
from benchmark.federated.ledger import Ledger
from benchmark.federated.stopping import check
from benchmark.federated.trees import first_not_finite, moved
from benchmark.methods.calls import first_state, jobs_given, models_of, play_round
from benchmark.methods.protocol import Job, Outcome, State, Tree


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
        state = first_state(self.experiment.method, environment.setup()) if state is None else state
        # Models are averaged and evaluated on the engine's device. (A LightningModule's own is what its Trainer says.)
        server, clients = moved(state.server, engine.device), moved(dict(state.clients), engine.device)
        self.state = replace(state, server=server, clients=clients)
        self.rounds_done = rounds_done
        self._kept: ChainMap[str, Tree] = ChainMap()
        self.metrics: dict[str, float] = {}
        self.observers: list[Observer] = []
        self.evaluator = Evaluator(environment, engine.device)
        self._ledger = Ledger(self.environment.data.num_classes, self.environment.tied)

    def configure_optimizers(self) -> None:
        """None: every optimizer belongs to a local module."""

    def remaining_rounds(self) -> range:
        return range(self.rounds_done + 1, self.experiment.federation.rounds + 1)

    def training_step(self, batch: int, batch_idx: int) -> None:
        """One round: the method's `round`, the ledger of what went back and forth, the evaluation when it is due."""
        round_number = int(batch)
        self._ledger = Ledger(self.environment.data.num_classes, self.environment.tied)
        world = self.environment.world(round_number, lambda jobs: self._fit(jobs, round_number))
        self._kept = ChainMap({}, dict(self.state.clients))  # a round that is abandoned leaves the state as it was
        state, reported = play_round(self.experiment.method, self.state, world)
        for tree in (models_of(self.experiment.method, state), state.server):  # the last finite state stays
            if name := first_not_finite(tree):
                raise Diverged(f"round {round_number}, after averaging: {name} is not finite; {REMEDY}")
        self.state, self.rounds_done = replace(state, clients=dict(self._kept)), round_number
        self.metrics = {**reported, **self._ledger.metrics()}
        if round_number % self.experiment.evaluation.every == 0 or round_number == self.experiment.federation.rounds:
            self.metrics.update(self.evaluator.measure(self.tested()))

    @property
    def kept_before(self) -> Mapping[str, Tree]:
        """What clients had kept before the last round, by keeper."""
        return self._kept.parents

    def models(self) -> Mapping[str, dict[str, Tensor]]:
        return models_of(self.experiment.method, self.state)

    def tested(self) -> Sequence[dict[str, Tensor]]:
        """The method's voters where it has any, else the first of its models."""
        voters = getattr(self.experiment.method, "voters", None)
        chosen = voters(self.state) if voters else []
        return chosen or [next(iter(self.models().values()))]

    def _fit(self, jobs: Sequence[Job], round_number: int) -> Iterator[Outcome]:
        """The engine's outcomes, passed by the ledger and the observers."""
        for job in jobs_given(jobs):
            for observer in self.observers:
                observer.on_job(job, round_number)
        sent = [job if job.begins is None else replace(job, begins=None) for job in jobs]
        for job, outcome in zip(jobs, self.engine.fit(sent, round_number, self._kept), strict=True):
            check()
            outcome = replace(outcome, sends=moved(outcome.sends, self.engine.device))
            self._ledger.enter(job, outcome)
            for observer in self.observers:
                observer.on_outcome(job, outcome)
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
