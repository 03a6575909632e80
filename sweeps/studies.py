"""The tuning studies that are declared: what no paper prints. Ranges and reasons are in a TOML file each."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers.arena import Environment, digits_scale, mnist_scale
from benchmark.papers.arena_entries import ENTRIES
from sweeps.tune import Span, Study

FEDSWITCH: Mapping[str, Callable[[str], Environment]] = {"demo": digits_scale, "laptop": mnist_scale}


def fedswitch(profile: str) -> Experiment:
    """Where the study begins: the arena's entry (FixMatch's optimizer, tau, lambda_u; the least mu of FedProx's grid;
    a teacher that can follow within a short run), with beta = 0. Raises ConfigError."""
    if profile not in FEDSWITCH:
        raise ConfigError(f"--profile: no study of FedSwitch for {profile!r}; choose {' or '.join(FEDSWITCH)}")
    (entry,) = [entry for entry in ENTRIES if entry.name == "FedSwitch"]
    start = FEDSWITCH[profile](profile).experiment(entry)
    return replace(start, method=replace(start.method, beta=0.0))


def _declared(name: str, experiment: Callable[[str], Experiment], profiles: Mapping[str, object]) -> Study:
    """The study whose question, ranges and reasons are in the file of its name."""
    file = tomllib.loads((Path(__file__).parent / f"{name.replace('/', '_')}.toml").read_text())
    space = tuple(Span(**span) for span in file.pop("space"))
    return Study(name=name, experiment=experiment, profiles=tuple(profiles), space=space, **file)


STUDIES: Mapping[str, Study] = {study.name: study for study in (_declared("fedswitch/open", fedswitch, FEDSWITCH),)}
