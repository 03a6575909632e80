"""What `fssl bench` measures on a CPU: ratios to the plain loop, the share of confident samples, cost over C.

Every section returns plain JSON values; `tables.py` says how they look.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark.bench.contenders import EngineContender, PlainContender
from benchmark.bench.measuring import Contender, Say, figures, fit_steps, interleave, spread, timed
from benchmark.bench.works import (
    WORKS,
    Work,
    environment_of,
    fifth,
    passes_of,
    quick,
    round_flops,
    with_clients,
)
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.module import FederatedModule
from benchmark.federated.workers import CpuEngine
from benchmark.methods.protocol import Weights
from benchmark.papers.ssfl import tab2

PLAIN, DENSE, BF16 = "plain loop", "cpu engine", "cpu engine, bf16"
COHORTS = (5, 10, 20, 47)
LEARNING_ROUNDS, DENSE_EVERY = 50, 5
COST_ROUNDS = 3  # a round of the largest cohort takes half a minute on two cores
TOLERANCE = 1e-5  # of weights, against the reference engine


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much is measured, and with what."""

    rounds: int = 5  # counted, after one to warm up
    workers: int  # of the cpu engine
    threads: int  # of the plain loop
    data_root: Path | None = None
    quick: bool = False
    whole: bool = False  # work C with all of a client's images
    say: Say = print

    def work(self, name: str) -> Work:
        if self.quick:
            return quick(WORKS[name])
        return fifth(WORKS[name]) if name == "C" and not self.whole else WORKS[name]


def ratios(name: str, options: Options) -> dict[str, Any]:
    """Rounds of a work by the plain loop and by the engines, all samples confident, in turn."""
    work = options.work(name)
    environment = environment_of(work, options.data_root)
    with ExitStack() as stack:
        plain = PlainContender(work, options.data_root, options.threads)
        stack.callback(plain.close)
        contenders: dict[str, Contender] = {PLAIN: plain}
        if name == "A":  # elsewhere the reference engine would only take time
            for threads in sorted({1, options.threads}):
                label = f"reference engine, {threads} thread{'s' if threads > 1 else ''}"
                contenders[label] = EngineContender(environment, ReferenceEngine(environment), threads)
        contenders[DENSE] = EngineContender(environment, stack.enter_context(cpu_engine(environment, options)))
        if name != "C":
            in_bf16 = replace(environment, experiment=replace(environment.experiment, precision="bf16"))
            contenders[BF16] = EngineContender(in_bf16, stack.enter_context(cpu_engine(in_bf16, options)))
        times = interleave(contenders, options.rounds, say=options.say)
    flops, samples = round_flops(work, environment), passes_of(work, environment).trained
    rows = {label: figures(found, times[PLAIN], flops, samples) for label, found in times.items()}
    return {
        "what": work.what,
        "images": environment.data.name,
        "flops": flops,
        "samples": samples,
        "yardstick": PLAIN,
        "contenders": rows,
        "difference": difference_to_reference(work, options),
    }


@contextmanager
def cpu_engine(environment: Environment, options: Options, *, confident_only: bool = False) -> Iterator[CpuEngine]:
    with CpuEngine(environment, options.workers, confident_only=confident_only) as engine:
        yield engine


def difference_to_reference(work: Work, options: Options) -> dict[str, float]:
    """One round of two clients with 100 images, by the cpu engine and by the reference engine, from equal weights.

    The largest difference of any weight, the largest change of any weight in that round, and what the reference engine
    itself differs by when it starts from weights that are off by one part in ten million: a batch norm over ten images
    multiplies such a difference in every step, and no engine can be nearer than that.
    """
    small = with_clients(work, K=2, C=2, images=20 if options.quick else 100)
    small = replace(small, experiment=replace(small.experiment, federation=replace(small.experiment.federation, T=4)))
    environment = environment_of(small, options.data_root)
    with cpu_engine(environment, options) as engine:
        mine = after_a_round(environment, engine)
    plain = ReferenceEngine(environment)
    start = environment.setup().initial_weights()
    theirs = after_a_round(environment, plain)
    return {
        "difference": largest_gap(mine, theirs),
        "change": largest_gap(mine, start),
        "sensitivity": largest_gap(after_a_round(environment, plain, scale=1 + 1e-7), theirs),
        "tolerance": TOLERANCE,
    }


def after_a_round(environment: Environment, engine: Engine, scale: float = 1.0) -> Weights:
    """The weights after round 1 that began with the initial ones times `scale`."""
    begin = environment.setup().initial_weights
    setup = replace(
        environment.setup(),
        initial_weights=lambda: {
            name: value * scale if value.is_floating_point() else value for name, value in begin().items()
        },
    )
    module = FederatedModule(environment, engine, state=environment.experiment.method.init(setup))
    module.training_step(1, 0)
    return next(iter(module.models().values()))


def largest_gap(left: Weights, right: Weights) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def learning(options: Options) -> dict[str, Any]:
    """A run that learns, SSFL Table 2's FedAvg at the full cohort under the laptop profile: the share kept in the first
    rounds with clients, and what confident-only saves on the very same weights. Raises DataError without MNIST."""
    experiment = tab2("demo" if options.quick else "laptop").cell("FedAvg/full").experiment
    before, count, every = experiment.method.warm_start_rounds, LEARNING_ROUNDS, DENSE_EVERY
    if options.quick:
        experiment = replace(experiment, method=replace(experiment.method, warm_start_rounds=1))
        before, count, every = 1, 2, 1
    environment = prepare(experiment, options.data_root)
    rows = []
    with cpu_engine(environment, options) as dense, cpu_engine(environment, options, confident_only=True) as engine:
        ours, other = FederatedModule(environment, engine), FederatedModule(environment, dense)
        for number in range(1, before + 1):  # with the server alone
            ours.training_step(number, 0)
        for number in range(before + 1, before + count + 1):
            row: dict[str, Any] = {"round": number - before}
            if row["round"] % every == 0 or row["round"] == 1:
                other.state, other.rounds_done = ours.state, ours.rounds_done
                row["dense_seconds"], row["dense_cpu"] = timed(
                    lambda: other.training_step(number, 0),  # noqa: B023  # run at once
                    dense.pids,
                )
            row["seconds"], row["cpu"] = timed(lambda: ours.training_step(number, 0), engine.pids)  # noqa: B023
            row["kept"] = ours.metrics["pseudo/kept"]
            rows.append(row)
            options.say(f"round {row['round']} of {count}: {row['kept']:.3f} kept, {row['seconds']:.2f} s")
        accuracy = ours.evaluator.measure(next(iter(ours.models().values())))["test/accuracy"]
    what = f"SSFL Table 2, FedAvg/full, profile {experiment.profile}, after {before} rounds of the server alone"
    return {"what": what, "images": environment.data.name, "rows": rows, "accuracy": accuracy}


def cost(options: Options) -> dict[str, Any]:
    """Seconds a round of work A over the cohort size, and how well a + b ceil((C + 1) / workers) tells them."""
    cohorts = (1, 2, 3) if options.quick else COHORTS
    rounds = min(options.rounds, COST_ROUNDS)
    work = with_clients(options.work("A"), K=max(cohorts), C=max(cohorts), images=10 if options.quick else 200)
    environment = environment_of(work, options.data_root)
    with cpu_engine(environment, options) as engine:
        contenders: dict[str, Contender] = {
            str(C): EngineContender(with_cohort(environment, C), engine) for C in cohorts
        }
        times = interleave(contenders, rounds, say=options.say)
    seconds = {C: spread(times[str(C)].wall) for C in cohorts}
    fit = fit_steps({C: found["median"] for C, found in seconds.items()}, options.workers)
    rows = [
        {
            "C": C,
            "wall_seconds": seconds[C],
            "fitted": fit.at(C),
            "error": fit.at(C) / seconds[C]["median"] - 1,
        }
        for C in cohorts
    ]
    return {"what": work.what, "workers": options.workers, "rounds": rounds, "a": fit.a, "b": fit.b, "rows": rows}


def with_cohort(environment: Environment, C: int) -> Environment:
    experiment = environment.experiment
    return replace(environment, experiment=replace(experiment, federation=replace(experiment.federation, C=C)))
