"""Which claims are judged together, and by which seeds.

Seeds 0 to 99 explore (pilots: shown, never judged), seeds from 100 confirm, seeds from 1000 tune. A family is the
claims of one paper at one profile, each distinct contrast once. The family's first confirming run closes it: every run
has in its manifest the hashes of the claims under which it began. Runs are deterministic, so the result of a seed is
known once it has run. A claim that is made or reworded later is therefore judged by the next hundred of seeds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError, FsslError
from benchmark.experiment import Experiment
from benchmark.papers.catalogue import ITEMS, VARIANTS, item_of, profiles, variant_of
from benchmark.papers.item import CONFIRMING, Claim, Family, Item
from benchmark.papers.scale import PROFILES, profile_of
from benchmark.records.copies import read_copy
from benchmark.records.files import read_json
from benchmark.verdicts.rule import SEEDS, rule


@dataclass(frozen=True, kw_only=True)
class Group:
    """The items whose claims are one family: a paper's at a profile, built in one way."""

    paper: str
    suffix: str = ""  # of `VARIANTS`
    profile: str

    @property
    def manifest_name(self) -> str:
        """What manifests call the family: "ssfl demo", "ssfl-printed gpu"."""
        variant = variant_of(f"{self.paper}/{self.suffix}")
        return f"{self.paper}{variant.family if variant else ''} {self.profile}"


def group_of(item: Item) -> Group:
    return Group(paper=item.name.partition("/")[0], suffix=_suffix(item.name), profile=item.profile)


def manifest_name(item: Item) -> str:
    """What manifests call the item's family."""
    return group_of(item).manifest_name


def _suffix(name: str) -> str:
    variant = variant_of(name)
    return variant.suffix if variant else ""


# Owners: a contrast that stands in several items is one claim


def owner(item: Item, claim: Claim) -> tuple[Item, Claim]:
    """Where the claim is judged: the first claim of the paper at the profile on the same contrast of cells."""
    return _owners(item).get(_contrast(item, claim), (item, claim))


def hash_of(item: Item, claim: Claim) -> str:
    """The claim's hash; where its contrast stands in several items, its owner's."""
    owning_item, owning_claim = owner(item, claim)
    return owning_item.hash_of(owning_claim)


def declared(item: Item) -> Family:
    """The family of the item's paper at its profile, as its claims are now."""
    judged = [(place, claim) for place, claim in _owners(item).values() if claim.endpoint != "arithmetic"]
    main, others = (
        tuple(place.hash_of(claim) for place, claim in judged if claim.main is is_main) for is_main in (True, False)
    )
    return Family(main=main, others=others)


def _owners(item: Item) -> Mapping[object, tuple[Item, Claim]]:
    return _owners_in(group_of(item)) if _is_in_catalogue(item) else _first_of_each((item,))


def _is_in_catalogue(item: Item) -> bool:
    """Whether it is an item of the suite; a test's or a user's item is alone in its family."""
    return item.name in ITEMS or item.name in VARIANTS


@cache
def _owners_in(group: Group) -> Mapping[object, tuple[Item, Claim]]:
    owners = _first_of_each(_items_of(group))
    places = {place.name for place, claim in owners.values() if claim.main}
    if len(places) > 1:
        names = ", ".join(places)
        raise ConfigError(f"main claims of {group.manifest_name} are in {names}; choose one item for all of them")
    return owners


def _first_of_each(items: tuple[Item, ...]) -> Mapping[object, tuple[Item, Claim]]:
    """The first claim on each contrast."""
    owners: dict[object, tuple[Item, Claim]] = {}
    for item in items:
        for claim in item.claims:
            owners.setdefault(_contrast(item, claim), (item, claim))
    return owners


def _contrast(item: Item, claim: Claim) -> object:
    return item.contrasts_of(claim), claim.form, claim.endpoint, claim.metric


@cache
def _items_of(group: Group) -> tuple[Item, ...]:
    """The items whose runs have that profile."""
    return tuple(
        item_of(build, group.profile)
        for name, build in (*ITEMS.items(), *VARIANTS.items())
        if name.partition("/")[0] == group.paper and _suffix(name) == group.suffix
        if profile_of(group.profile, profiles(name)) == group.profile
    )


# What a run began under


def begun_under(experiment: Experiment, results: Path) -> dict[str, Any]:
    """For the manifest of a run that begins now: "claims" and "rule"; nothing for seeds that do not confirm.

    The claims are each family of its cell, as closed on its hundred of seeds. Where none is closed, the run closes it.
    """
    if experiment.seed not in CONFIRMING:
        return {}
    first = first_seed_of(experiment.seed)
    families = {}
    for group in _groups_judged_by(experiment.cell_key, experiment.profile, experiment.seed):
        closed_families = _closed(results, group.manifest_name, _groups(experiment.profile)[group])
        family = closed_families.get(first) or _left(declared(_items_of(group)[0]), closed_families, first)
        families[group.manifest_name] = {"main": list(family.main), "others": list(family.others)}
    return {"claims": families, "rule": rule()} if families else {}


def families_of(cell_key: str, profile: str, seed: int) -> set[str]:
    """The families that the manifest of a run of that cell and seed names."""
    return {group.manifest_name for group in _groups_judged_by(cell_key, profile, seed)}


def families_in(manifest: Mapping[str, Any]) -> dict[str, Family]:
    """The families under which a run began, by name; none for runs that do not confirm."""
    return {
        name: Family(main=tuple(family["main"]), others=tuple(family["others"]))
        for name, family in manifest.get("claims", {}).items()
    }


def _groups_judged_by(cell_key: str, profile: str, seed: int) -> list[Group]:
    """The groups that have the cell and whose claims that seed can judge; none for a setting of the user's own."""
    if profile not in PROFILES:
        return []
    return [
        group
        for group, keys in _groups(profile).items()
        if cell_key in keys and seed >= _items_of(group)[0].confirms_from
    ]


@cache
def _groups(profile: str) -> Mapping[Group, frozenset[str]]:
    """The groups with claims at a profile, with the keys of their cells."""
    names = dict.fromkeys((name.partition("/")[0], _suffix(name)) for name in (*ITEMS, *VARIANTS))
    groups = [Group(paper=paper, suffix=suffix, profile=profile) for paper, suffix in names]
    return {group: _keys(_items_of(group)) for group in groups if any(item.claims for item in _items_of(group))}


def _keys(items: tuple[Item, ...]) -> frozenset[str]:
    cells = {cell.cell_key for item in items for cell in item.cells}
    chosen = {run.cell_key for item in items for choice in item.choices for run in choice.finals.values()}
    return frozenset(cells | chosen)


# Which hundred of seeds judges a claim


def first_seed_of(seed: int) -> int:
    """The first seed of its hundred."""
    return seed - seed % SEEDS


def closed(item: Item, results: Path) -> dict[int, Family]:
    """The families of the item's paper at its profile that have runs, by their first seed."""
    keys = _keys(_items_of(group_of(item)) if _is_in_catalogue(item) else (item,))
    return _closed(results, manifest_name(item), keys)


def family_of(item: Item, claim: Claim, families: Mapping[int, Family]) -> tuple[int, Family]:
    """The first seed and the family of the runs that judge the claim: its closed family's, or the next hundred."""
    for first, family in sorted(families.items()):
        if hash_of(item, claim) in family:
            return first, family
    following = max([item.confirms_from - SEEDS, *families]) + SEEDS
    if following not in CONFIRMING:
        raise ConfigError(f"all seeds from {CONFIRMING.start} to {CONFIRMING.stop - 1} have judged other claims")
    return following, _left(declared(item), families, following)


def _left(family: Family, families: Mapping[int, Family], first: int) -> Family:
    """The family without the claims that earlier hundreds judge."""
    for start, earlier in families.items():
        family = family.without(earlier) if start < first else family
    return family


def _closed(results: Path, name: str, keys: frozenset[str]) -> dict[int, Family]:
    families: dict[int, Family] = {}
    for first, path in _confirming_runs(results, keys):
        if first not in families and (family := families_in(_manifest(path)).get(name)) is not None:
            families[first] = family
    return families


def _confirming_runs(results: Path, keys: frozenset[str]) -> Iterator[tuple[int, Path]]:
    """The first seed of each run's hundred, and the file that has its manifest."""
    for folder, end in (("runs", "/manifest.json"), ("reference", ".json.gz")):
        for key in sorted(keys):
            for path in sorted((results / folder / key).glob(f"seed=[1-9][0-9][0-9]{end}")):
                seed = (path.parent if folder == "runs" else path).name.removeprefix("seed=")[:3]
                yield first_seed_of(int(seed)), path


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        return read_copy(path).manifest if path.suffix == ".gz" else read_json(path) or {}
    except (FsslError, OSError):  # `fssl verify` reports it
        return {}
