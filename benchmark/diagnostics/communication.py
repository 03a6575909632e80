"""Observe the values that a method sends, keeps and trains in a run.

The reports use it for the papers' tables of properties (FedSwitch Table 1, SemiFL Table 2). Names are the top-level
names in the trees that a method sends or keeps (student, teacher, momentum).
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import pytorch_lightning as pl

from benchmark.federated.module import FederatedModule, Observer
from benchmark.federated.trees import tree_bytes
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Outcome, Tree

HOLDERS = {SERVER: "server", CENTRAL: "central"}  # all other participants are clients
Bytes = dict[str, int]  # name -> largest number of bytes that one job passed on under this name


class CommunicationSummary(Observer):
    """An observer that collects the values that each kind of participant received, sent, kept and trained.

    For each name, it records the largest number of bytes. `before` is the summary of the rounds before a resume; later
    observations are added to it.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        nothing = {"together": False, "pseudo_labels": False, "state": {}, "holders": {}}
        self._seen: dict[str, Any] = deepcopy({**nothing, **(before or {})})
        self._call: set[str] = set()  # kinds of participants that trained in the current call of `fit`
        self._tied: Collection[str] = ()  # names of weights that are sent under a different name
        self._answered = False  # whether the call has returned an outcome; all its jobs precede the first outcome

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        assert isinstance(pl_module, FederatedModule)
        self._tied = pl_module.environment.tied

    def on_job(self, job: Job, round_number: int) -> None:
        if self._answered:  # a job after an outcome belongs to a new call of `fit`
            self._call, self._answered = set(), False
        seen = self._of(job)
        _note(seen["received"], job.receives, self._tied)
        views = {f"{name}/{view}" for name, stream in job.data.items() for view in stream.views}
        seen["views"] = sorted(views.union(seen["views"]))

    def on_outcome(self, job: Job, outcome: Outcome) -> None:
        self._answered = True
        seen = self._of(job)
        _note(seen["sent"], outcome.sends, self._tied)
        _note(seen["kept"], outcome.private or {}, self._tied)
        self._seen["pseudo_labels"] |= "pseudo/seen" in outcome.metrics
        if outcome.steps:
            seen["trains"] = True
            self._call.add(participant_of(job))
            self._seen["together"] |= self._call >= {"server", "client"}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        _note(self._seen["state"], pl_module.state.server, self._tied)

    def summary(self) -> dict[str, Any]:
        """Summarise the communication as JSON values.

        "training" is "parallel" if server and clients trained in the same call of `fit`, "alternate" if they only
        trained in separate calls, and "none" if one of the two never trained. "state" is the method's server state
        between rounds. "views" have the form "stream/view".
        """
        both = all(self._seen["holders"].get(name, {}).get("trains") for name in ("server", "client"))
        if not both:
            training = "none"
        elif self._seen["together"]:
            training = "parallel"
        else:
            training = "alternate"
        return {**deepcopy(self._seen), "training": training}

    def _of(self, job: Job) -> dict[str, Any]:
        empty: dict[str, Any] = {"received": {}, "sent": {}, "kept": {}, "views": [], "trains": False}
        return self._seen["holders"].setdefault(participant_of(job), empty)


def participant_of(job: Job) -> str:
    return HOLDERS.get(job.key.client, "client")


def _note(known: Bytes, tree: Tree, tied: Collection[str]) -> None:
    for name, value in tree.items():
        if value is not None:
            known[name] = max(known.get(name, 0), tree_bytes({name: value}, tied))
