"""A study of a second a trial: the tests' tiny experiment on the embedded digits, measured on 40 held-out labels."""

from dataclasses import replace

from benchmark.experiment import Experiment
from sweeps.tune.study import Linear, Log, LogBelowOne, Plan, Span, Study
from tests.conftest import tiny_experiment


def defaults(profile: str) -> Experiment:
    tiny = tiny_experiment()
    return replace(tiny, data=replace(tiny.data, N_validation=40))


SPACE = (
    Span(field="optimizer.lr", low=0.01, high=0.5, scale=Log(), reason="around the tiny experiment's 0.05"),
    Span(field="optimizer.momentum", low=0.5, high=0.95, scale=LogBelowOne(), reason="a test of the scale"),
    Span(field="partition.R", low=0.0, high=0.9, scale=Linear(), reason="a test of the scale"),
)
TOY = Study(
    name="toy/tiny",
    title="A toy",
    reason="A test's question.",
    experiment=defaults,
    profiles=("demo",),
    space=SPACE,
    trials=4,
    seeds=2,
    startup=2,
)


def toy_plan(study: Study = TOY, *, trials: int = 4, seeds: int = 2) -> Plan:
    return Plan(study=study, profile="demo", trials=trials, seeds=seeds)
