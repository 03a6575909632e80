"""Where numbers come from: what the runs' manifests say, and what to know before trusting them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from benchmark.papers.item import CONFIRMING, Claim, Item
from benchmark.records.record import Records, RunRecord
from benchmark.verdicts.families import families_in, hash_of
from benchmark.verdicts.rule import RULE_VERSION, version_in_words
from reports.formatting import count

MOST_VALUES = 3  # distinct values of an entry that are listed; the rest are counted
Fact: TypeAlias = tuple[str, str, bool]  # a name, what is said of it, and whether runs differ in it


def flat(entries: Mapping[str, Any], above: str = "", joint: str = ".") -> dict[str, str]:
    """Nested settings by their full names: "data.N_s" -> "100"."""
    found: dict[str, str] = {}
    for name, value in entries.items():
        path = f"{above}{joint}{name}" if above else str(name)
        if isinstance(value, Mapping):
            found |= flat(value, path, joint)
        else:
            found[path] = json.dumps(value) if isinstance(value, list) else str(value)
    return found


def provenance(runs: Iterable[RunRecord]) -> list[Fact]:
    """Every entry of the runs' manifests with its distinct values, and the selection rule. Times and attempts differ in
    every run and are left out, as is what says nothing."""
    values: dict[str, dict[str, None]] = {}
    for run in runs:
        entries = flat({**run.manifest, "selection rule": run.result.get("selection", "not finished")}, joint=" ")
        for name, value in entries.items():
            if value and not any(word in name for word in ("attempt", "started", "_at")):
                values.setdefault(name, {})[{"None": "none"}.get(value, value)] = None
    facts = []
    for name, found in sorted(values.items()):
        more = f" and {len(found) - MOST_VALUES} more" if len(found) > MOST_VALUES else ""
        differs = len(found) > 1 and not name.startswith("data partition")  # partitions differ with the seed
        facts.append((name, ", ".join(sorted(found)[:MOST_VALUES]) + more, differs))
    return facts


def marks_of(run: RunRecord, profile: str) -> list[str]:
    """What has to be known of a run, by weight; empty for one that is as its page says. `profile`: the page's."""
    own = str(run.experiment.get("profile", profile))
    code = run.manifest.get("code")
    return [
        *(["edited after it was written"] if run.edited else []),
        *([f"recorded under profile {own}"] if own != profile else []),
        *(["of uncommitted code"] if isinstance(code, Mapping) and code.get("changes") else []),
    ]


def commit_of(run: RunRecord) -> str:
    code = run.manifest.get("code")
    return str(code.get("commit", "unknown"))[:10] if isinstance(code, Mapping) else "unknown"


def remarks(runs: Iterable[RunRecord], profile: str) -> list[str]:
    """What of these runs has to be said on a page: "2 of 5 runs: edited after it was written", mixed code versions."""
    runs = list(runs)
    counts = Counter(mark for run in runs for mark in marks_of(run, profile))
    commits = sorted({commit_of(run) for run in runs})
    mixed = [f"runs of {len(commits)} code versions: {', '.join(commits[:4])}"] if commits[1:] else []
    return [*(f"{number} of {len(runs)} runs: {mark}" for mark, number in counts.items()), *mixed]


def made_from(runs: Iterable[RunRecord]) -> str:
    """When and on what the records were made, from the records alone: the site has no clock of its own."""
    found = list({(run.cell_key, run.seed): run for run in runs}.values())
    if not found:
        return "From no run yet."
    manifests = [flat(run.manifest) for run in found]

    def different(name: str) -> list[str]:
        return sorted({manifest[name] for manifest in manifests if manifest.get(name)})

    days = sorted({day for run in found if (day := _day(run))})
    span = f", {days[0]}{f' to {days[-1]}' if days[1:] else ''}" if days else ""
    profiles = ", ".join(sorted({str(run.experiment.get("profile", "unknown")) for run in found}))
    machines, torch = ", ".join(different("hardware.processor")[:3]), ", ".join(different("packages.torch"))
    return (
        f"From {len(found)} runs of profile {profiles}{span}{f', on {machines}' if machines else ''}"
        f"{f', torch {torch}' if torch else ''}, {count(len({commit_of(run) for run in found}), 'code version')}."
    )


def _day(run: RunRecord) -> str:
    attempts = run.manifest.get("attempts")
    newest = attempts[-1] if isinstance(attempts, list) and attempts else {}
    return str(newest.get("started", ""))[:10] if isinstance(newest, Mapping) else ""


def confirming_runs(item: Item, records: Records, claim: Claim) -> list[RunRecord]:
    """The runs of the claim's cells that were begun under it, in the order in which they began."""
    cells = [cell for cell in item.cells if cell.label in claim.labels]
    runs = [run for cell in cells for seed, run in records.get(cell.cell_key, {}).items() if seed in CONFIRMING]
    own = hash_of(item, claim)
    return sorted((run for run in runs if any(own in f for f in families_in(run.manifest).values())), key=_started)


def pre_registration(item: Item, records: Records, claim: Claim) -> dict[str, str]:
    """When the claim was made, when the first run that judges it began, and by which version of the rule."""
    runs = confirming_runs(item, records, claim)
    cells = {cell.cell_key: cell.label for cell in item.cells if cell.label in claim.labels}
    made = f"{claim.made:%Y-%m-%d %H:%M} UTC" if claim.made else "no date"
    versions = Counter(version_in_words(run.manifest) for run in runs)
    begun = "; ".join(f"{count(number, 'run')} begun {under}" for under, number in sorted(versions.items()))
    return {
        "made": f"{made}, in commit {claim.commit}" if claim.commit else made,
        "first run": f"{_hour(runs[0])}, {cells[runs[0].cell_key]} seed {runs[0].seed}, by code {commit_of(runs[0])}"
        if runs
        else "none yet",
        "rule": f"version {RULE_VERSION}" + (f"; {begun}" if runs else ""),
    }


def _started(run: RunRecord) -> str:
    """Of its first attempt: "2026-11-22T22:07:29Z"; empty where the manifest has none."""
    attempts = run.manifest.get("attempts") or [{}]
    return str(attempts[0].get("started", ""))


def _hour(run: RunRecord) -> str:
    """ "2026-11-22 22:07 UTC"."""
    started = _started(run)
    return f"{started[:16].replace('T', ' ')} UTC" if started else "at an hour that its manifest does not say"
