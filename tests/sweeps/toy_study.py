"""A study of a second a trial: the tests' tiny experiment on the embedded digits, measured on 40 held-out labels."""

from dataclasses import replace

from benchmark.experiment import Experiment
from sweeps.tune import Plan, Span, Study
from tests.conftest import tiny_experiment


def defaults(profile: str) -> Experiment:
    tiny = tiny_experiment()
    return replace(tiny, data=replace(tiny.data, N_validation=40))


TOY = Study(
    name="toy/tiny",
    title="A toy",
    reason="A test's question.",
    experiment=defaults,
    profiles=("demo",),
    space=(
        Span(field="optimizer.lr", low=0.01, high=0.5, scale="log", reason="around the tiny experiment's 0.05"),
        Span(field="optimizer.momentum", low=0.5, high=0.95, scale="log below one", reason="a test of the scale"),
        Span(field="partition.R", low=0.0, high=0.9, reason="a test of the scale"),
    ),
    trials=3,
    seeds=2,
    startup=2,
)


def toy_plan(*, trials: int = 3, seeds: int = 2) -> Plan:
    return Plan(study=TOY, profile="demo", trials=trials, seeds=seeds)
