"""Check that confirmatory runs began under a rule and under claims that existed at that time.

`troubles_of_claims` compares the lists of claims in the manifests of one seed block with each
other, and `troubles_of_registration` compares them with the papers' claims.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from benchmark.errors import DataError
from benchmark.papers.item import CONFIRMING, ClaimFamily
from benchmark.papers.items import ITEMS
from benchmark.papers.scale import PROFILES
from benchmark.records.copies import COMMITTED, read_copy
from benchmark.records.git_history import LEEWAY, started_at
from benchmark.records.record import RunRecord
from benchmark.verdicts.families import Declared, families_at, families_in, family_names_of_run, first_seed_of
from benchmark.verdicts.rule import RULE_VERSION, rule

# The hash of `rule.constants` in each earlier version that manifests contain. A new version adds the one before it.
EARLIER_CONSTANTS = {4: "8c4ef2ae8a88238a", 5: "8c4ef2ae8a88238a", 6: "8c4ef2ae8a88238a"}


@dataclass(frozen=True, kw_only=True)
class _Registered:
    """A claim of a paper as it is declared now."""

    name: str
    main: bool
    made: datetime | None  # in UTC


def troubles_of_registration(records: Iterable[RunRecord]) -> list[str]:
    """Return problems of confirmatory runs: an unknown rule, a claim made after the run, a missing
    claim or a missing seed.
    """
    confirmatory = [record for record in records if record.seed in CONFIRMING and record.manifest]
    troubles = [f"{record.path}: manifest.json: {fault}" for record in confirmatory for fault in _faults(record)]
    return [*troubles, *_without_claims(confirmatory), *_without_seeds(confirmatory)]


def troubles_of_claims(records: Iterable[RunRecord]) -> list[str]:
    """Return problems of confirmatory runs with a list of claims that is missing or differs from
    the rest of their seed block.
    """
    troubles = []
    families: dict[tuple[str, int], tuple[ClaimFamily, Path]] = {}
    for record in records:
        if record.seed not in CONFIRMING or not record.manifest:
            continue
        noted = families_in(record.manifest)
        wanted = family_names_of_run(record.cell_key, str(record.experiment.get("profile")), record.seed)
        for name in sorted(wanted - noted.keys()):
            troubles.append(
                f"{record.path}: manifest.json has no claims of {name}, but seed {record.seed} is confirmatory"
            )
        for name, family in noted.items():
            first, other = families.setdefault((name, first_seed_of(record.seed)), (family, record.path))
            if family != first:
                troubles.append(
                    f"{record.path}: manifest.json has claims of {name} that differ from the claims of {other}"
                )
    return troubles


def _faults(record: RunRecord) -> Iterator[str]:
    """Yield the contradictions within one record."""
    noted = record.manifest.get("rule")
    known = {**EARLIER_CONSTANTS, RULE_VERSION: rule()["constants"]}
    if noted and noted["version"] not in known:
        yield f"rule.version is {noted['version']}, but manifests have versions {min(known)} to {RULE_VERSION}"
    elif noted and noted["constants"] != known[noted["version"]]:
        constants = known[noted["version"]]
        yield f"rule.constants is {noted['constants']!r}, but version {noted['version']} has {constants!r}"
    started = started_at(record)
    profile = str(record.experiment.get("profile"))
    for name, family in families_in(record.manifest).items():
        claims = _registered(name, profile)
        listed = (*family.main, *family.others)
        if len(set(listed)) < len(listed):
            yield f"a claim of {name} is listed twice"
        for claim in filter(claims.__contains__, listed):
            made = claims[claim].made
            if started is not None and made is not None and started < made - LEEWAY:
                yield (
                    f"it started {started:%Y-%m-%d %H:%M}, before its claim {claims[claim].name!r} of {name} was made "
                    f"({made:%Y-%m-%d %H:%M})"
                )
                break
        if any(claims[claim].main is not (claim in family.main) for claim in listed if claim in claims):
            yield f"a claim of {name} is primary either in the list or in the paper's file, but not in both"


def _without_seeds(records: Sequence[RunRecord]) -> Iterator[str]:
    """Yield cells with compact copies that lack a seed of a block, because omissions could change the verdict."""
    seeds: dict[tuple[str, int], set[int]] = defaultdict(set)
    for record in records:
        if record.is_copy:
            seeds[record.cell_key, first_seed_of(record.seed)].add(record.seed)
    for (key, first), present in sorted(seeds.items()):
        if missing := sorted(set(range(first, max(present))) - present):
            yield f"cell {key} has seed {max(present)}, but not {', '.join(map(str, missing))}"


def _without_claims(records: Sequence[RunRecord]) -> Iterator[str]:
    """Yield runs with a list that lacks claims that already existed when the first run of their block began.

    If this suite has committed runs of the block, their list decides which claims are required; if
    not, the dates of the claims do.
    """
    blocks: dict[tuple[str, str, int], list[RunRecord]] = defaultdict(list)
    for record in records:
        for name in families_in(record.manifest):
            blocks[name, str(record.experiment.get("profile")), first_seed_of(record.seed)].append(record)
    for (name, profile, first), of_block in blocks.items():
        begun = min(filter(None, map(started_at, of_block)), default=None)
        wanted = _wanted(name, profile, first, begun)
        for record in of_block:
            family = families_in(record.manifest)[name]
            if missing := [claim for claim in wanted if claim not in family]:
                yield (
                    f"{record.path}: the list of claims of {name} in manifest.json lacks {len(missing)} of "
                    f"{len(wanted)}, such as {wanted[missing[0]].name!r}"
                )


def _wanted(name: str, profile: str, first: int, begun: datetime | None) -> Mapping[str, _Registered]:
    """Return the claims, by hash, that every run of the block must list."""
    known, committed = _registered(name, profile), _committed(name, profile)
    if first in committed:
        return {claim: of for claim, of in known.items() if claim in committed[first]}
    declared = [of for (_, start), of in _of_name(name, profile).items() if start == first]
    if not declared or begun is None:
        return {}
    earlier = [family for start, family in committed.items() if start < first]
    wanted = {}
    for claim, of in _claims_of(declared[0]).items():
        judged_before = any(claim in family for family in earlier)
        if of.made is not None and of.made < begun and not judged_before:
            wanted[claim] = of
    return wanted


@cache
def _committed(name: str, profile: str) -> Mapping[int, ClaimFamily]:
    """Return the family as listed in this suite's committed runs, by the first seed of the block."""
    families: dict[int, ClaimFamily] = {}
    keys = sorted({key for declared in _of_name(name, profile).values() for key in declared.keys})
    for key in keys:
        for path in sorted((COMMITTED / "reference" / key).glob("seed=[1-9][0-9][0-9].json.gz")):
            first = first_seed_of(int(path.name[5:8]))
            if first not in families and (family := _family_in(path, name)) is not None:
                families[first] = family
    return families


def _family_in(path: Path, name: str) -> ClaimFamily | None:
    try:
        return families_in(read_copy(path).manifest).get(name)
    except DataError:  # `fssl verify` reports it
        return None


@cache
def _registered(name: str, profile: str) -> Mapping[str, _Registered]:
    """Return the claims of the family by hash."""
    return {hash: claim for of in _of_name(name, profile).values() for hash, claim in _claims_of(of).items()}


def _of_name(name: str, profile: str) -> Mapping[tuple[str, int], Declared]:
    if profile not in PROFILES:
        return {}
    papers = dict.fromkeys(item.partition("/")[0] for item in ITEMS)
    families = (entry for paper in papers for entry in families_at(paper, profile).items())
    return {key: of for key, of in families if of.name == name}


def _claims_of(declared: Declared) -> Mapping[str, _Registered]:
    claims = {}
    for item, claim in declared.owners.values():
        if claim.endpoint != "arithmetic":
            made = claim.made and (claim.made if claim.made.tzinfo else claim.made.replace(tzinfo=UTC))
            claims[item.hash_of(claim)] = _Registered(name=claim.name, main=claim.main, made=made)
    return claims
