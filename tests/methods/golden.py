"""Golden traces: two rounds of each method on the 8x8 digits, as numbers that a change must not move unseen.

python -m tests.methods.golden      writes them anew; the difference is reviewed before it is committed
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark.data.partition import Dirichlet
from benchmark.experiment import Experiment
from benchmark.methods.averaging import FedAvg, Grouping
from benchmark.methods.fixmatch import FixMatch
from benchmark.methods.objectives import SelfTraining, Supervised
from benchmark.methods.server_only import ServerOnly
from tests.conftest import tiny_experiment
from tests.federated.helpers import module_of

FOLDER = Path(__file__).parent / "golden"
BASE = tiny_experiment()


def _method(**changes: Any) -> Experiment:
    return replace(BASE, method=replace(BASE.method, **changes))


EVERYWHERE = replace(BASE, data=replace(BASE.data, label_setting="everywhere"))

TRACES = {
    "crl-fedavg": BASE,
    "crl-grouping": _method(averaging=Grouping(S=2)),
    "crl-control": _method(averaging=FedAvg(server_weight=1 / 3)),
    "crl-released": _method(averaging=Grouping(S=2), momentum="released_code", server_models="released_code"),
    "crl-batch-norm": replace(BASE, model=replace(BASE.model, norm="bn")),
    "crl-dirichlet": replace(BASE, partition=Dirichlet(alpha=0.5)),
    "self-training": _method(objective=SelfTraining(threshold=0.14)),
    "supervised": replace(EVERYWHERE, method=replace(BASE.method, objective=Supervised())),
    "server-only": replace(BASE, method=ServerOnly(batch_size=8)),
    "fixmatch": replace(BASE, method=FixMatch(batch_size=8, unlabelled_ratio=2, threshold=0.14)),
}


def trace(experiment: Experiment) -> list[dict[str, float]]:
    """The metrics of two rounds, and the sum and the sum of squares of all weights."""
    module, lines = module_of(experiment), []
    for round_number in (1, 2):
        module.training_step(round_number, 0)
        weights = next(iter(module.models().values()))
        lines.append(
            {
                **{name: float(value) for name, value in sorted(module.metrics.items())},
                "weights/sum": float(sum(value.double().sum() for value in weights.values())),
                "weights/squares": float(sum(value.double().square().sum() for value in weights.values())),
            }
        )
    return lines


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, experiment in TRACES.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(trace(experiment), indent=1) + "\n")


if __name__ == "__main__":
    main()
