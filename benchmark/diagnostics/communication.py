"""What a method sends, keeps and trains, as observed in a run.

The reports make the papers' tables of properties of it (FedSwitch Table 1, SemiFL Table 2). Names are those at the top
of the trees that a method sends or keeps (student, teacher, momentum).
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import pytorch_lightning as pl

from benchmark.federated.module import FederatedModule, Observer
from benchmark.federated.trees import tree_bytes
from benchmark.methods.protocol import CENTRAL, SERVER, Job, Outcome, Tree

HOLDERS = {SERVER: "server", CENTRAL: "central"}  # every other holder is a client
Bytes = dict[str, int]  # name -> the most that one job handed over under it


class CommunicationSummary(Observer):
    """Notes what each kind of holder received, sent, kept and trained.

    Of each name the largest number of bytes counts.

    `before`: the summary of the rounds before a resume; what is seen from then on is added to it.
    """

    def __init__(self, before: Mapping[str, Any] | None = None) -> None:
        nothing = {"together": False, "pseudo_labels": False, "state": {}, "holders": {}}
        self._seen: dict[str, Any] = deepcopy({**nothing, **(before or {})})
        self._call: set[str] = set()  # who trained in the call of `fit` in progress
        self._tied: Collection[str] = ()  # names of weights that are sent under another name
        self._answered = False  # whether it has given an outcome: all its jobs are seen before the first

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        assert isinstance(pl_module, FederatedModule)
        self._tied = pl_module.environment.tied

    def on_job(self, job: Job, round_number: int) -> None:
        if self._answered:  # a job after an outcome: another call of `fit`
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
            self._call.add(holder_of(job))
            self._seen["together"] |= self._call >= {"server", "client"}

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: object) -> None:
        assert isinstance(pl_module, FederatedModule)
        _note(self._seen["state"], pl_module.state.server, self._tied)

    def summary(self) -> dict[str, Any]:
        """Sum up the communication as JSON values.

        "training" is "parallel" if server and clients trained in one call of `fit`, "alternate" if only in calls of
        their own, and "none" if the two never both trained. "state" is what the method carries from round to round at
        the server. "views" are "stream/view".
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
        return self._seen["holders"].setdefault(holder_of(job), empty)


def holder_of(job: Job) -> str:
    return HOLDERS.get(job.key.client, "client")


def _note(known: Bytes, tree: Tree, tied: Collection[str]) -> None:
    for name, value in tree.items():
        if value is not None:
            known[name] = max(known.get(name, 0), tree_bytes({name: value}, tied))
