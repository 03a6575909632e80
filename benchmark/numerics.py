"""Define the numerics version of each part of the code, and determine the versions of any run record.

`NUMERICS` of `benchmark.experiment` is part of every cell key, so raising it would change the key of every cell. A
change that alters the bits of existing runs instead raises the version of a part in this module. A manifest contains
the versions at the beginning of its run; the versions of older records follow from their commits (`numerics.toml`).

A version applies only to runs with numbers that the change could alter. If no later change could alter a run, its
record has the current versions, whatever its commit.
"""

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Engines: order of sums, threads and fast local steps.
#   1  813c5ab4, 2026-11-21: the first committed record
ENGINE = 1
# Normalisation.
#   1  813c5ab4, 2026-11-21: the first committed record
#   2  ba816e81, 2026-11-25: the pool engine uses PyTorch's group norm for 4 to 7 channels per group. (6ae96916,
#      2026-11-26, did the same for fewer channels, which no committed record has.)
NORM = 2
# Gradient diversity.
#   1  813c5ab4, 2026-11-21: the first committed record
#   2  73269d13, 2026-11-25: rounds with skipped clients, and warm-start rounds in which clients only send statistics,
#      have no diversity; gradients are computed with the client state
DIVERSITY = 2
# (FL)^2.
#   1  813c5ab4, 2026-11-21: the first committed record
#   2  e26936ca, 2026-11-27: torch.func.vjp computes the gradient of the perturbation
FLFL = 2

CURRENT: Mapping[str, int] = {"engine": ENGINE, "norm": NORM, "diversity": DIVERSITY, "flfl": FLFL}

# Methods with clients that may skip a round, keep a state or train different networks (`diversity` 2).
_MAY_SKIP = ("semifl", "heterofl", "easgd", "lg_fedavg")
_KEEP_STATE = ("feddyn", "lg_fedavg", "fedswitch", "rscfed", "ts_client_ema", "fedmatch")


@dataclass(frozen=True, kw_only=True)
class Move:
    """A change after which some existing runs have different numbers."""

    part: str
    version: int  # version of the part since the change
    commit: str
    date: str  # time of the commit, UTC
    moved: str  # description of the numbers that changed

    @property
    def name(self) -> str:
        """Return the part and its version, such as "norm 2"."""
        return f"{self.part} {self.version}"

    @property
    def where(self) -> str:
        """Return the commit and its date, such as "ba816e81, 2026-11-25"."""
        return f"{self.commit[:8]}, {self.date[:10]}"


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MOVES: tuple[Move, ...] = tuple(Move(**entry) for entry in _FILE["moves"])
# Commit of a committed record -> names of the changes that came after it.
OLDER_THAN: Mapping[str, frozenset[str]] = {
    commit: frozenset(group["older_than"]) for group in _FILE["commits"] for commit in group["names"]
}


def numerics_of(experiment: Mapping[str, Any], manifest: Mapping[str, Any], metrics: Collection[str]) -> dict[str, int]:
    """Return the version of each part that computed a run, from its JSON and the names of its metrics.

    If the manifest contains no versions, the commits of the run's attempts decide. For a commit that `numerics.toml`
    does not list, the attempt's start time decides.
    """
    stored: Mapping[str, int] = manifest.get("numerics") or {}
    versions = {part: max(version, stored.get(part, version)) for part, version in CURRENT.items()}
    for move in MOVES:
        if _could_differ(move, experiment, manifest, metrics) and _is_older(move, manifest):
            versions[move.part] = min(versions[move.part], move.version - 1)
    return versions


def is_current(numerics: Mapping[str, int]) -> bool:
    """Return whether this code reproduces a run with these versions bit by bit."""
    return dict(numerics) == dict(CURRENT)


def numerics_in_words(numerics: Mapping[str, int]) -> str:
    """Describe the versions that differ from this code's; return an empty string if none does.

    An example is "norm version 1 (before ba816e81, 2026-11-25); this code has norm version 2".
    """
    old = [part for part, version in CURRENT.items() if numerics.get(part, version) != version]
    if not old:
        return ""
    theirs = ", ".join(_version_in_words(part, numerics[part]) for part in old)
    ours = ", ".join(f"{part} version {CURRENT[part]}" for part in old)
    return f"{theirs}; this code has {ours}"


def _version_in_words(part: str, version: int) -> str:
    after = [move for move in MOVES if move.part == part and move.version == version + 1]
    return f"{part} version {version}" + "".join(f" (before {move.where})" for move in after)


def _is_older(move: Move, manifest: Mapping[str, Any]) -> bool:
    """Return whether code from before the change computed an attempt of the run."""
    stored = manifest.get("numerics") or {}
    if stored.get(move.part, move.version) < move.version:
        return True
    return any(_attempt_is_older(move, code, started, bool(stored)) for code, started in _attempts(manifest))


def _attempt_is_older(move: Move, commit: str, started: str, has_versions: bool) -> bool:
    if commit in OLDER_THAN:
        return move.name in OLDER_THAN[commit]
    return not has_versions and bool(started) and started < move.date


def _attempts(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the commit and the start time of each attempt; older manifests name one commit for all attempts."""
    commit = str(manifest.get("code", {}).get("commit", ""))
    for attempt in manifest.get("attempts") or [{}]:
        yield str(attempt.get("code", {}).get("commit", commit)), str(attempt.get("started", ""))


def _could_differ(
    move: Move, experiment: Mapping[str, Any], manifest: Mapping[str, Any], metrics: Collection[str]
) -> bool:
    """Return whether the change could alter a number of such a run."""
    return _CONCERNS[move.name](experiment, manifest, metrics)


def _group_norm_of_the_pool(
    experiment: Mapping[str, Any], manifest: Mapping[str, Any], metrics: Collection[str]
) -> bool:
    engine = manifest.get("engine", {})
    fast = engine.get("name") == "pool" and "device" not in engine  # the plain local step always used PyTorch's norm
    return fast and experiment.get("model", {}).get("norm") == "gn"


def _incomplete_diversity(experiment: Mapping[str, Any], manifest: Mapping[str, Any], metrics: Collection[str]) -> bool:
    method = experiment.get("method", {}).get("kind", "")
    if not any(name.startswith("diversity/") for name in metrics):
        return False
    incomplete = method in _MAY_SKIP or experiment.get("model", {}).get("norm") == "sbn" or ":" in method
    with_state = method in _KEEP_STATE and any(name.startswith("diversity/gradient/") for name in metrics)
    return incomplete or with_state


def _is_flfl(experiment: Mapping[str, Any], manifest: Mapping[str, Any], metrics: Collection[str]) -> bool:
    return experiment.get("method", {}).get("kind") == "flfl"


_CONCERNS = {"norm 2": _group_norm_of_the_pool, "diversity 2": _incomplete_diversity, "flfl 2": _is_flfl}
