"""Decide which confirmatory seeds of a claim count, from how the runs of their cells were computed.

A device, an engine or a version of the code can favour one cell of a contrast. The cells of a contrast are therefore
computed in the same way at every judged seed, and the judged seeds end before the first violation. The requirements
depend on the version of the rule when the runs began:

before 7   within a seed: one engine and one kind of device. Other differences are only reported as caveats.
since 7    also within a seed: one type of processor and one minor version of torch; and over the seeds of a contrast:
           one engine, one kind of device and one numerics version.

The later requirements apply to a seed if all its runs of the contrast began under version 7 or
later. A run may have a second copy from a different kind of device (`RunRecord.copies`). The copy
replaces the run if the requirements are only met with it.

Example: the contrast A - B has seeds 100 to 103 on a CPU, except for A's seed 102, which ran on an
H200. Seeds 100 and 101 are judged. Seed 102 can never count, and neither can the seeds after it,
until a copy of A's seed 102 from a CPU fills the gap.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmark.numerics import MOVES
from benchmark.records.record import CPU, RunRecord

# From this version of the rule on, the cells of a seed also share the processor type and torch's minor version.
STRICT_SINCE = 7
Kind: TypeAlias = tuple[str, str]  # engine and kind of device
Runs: TypeAlias = Mapping[int, RunRecord]  # by seed


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How a run was computed, as far as its numbers can depend on it."""

    engine: str = ""
    device: str = CPU
    processor: str = ""
    model: str = ""  # vendor, family and model of the processor, or empty if they were not noted
    torch: str = ""  # "2.15"
    numerics: tuple[tuple[str, int], ...] = ()  # part and version
    noted: tuple[tuple[str, int], ...] = ()  # versions in the manifest, including parts that could not change this run
    rule: int = 0  # version when the run began, or 0 before versions were noted
    norm: str = ""  # of the network

    @property
    def kind(self) -> Kind:
        return self.engine, self.device

    @property
    def is_strict(self) -> bool:
        return self.rule >= STRICT_SINCE


def origin_of(run: RunRecord, metric: str) -> Origin:
    """Read the origin of a run from its manifest. The numerics version of the diversity only
    concerns metrics of diversity.
    """
    manifest = run.manifest
    engine, device = run.trained_by
    packages = manifest.get("packages", {})
    concerned = [part for part in run.numerics if part != "diversity" or metric.startswith("diversity/")]
    noted = manifest.get("numerics", run.numerics)
    versions = tuple((part, run.numerics[part]) for part in sorted(concerned))
    noted_versions = tuple((part, int(noted.get(part, 0))) for part in sorted(concerned))
    return Origin(
        engine=engine,
        device=device,
        processor=str(manifest.get("hardware", {}).get("processor", "")),
        model=str(manifest.get("hardware", {}).get("model", "")),
        torch=".".join(str(packages.get("torch", "")).split(".")[:2]),
        numerics=versions,
        noted=noted_versions,
        rule=int(manifest.get("rule", {}).get("version", 0)),
        norm=str(run.experiment.get("model", {}).get("norm", "")),
    )


@dataclass
class Chain:
    """One contrast, seed by seed, with the requirements for the runs of the next seed."""

    kind: Kind | None = None  # of the previous seed
    strict: Origin | None = None  # of the last seed under the later requirements

    def fault(self, origins: Mapping[str, Origin]) -> str:
        """Return why a seed with these runs, by cell, can never count; empty if it can."""
        several = _several("kind", origins)
        if several or not all(origin.is_strict for origin in origins.values()):
            return several
        several = _several("processor", origins) or _several("torch", origins)
        if several:
            return several
        first, *others = origins.values()
        if any(_other_numerics(first, other) for other in others):
            return _several("numerics", origins)
        if self.kind not in (None, first.kind):
            return f"its runs are from {_kind_in_words(first.kind)}, earlier ones from {_kind_in_words(self.kind)}"
        if self.strict and _other_numerics(self.strict, first):
            now, before = _numerics_in_words(first.numerics), _numerics_in_words(self.strict.numerics)
            return f"its runs have {now}, earlier ones {before}"
        return ""

    def append(self, origins: Mapping[str, Origin]) -> None:
        """Continue with the next seed after one that counts."""
        origin = next(iter(origins.values()))
        self.kind = origin.kind
        if all(one.is_strict for one in origins.values()):
            self.strict = origin


def _other_numerics(one: Origin, other: Origin) -> bool:
    """Return whether a part had two versions that could have given at least one run different numbers.

    A run that a change could not affect has the current version, whatever code computed it. Parts
    therefore differ only if the noted versions also differ.
    """
    if one.numerics == other.numerics or one.noted == other.noted:
        return False
    differ_now = {part for part, _ in set(one.numerics) ^ set(other.numerics)}
    differed_then = {part for part, _ in set(one.noted) ^ set(other.noted)}
    return bool(differ_now & differed_then)


@dataclass(kw_only=True)
class Uniform:
    """The runs of a claim's cells that count, by cell and seed, and the reasons for the others."""

    runs: dict[str, dict[int, RunRecord]]
    gaps: dict[int, str] = field(default_factory=dict)  # seed that can never count -> reason


def uniform(runs: Mapping[str, Runs], contrasts: Sequence[Iterable[str]], seeds: range, metric: str) -> Uniform:
    """Choose the runs of these seeds so that the cells of each contrast are computed in the same way.

    `contrasts` contains the cells of each contrast. Runs of other seeds stay unchanged.
    """
    found = Uniform(runs={label: dict(of_cell) for label, of_cell in runs.items()})
    chains = [Chain() for _ in contrasts]
    for seed in seeds:
        chosen: dict[str, RunRecord] = {}
        for labels, chain in zip(contrasts, chains, strict=True):
            given = {label: runs[label][seed] for label in labels if seed in runs.get(label, {})}
            if not given:
                continue
            candidates = {label: [chosen[label]] if label in chosen else _copies(run) for label, run in given.items()}
            alike = _alike(candidates, chain, metric)
            fault = "" if alike else chain.fault({label: origin_of(run, metric) for label, run in given.items()})
            if fault:
                found.gaps.setdefault(seed, f"{fault}{_mend(given)}")
                continue
            chosen |= alike
            origins = {label: origin_of(run, metric) for label, run in alike.items()}
            if len(given) == len(set(labels)):
                chain.append(origins)
        for label, run in chosen.items():
            found.runs[label][seed] = run
    return found


def _copies(run: RunRecord) -> list[RunRecord]:
    return [run, *run.copies]


def _alike(candidates: Mapping[str, Sequence[RunRecord]], chain: Chain, metric: str) -> dict[str, RunRecord]:
    """Return the first copies that count together; empty if none do.

    The order is: the first copy of each cell, then copies of the kind of the previous seed, then
    copies of the first kind that all cells have.
    """
    by_kind = {}
    for label, copies in candidates.items():
        by_kind[label] = {origin_of(run, metric).kind: run for run in reversed(copies)}
    common = set.intersection(*(set(kinds) for kinds in by_kind.values()))
    tried = [{label: copies[0] for label, copies in candidates.items()}]
    for kind in sorted(common, key=lambda kind: (kind != chain.kind, kind)):
        tried.append({label: kinds[kind] for label, kinds in by_kind.items()})
    for runs in tried:
        if not chain.fault({label: origin_of(run, metric) for label, run in runs.items()}):
            return runs
    return {}


def _mend(given: Mapping[str, RunRecord]) -> str:
    """Return a phrase about the copy that would let a seed with several kinds of device count."""
    devices = {label: origin_of(run, "").device for label, run in given.items()}
    if len(set(devices.values())) < 2:
        return ""
    label = next((label for label, device in devices.items() if device != CPU), "")
    return f"; a second copy of {label}, trained on the other device, would fill the gap" if label else ""


# Phrases for readers.


def _several(name: str, origins: Mapping[str, Origin]) -> str:
    """Return the different values of one field with their cells, as a phrase; empty if all agree."""
    cells: dict[str, list[str]] = defaultdict(list)
    for label, origin in origins.items():
        value = getattr(origin, name)
        cells[IN_WORDS[name](value)].append(label)
    if len(cells) < 2:
        return ""
    return ", ".join(f"{', '.join(labels)}: {value}" for value, labels in sorted(cells.items()))


def _kind_in_words(kind: Kind | None) -> str:
    engine, device = kind or ("", "")
    return f"{device} by the engine {engine}" if engine else device


def _numerics_in_words(numerics: Iterable[tuple[str, int]] | None) -> str:
    return ", ".join(f"{part} version {version}" for part, version in numerics or ())


IN_WORDS: Mapping[str, Callable[[Any], str]] = {
    "kind": _kind_in_words,
    "processor": str,
    "torch": "torch {}".format,
    "numerics": _numerics_in_words,
}


def mixtures(
    runs: Mapping[str, Runs], contrasts: Sequence[Iterable[str]], seeds: Sequence[int], metric: str
) -> list[str]:
    """Return phrases about differences between judged runs that the requirements allow.

    Runs that began before the later requirements may come from several processors and versions of torch. All runs may
    come from several models with one name, because some virtual machines report only the name. Examples are "8 of 16
    judged seeds mix processors: AMD and Intel" and "the judged runs come from versions of the code that differ in the
    last bits of (FL)^2".
    """
    origins = {}
    for label, of_cell in runs.items():
        origins[label] = {seed: origin_of(of_cell[seed], metric) for seed in seeds if seed in of_cell}
    phrases = []
    for values_of, noun in ((_processors, "processors"), (_versions_of_torch, "versions of torch")):
        mixed = 0
        values = set[str]()
        for seed in seeds:
            for labels in contrasts:
                of_seed = values_of([origins[label][seed] for label in labels if seed in origins.get(label, {})])
                if len(of_seed) > 1:
                    values |= of_seed
                    mixed += 1
                    break
        if mixed:
            phrases.append(f"{mixed} of {len(seeds)} judged seeds mix {noun}: {_in_words(values)}")
    for labels in contrasts:
        phrases += _over_seeds([origin for label in labels for origin in origins.get(label, {}).values()])
    return list(dict.fromkeys(phrases))


def _in_words(values: Collection[str]) -> str:
    """List two or more values. A processor's name is left out if it is also listed with a model."""
    listed = []
    for value in sorted(values):
        if not any(other.startswith(f"{value} (") for other in values):
            listed.append(value)
    *names, last = listed
    return f"{', '.join(names)} and {last}"


def _processors(origins: Sequence[Origin]) -> set[str]:
    """Return the processors by name, or by name and model if they have one name and several models are noted."""
    names = {origin.processor for origin in origins}
    noted = {f"{origin.processor} ({origin.model})" for origin in origins if origin.model}
    return noted if len(names) == 1 and len(noted) > 1 else names


def _versions_of_torch(origins: Sequence[Origin]) -> set[str]:
    return {origin.torch for origin in origins}


def _over_seeds(origins: Sequence[Origin]) -> list[str]:
    """Return phrases about the kinds of device and the numerics versions among one contrast's
    judged runs, if there are several.

    Versions are compared between networks with the same norm on the same kind of device, because a
    part has no older version where it could not change a number.
    """
    phrases = []
    devices = sorted({origin.device for origin in origins})
    if len(devices) > 1:
        phrases.append(f"the judged seeds come from several devices: {' and '.join(devices)}")
    versions: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for origin in origins:
        for part, version in origin.numerics:
            versions[part, origin.norm, origin.device].add(version)
    for (part, _, _), several in versions.items():
        if len(several) > 1:
            phrases.append(f"the judged runs come from versions of the code that {_moved(part, several)}")
    return phrases


def _moved(part: str, versions: Collection[int]) -> str:
    """Say in which numbers these versions of a part differ."""
    first, last = min(versions), max(versions)
    moved = [move.moved for move in MOVES if move.part == part and first < move.version <= last]
    return f"differ in {' and in '.join(moved)}" if moved else f"have {part} versions {first} to {last}"
