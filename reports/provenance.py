"""Describe the provenance of numbers: the manifests of their runs, and caveats about these runs."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from benchmark.papers.item import CONFIRMING, Claim
from benchmark.records.record import RunRecord
from benchmark.records.seeds import seeds_text
from benchmark.verdicts.families import families_in, hash_of
from benchmark.verdicts.rule import RULE_VERSION, version_in_words
from reports.formatting import count
from reports.item_results import ItemResults

Fact: TypeAlias = tuple[str, list[tuple[str, str]]]  # a name, and each value with the seeds that have it, if not all


def flat(entries: Mapping[str, Any], above: str = "", joint: str = ".") -> dict[str, str]:
    """Flatten nested settings to full names with their values: "data.N_s" -> "100"."""
    flattened: dict[str, str] = {}
    for name, value in entries.items():
        if isinstance(value, Mapping):
            flattened |= flat(value, f"{above}{name}{joint}", joint)
        else:
            flattened[f"{above}{name}"] = json.dumps(value) if isinstance(value, list) else str(value)
    return flattened


def files_of_run(run: RunRecord) -> dict[str, str]:
    """Return the run's manifest by full names (hashes, packages, code, machine), and its selection rule.

    Attempts and empty values are left out.
    """
    manifest = {name: value for name, value in run.manifest.items() if name != "attempts"}
    entries = flat({**manifest, "selection rule": run.result.get("selection", "not finished")}, joint=" ")
    return {name: {"None": "none"}.get(value, value) for name, value in entries.items() if value}


def facts(entries: Mapping[int, Mapping[str, str]]) -> list[Fact]:
    """Return every name with its values and their seeds, from the values of each seed's run."""
    names: dict[str, dict[str, list[int]]] = {}
    for seed, values in entries.items():
        for name, value in values.items():
            names.setdefault(name, {}).setdefault(value, []).append(seed)
    listed = []
    for name, by_value in sorted(names.items()):
        pairs = [(value, "" if len(seeds) == len(entries) else seeds_text(seeds)) for value, seeds in by_value.items()]
        listed.append((name, pairs))
    return listed


def started(run: RunRecord) -> list[str]:
    """Return when each attempt at the run began: "2026-11-23 00:30:02 UTC", then "from round 30: ..."."""
    texts = []
    for attempt in _attempts(run):
        time = str(attempt.get("started", "")).removesuffix("Z").replace("T", " ")
        text = f"{time} UTC" if time else "unknown"
        texts.append(f"from round {attempt['from_round']}: {text}" if attempt.get("from_round") else text)
    return texts or ["unknown"]


def _attempts(run: RunRecord) -> Sequence[Mapping[str, Any]]:
    return run.manifest.get("attempts", ())


def marks_of(run: RunRecord, profile: str) -> list[str]:
    """Return the caveats about a run, most important first; none if it matches its page.

    `profile`: the profile of the page.
    """
    own = str(run.experiment.get("profile", profile))
    parts = {"code": "code", "packages": "packages", "hardware": "processor"}
    mixed = []
    for key, name in parts.items():
        values = [attempt[key] for attempt in _attempts(run) if key in attempt]
        if any(value != values[0] for value in values):
            mixed.append(name)
    device = run.manifest.get("engine", {}).get("device")
    return [
        *(["edited after it was written"] if run.edited else []),
        *([f"recorded under profile {own}"] if own != profile else []),
        *([f"trained on {device}"] if device else []),
        *(["of uncommitted code"] if run.manifest.get("code", {}).get("changes") else []),
        *([f"attempts differ in {', '.join(mixed)}"] if mixed else []),
    ]


def commit_of(run: RunRecord) -> str:
    return str(run.manifest.get("code", {}).get("commit", "unknown"))[:10]


def remarks(runs: Iterable[RunRecord], profile: str) -> list[str]:
    """Return the caveats about these runs ("2 of 5 runs: edited after it was written"), and mixed code versions."""
    runs = list(runs)
    versions = code_versions(runs)
    names = ", ".join(list(versions)[:4])
    mixed = [f"runs of {len(versions)} code versions: {names}"] if len(versions) > 1 else []
    return [*warnings(runs, profile), *mixed]


def torch_releases(runs: Iterable[RunRecord]) -> list[str]:
    """Return the torch releases of the runs without their build: "2.11.0+cu126" becomes "2.11.0"."""
    versions = {str(run.manifest.get("packages", {}).get("torch", "")).partition("+")[0] for run in runs}
    return sorted(versions - {""}, key=lambda version: [int(part) for part in re.findall(r"\d+", version)])


def warnings(runs: Iterable[RunRecord], profile: str) -> list[str]:
    """Return the marks of these runs with their numbers ("2 of 5 runs: edited after it was written"), and mixed torch
    releases.
    """
    runs = list(runs)
    counts = Counter(mark for run in runs for mark in marks_of(run, profile))
    releases = torch_releases(runs)
    mixed = [f"runs with {len(releases)} releases of torch: {', '.join(releases)}"] if len(releases) > 1 else []
    return [*(f"{number} of {len(runs)} runs: {mark}" for mark, number in counts.items()), *mixed]


def code_versions(runs: Iterable[RunRecord]) -> dict[str, int]:
    """Return the number of runs of each commit."""
    return dict(sorted(Counter(commit_of(run) for run in runs).items()))


def made_from(runs: Iterable[RunRecord]) -> str:
    """Report when and on which machines records were made, from the records only, because the site reads no clock."""
    unique = list({(run.cell_key, run.seed): run for run in runs}.values())
    if not unique:
        return "From no run yet."
    days = sorted({a["started"][:10] for run in unique for a in _attempts(run)[-1:] if a.get("started")})
    profiles = sorted({str(run.experiment.get("profile", "unknown")) for run in unique})
    machines, torch = _said(unique, "hardware", "processor"), _said(unique, "packages", "torch")
    parts = (
        f"From {len(unique)} runs of profile {', '.join(profiles)}",
        " to ".join(dict.fromkeys([*days[:1], *days[-1:]])),
        f"on {', '.join(machines[:3])}" if machines else "",
        f"torch {', '.join(torch)}" if torch else "",
        count(len({commit_of(run) for run in unique}), "code version"),
    )
    return f"{', '.join(filter(None, parts))}."


def _said(runs: Iterable[RunRecord], part: str, name: str) -> list[str]:
    """Return the different values of this entry of the runs' manifests."""
    values = {run.manifest.get(part, {}).get(name) for run in runs}
    return sorted(value for value in values if value)


def pre_registration(reported: ItemResults, claim: Claim) -> dict[str, str]:
    """Return when the claim was made, the first run that began under it, and the version of the rule."""
    own = hash_of(reported.item, claim)
    runs = []
    for label, result in reported.results.items():
        if label not in claim.labels:
            continue
        for run in result.runs:
            families = families_in(run.manifest).values()
            if run.seed in CONFIRMING and any(own in family for family in families):
                attempts = _attempts(run)
                begun_at = str(attempts[0].get("started", "")) if attempts else ""
                runs.append((begun_at, label, run))
    _, label, first = min(runs, key=lambda one: one[0], default=("", "", None))
    made = f"{claim.made:%Y-%m-%d %H:%M} UTC" if claim.made else "no date"
    commit = f", in commit {claim.commit}" if claim.commit else ""
    versions = Counter(version_in_words(run.manifest) for *_, run in runs)
    begun = "; ".join(f"{count(number, 'run')} begun {under}" for under, number in sorted(versions.items()))
    return {
        "Claim made": f"{made}{commit}, hash {reported.item.hash_of(claim)}",
        "First confirmatory run": f"{started(first)[0]}, {label} seed {first.seed}, by code {commit_of(first)}"
        if first
        else "none yet",
        "Rule": "; ".join(filter(None, [f"version {RULE_VERSION}", begun])),
    }
