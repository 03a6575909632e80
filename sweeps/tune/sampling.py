"""Which setting a trial takes (TPE), and when it is given up (Wilcoxon): Optuna's own, with draws that have names."""

import hashlib
from typing import Any

from optuna import Study as OptunaStudy
from optuna.distributions import BaseDistribution
from optuna.pruners import WilcoxonPruner
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

from sweeps.tune.study import Plan


class NamedTPE(BaseSampler):
    """TPE whose draws depend on the study, the trial's number and what finished before, and on nothing else.

    A `TPESampler` made anew with a fixed seed would draw its first trials again after every start, and in every worker.
    Trial 0 takes the defaults, so that every study says what they are worth.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._first = {span.field: span.scale.inner(plan.defaults[span.field]) for span in plan.study.space}

    def _tpe(self, trial: FrozenTrial, name: str) -> TPESampler:
        digest = hashlib.sha256(f"{self._plan.key} {trial.number} {name}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        return TPESampler(n_startup_trials=self._plan.study.startup, seed=seed)

    def infer_relative_search_space(self, study: OptunaStudy, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if trial.number == 0 else self._tpe(trial, "").infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: OptunaStudy, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._tpe(trial, "").sample_relative(study, trial, search_space) if search_space else {}

    def sample_independent(
        self, study: OptunaStudy, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if trial.number == 0:
            return self._first[param_name]
        return self._tpe(trial, param_name).sample_independent(study, trial, param_name, param_distribution)


def pruner(plan: Plan) -> WilcoxonPruner:
    """Compares a trial with the best one, seed by seed."""
    return WilcoxonPruner(p_threshold=plan.study.prune_below, n_startup_steps=2)
