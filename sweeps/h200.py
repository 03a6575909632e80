"""Estimates what runs would take on an NVIDIA H200, by the speeds that were measured there."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from benchmark.experiment import Experiment
from sweeps.cost import count

# Of one NVIDIA H200 with 16 cores (reports/performance.md): local steps a second of 16 runs side by side under MPS, and
# milliseconds a step of one run alone in float32, by network and norm.
SIDE_BY_SIDE, STEPS_PER_SECOND = 16, {("emnist_cnn", "none"): 2819.0}
STEP_MS = {
    ("emnist_cnn", "none"): 3.2,
    ("wresnet28x2", "gn"): 13.3,
    ("wresnet28x2", "sbn"): 15.8,
    ("resnet18_mlp", "gn"): 20.5,
}


@dataclass(frozen=True, kw_only=True)
class OnH200:
    """What runs would take on an NVIDIA H200, by the speeds that were measured there."""

    seconds: float
    side_by_side: int  # runs; 1: how much faster several are was not measured for these networks


def on_h200(runs: Iterable[Experiment]) -> OnH200 | None:
    """The estimate for runs of a full-size network; None if a network was not timed, or there is no run."""
    steps: dict[tuple[str, str], float] = defaultdict(float)
    for run in runs:
        if run.profile not in ("gpu", "paper") or run.precision != "fp32":
            return None
        steps[run.model.network, run.model.norm] += count(run).whole.local_steps
    if not steps or not steps.keys() <= STEP_MS.keys():
        return None
    if steps.keys() <= STEPS_PER_SECOND.keys():
        seconds = sum(number / STEPS_PER_SECOND[network] for network, number in steps.items())
        return OnH200(seconds=seconds, side_by_side=SIDE_BY_SIDE)
    seconds = sum(number * STEP_MS[network] / 1000 for network, number in steps.items())
    return OnH200(seconds=seconds, side_by_side=1)
