"""Which claims are judged together, and by which seeds.

Seeds 0 to 99 explore (pilots: shown, never judged), from 100 they confirm, from 1000 they tune. A family is the claims
of one paper at one profile, each distinct contrast once. Its first confirming run closes it: every run carries in its
manifest the hashes of the claims that it was begun under. Runs are deterministic, so what a seed says is known once it
has run: a claim that is made or reworded later is of the next family, on the next hundred of seeds.
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
from benchmark.papers.scale import profile_of
from benchmark.records.files import read_json
from benchmark.records.record import read_copy
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
    variant = variant_of(item.name)
    return Group(paper=item.name.partition("/")[0], suffix=variant.suffix if variant else "", profile=item.profile)


def manifest_name(item: Item) -> str:
    """What manifests call the item's family."""
    return group_of(item).manifest_name


def owner(item: Item, claim: Claim) -> tuple[Item, Claim]:
    """Where the claim is judged: the first claim of the paper at the profile on the same contrast of cells."""
    return _owners(item).get(_contrast(item, claim), (item, claim))


def hash_of(item: Item, claim: Claim) -> str:
    """The claim's; of a contrast that stands in several places, its owner's."""
    place, one = owner(item, claim)
    return place.hash_of(one)


def declared(item: Item) -> Family:
    """The family of the item's paper at its profile, as its claims stand now."""
    owners = _owners(item).values()
    main, others = (
        tuple(place.hash_of(one) for place, one in owners if one.main is main and one.endpoint != "arithmetic")
        for main in (True, False)
    )
    return Family(main=main, others=others)


def _owners(item: Item) -> Mapping[object, tuple[Item, Claim]]:
    return _owners_of(group_of(item)) if _is_known(item) else _first_of((item,))


def _is_known(item: Item) -> bool:
    """Whether it is an item of the suite; a test's or a user's is alone in its family."""
    return item.name in ITEMS or item.name in VARIANTS


@cache
def _owners_of(group: Group) -> Mapping[object, tuple[Item, Claim]]:
    owners = _first_of(_items_of(group))
    places = {place.name for place, claim in owners.values() if claim.main}
    if len(places) > 1:
        name = group.manifest_name
        raise ConfigError(f"main claims of {name} stand in {', '.join(places)}; choose one item for all of them")
    return owners


def _first_of(items: tuple[Item, ...]) -> Mapping[object, tuple[Item, Claim]]:
    found: dict[object, tuple[Item, Claim]] = {}
    for item in items:
        for claim in item.claims:
            found.setdefault(_contrast(item, claim), (item, claim))
    return found


def _contrast(item: Item, claim: Claim) -> object:
    return item.contrasts_of(claim), claim.form, claim.endpoint, claim.metric


@cache
def _items_of(group: Group) -> tuple[Item, ...]:
    """The items whose runs have that profile."""
    builders = {
        name: build
        for name, build in (*ITEMS.items(), *VARIANTS.items())
        if name.partition("/")[0] == group.paper and _suffix_of(name) == group.suffix
    }
    return tuple(
        item_of(build, group.profile)
        for name, build in builders.items()
        if profile_of(group.profile, profiles(name)) == group.profile
    )


def _suffix_of(name: str) -> str:
    variant = variant_of(name)
    return variant.suffix if variant else ""


@cache
def _groups(profile: str) -> Mapping[Group, frozenset[str]]:
    """Those with claims at a profile, and the keys of all cells of each."""
    known = dict.fromkeys((name.partition("/")[0], _suffix_of(name)) for name in (*ITEMS, *VARIANTS))
    groups = [Group(paper=paper, suffix=suffix, profile=profile) for paper, suffix in known]
    return {group: _keys(_items_of(group)) for group in groups if any(item.claims for item in _items_of(group))}


def _keys(items: tuple[Item, ...]) -> frozenset[str]:
    cells = {cell.cell_key for item in items for cell in item.cells}
    return frozenset(cells | {run.cell_key for item in items for one in item.choices for run in one.finals.values()})


# What runs were begun under


def begun_under(experiment: Experiment, results: Path) -> dict[str, Any]:
    """For the manifest of a run that begins now: "claims" and "rule". Nothing for seeds that do not confirm.

    Claims are each family of its cell, as closed on its hundred of seeds; the run closes it where there is none.
    """
    if experiment.seed not in CONFIRMING:
        return {}
    first = first_seed_of(experiment.seed)
    families = {}
    for group in _groups_of(experiment.cell_key, experiment.profile, experiment.seed):
        closed_before = _closed(results, group.manifest_name, _groups(experiment.profile)[group])
        family = closed_before.get(first) or _left(declared(_items_of(group)[0]), closed_before, first)
        families[group.manifest_name] = {"main": list(family.main), "others": list(family.others)}
    return {"claims": families, "rule": rule()} if families else {}


def _groups_of(cell_key: str, profile: str, seed: int) -> list[Group]:
    """Those that have the cell, and whose claims that seed can judge."""
    return [
        group
        for group, keys in _groups(profile).items()
        if cell_key in keys and seed >= _items_of(group)[0].confirms_from
    ]


def families_of(cell_key: str, profile: str, seed: int) -> set[str]:
    """What the manifest of a run of that cell and seed names."""
    return {group.manifest_name for group in _groups_of(cell_key, profile, seed)}


def first_seed_of(seed: int) -> int:
    """Of its hundred."""
    return seed - seed % SEEDS


def closed(item: Item, results: Path) -> dict[int, Family]:
    """The families of the item's paper at its profile that have runs, by their first seed."""
    keys = _keys(_items_of(group_of(item)) if _is_known(item) else (item,))
    return _closed(results, manifest_name(item), keys)


def family_of(item: Item, claim: Claim, families: Mapping[int, Family]) -> tuple[int, Family]:
    """The first seed and the family of the runs that judge the claim: of its closed family, or of the next hundred."""
    for first, family in sorted(families.items()):
        if hash_of(item, claim) in family:
            return first, family
    following = max([item.confirms_from - SEEDS, *families]) + SEEDS
    if following not in CONFIRMING:
        raise ConfigError(f"all seeds from {CONFIRMING.start} to {CONFIRMING.stop - 1} have judged other claims")
    return following, _left(declared(item), families, following)


def _left(family: Family, families: Mapping[int, Family], first: int) -> Family:
    """Without the claims that earlier hundreds judge."""
    for start, earlier in families.items():
        family = family.without(earlier) if start < first else family
    return family


def _closed(results: Path, name: str, keys: frozenset[str]) -> dict[int, Family]:
    found: dict[int, Family] = {}
    for first, path in _confirming_runs(results, keys):
        if first not in found and (family := families_in(_manifest(path)).get(name)) is not None:
            found[first] = family
    return found


def _confirming_runs(results: Path, keys: frozenset[str]) -> Iterator[tuple[int, Path]]:
    """The first seed of its hundred, and the file that has the manifest."""
    for place, end in (("runs", "/manifest.json"), ("reference", ".json.gz")):
        for key in sorted(keys):
            for path in sorted((results / place / key).glob(f"seed=[1-9][0-9][0-9]{end}")):
                seed = (path.parent if place == "runs" else path).name.removeprefix("seed=")[:3]
                yield first_seed_of(int(seed)), path


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        return read_copy(path).manifest if path.suffix == ".gz" else read_json(path) or {}
    except (FsslError, OSError):  # `fssl verify` tells of it
        return {}


def families_in(manifest: Mapping[str, Any]) -> dict[str, Family]:
    """The families that a run was begun under, by name; none for runs that do not confirm."""
    return {
        name: Family(main=tuple(family["main"]), others=tuple(family["others"]))
        for name, family in manifest.get("claims", {}).items()
    }
