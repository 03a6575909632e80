"""Find the family of claims that share an error rate, and the seeds that judge each claim.

Seeds 0 to 99 are exploratory: they are shown and never judged. Seeds 100 to 999 are confirmatory,
and seeds from 1000 are for tuning. A family contains the claims of one paper at one profile, each
distinct contrast once. The first confirmatory run closes the family: the manifest of every
confirmatory run contains the hashes of the claims that existed when it began. Runs are
deterministic, so that the result of a seed is known once it has run. A claim that is made or
reworded later is therefore judged by the next seed block of 100 seeds.

Example: a paper has claims A and B when its first confirmatory run begins, with seed 100. Its
family {A, B} is closed and judged by seeds 100 to 199. Claim C is added later. Seeds 100 to 131 may
already have run, so that C could have been written to fit them. C forms the family {C} and is
judged by seeds 200 to 299. If B is reworded, its hash changes: the new B also belongs to the second
block, and the old one stays in the first family, so that its error stays spent.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError, FsslError
from benchmark.experiment import Experiment
from benchmark.files import read_json, write_atomically
from benchmark.papers.item import CONFIRMING, Claim, ClaimFamily, Item
from benchmark.papers.items import ITEMS, VARIANTS, item_of, profiles
from benchmark.papers.scale import PROFILES, profile_of
from benchmark.records.copies import read_copy, reference_folders
from benchmark.records.identity import read_manifest
from benchmark.records.record import Records
from benchmark.records.schema import Wanted, check
from benchmark.verdicts.rule import FAMILY_ERROR, SEEDS, rule

OWN_FOLDER = "own"  # subfolder of the results folder
NOTED: Wanted = {
    "name": "text",
    "profile": "text",
    "path": "text",
    "file": "text",
    "keys": ["text"],
    "main": ["text"],
    "others": ["text"],
}
AGAIN = "remove it, and `fssl reproduce` of its table will write it again"


@dataclass(frozen=True, kw_only=True)
class SeedBlock:
    """100 consecutive confirmatory seeds that judge one family of claims."""

    first: int = CONFIRMING.start
    number: int = 1  # counts the blocks of a paper from 1

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + SEEDS)

    @property
    def error(self) -> float:
        """Return the error of the claims that the block judges, so that all later blocks together have half of the
        first block's error.
        """
        return FAMILY_ERROR if self.number == 1 else FAMILY_ERROR / 2**self.number


@dataclass(frozen=True, kw_only=True, eq=False)
class Declared:
    """The claims of one family as they are now: of a paper at a profile, of a variant of it, or of a custom table."""

    name: str  # its name in manifests: "ssfl demo", "ssfl-printed gpu"
    keys: frozenset[str]  # keys of its cells
    claims: ClaimFamily
    # The first claim on each contrast, because a contrast that several items share is judged once. It is empty for
    # the stored claims of a custom table.
    owners: Mapping[object, tuple[Item, Claim]] = field(default_factory=dict)


def declared_by(items: Sequence[Item]) -> Declared:
    """Return the family that these items declare together. Raise ConfigError if several of them
    have primary claims.
    """
    owners: dict[object, tuple[Item, Claim]] = {}
    for item in items:
        for claim in item.claims:
            owners.setdefault(_contrast(item, claim), (item, claim))
    with_main = {item.name for item, claim in owners.values() if claim.main}
    if len(with_main) > 1:
        names = ", ".join(with_main)
        raise ConfigError(f"the tables {names} all have primary claims of {items[0].family}; move them into one table")
    # So that no claim waits for a withdrawn primary claim.
    owned = sorted(owners.values(), key=lambda owner: bool(owner[1].withdrawn))
    judged = [(claim.main, item.hash_of(claim)) for item, claim in owned if claim.endpoint != "arithmetic"]
    main = tuple(claim for is_main, claim in judged if is_main)
    others = tuple(claim for is_main, claim in judged if not is_main)
    cells = {cell.cell_key for item in items for cell in item.cells}
    chosen = {run.cell_key for item in items for choice in item.choices for run in choice.finals.values()}
    claims = ClaimFamily(main=main, others=others)
    return Declared(name=items[0].family, keys=frozenset(cells | chosen), claims=claims, owners=owners)


@cache
def families_at(paper: str, profile: str) -> Mapping[tuple[str, int], Declared]:
    """Return a paper's families at a profile, by name and first seed, from the items with runs of that profile."""
    items: dict[tuple[str, int], list[Item]] = defaultdict(list)
    for name, build in (*ITEMS.items(), *VARIANTS.items()):
        if name.partition("/")[0] == paper and profile_of(profile, profiles(name)) == profile:
            item = item_of(build, profile)
            items[item.family, item.confirms_from].append(item)
    return {key: declared_by(of_family) for key, of_family in items.items()}


def note_own(items: Iterable[Item], results: Path) -> None:
    """Store the claims of custom tables, and the text of their files, for the runs that will judge them.

    Raise ConfigError if a different file with the same name already has a table in these results.
    """
    for item in items:
        if item.typed:
            file = Path(item.typed).resolve()
            declared = declared_family(item)
            place = results / OWN_FOLDER / f"{item.family.replace('/', '-').replace(' ', '-')}.json"
            before = Path(noted_own(place)["path"]).resolve() if place.is_file() else file
            if before != file and before.is_file():
                raise ConfigError(
                    f"{item.typed} has the same name as {before}, which already has results; rename one of them"
                )
            noted = {
                "name": item.family,
                "keys": sorted(declared.keys),
                "main": declared.claims.main,
                "others": declared.claims.others,
                "profile": item.profile,
                "path": str(file),
                "file": file.read_text("utf-8-sig"),
            }
            write_atomically(place, json.dumps(noted, indent=1).encode())


def noted_own(path: Path) -> dict[str, Any]:
    """Read one of the files that `note_own` wrote. Raise DataError if it is damaged."""
    noted: dict[str, Any] = check(read_json(path), NOTED, f"{path}", AGAIN)
    return noted


def _own_families(results: Path) -> Iterator[Declared]:
    """Yield the stored families of custom tables. Raise DataError if a file is damaged."""
    for noted in map(noted_own, own_files(results)):
        if noted["main"] or noted["others"]:
            claims = ClaimFamily(main=tuple(noted["main"]), others=tuple(noted["others"]))
            yield Declared(name=noted["name"], keys=frozenset(noted["keys"]), claims=claims)


def own_files(results: Path) -> list[Path]:
    return sorted((results / OWN_FOLDER).glob("*.json"))


def declared_family(item: Item) -> Declared:
    """Return the family of the item's claims; an item that is not in the catalogue forms a separate family."""
    if item.name not in ITEMS and item.name not in VARIANTS:
        return declared_by([item])
    return families_at(item.name.partition("/")[0], item.profile)[item.family, item.confirms_from]


def owner(item: Item, claim: Claim) -> tuple[Item, Claim]:
    """Return the item and claim that are judged for this claim: the paper's first claim at the
    profile on the same contrast.
    """
    return declared_family(item).owners.get(_contrast(item, claim), (item, claim))


def hash_of(item: Item, claim: Claim) -> str:
    """Return the claim's hash; if several items have its contrast, the hash of the claim that is judged."""
    owning_item, owning_claim = owner(item, claim)
    return owning_item.hash_of(owning_claim)


def _contrast(item: Item, claim: Claim) -> object:
    return item.contrasts_of(claim), claim.form, claim.endpoint, claim.metric, claim.replaces


# The family and the seeds of each claim.


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The seeds and the family that judge one claim of an item."""

    claim: Claim
    hash: str  # if several items have its contrast, the hash of the claim that is judged
    judged_in: str  # "ssfl/tab2: Grouping wins", which judges the same contrast; empty if this claim is judged itself
    family: ClaimFamily  # the family of its runs when they began or will begin
    block: SeedBlock  # the seeds that judge it


def assignments(item: Item, records: Records) -> list[Assignment]:
    """Return for each claim, in the item's order, its family, its seeds and the other claims of that family."""
    begun = _families_begun(item, records)
    assigned = []
    for claim in item.claims:
        place, owned = owner(item, claim)
        is_here = (place.name, owned.name) == (item.name, claim.name)
        block, family = judging_family(item, claim, begun)
        assigned.append(
            Assignment(
                claim=claim,
                hash=place.hash_of(owned),
                judged_in="" if is_here else f"{place.name}: {owned.name}",
                family=family,
                block=block,
            )
        )
    return assigned


def _families_begun(item: Item, records: Records) -> dict[int, ClaimFamily]:
    """Return the paper's families that have confirmatory runs, by first seed; the records override
    `closed`.
    """
    families: dict[int, ClaimFamily] = {}
    for cell in item.cells:
        for seed, run in records.get(cell.cell_key, {}).items():
            family = families_in(run.manifest).get(item.family)
            if seed in CONFIRMING and family is not None:
                families.setdefault(first_seed_of(seed), family)
    return {**item.closed, **families}


# The claims that exist when a run begins.


def begun_under(experiment: Experiment, results: Path) -> dict[str, Any]:
    """Return the manifest entries "claims" and "rule" for a run that begins now; nothing if its
    seed is not confirmatory.

    The claims are each family of its cell, as closed for its seed block. If a family is not closed
    yet, this run closes it.
    """
    if experiment.seed not in CONFIRMING:
        return {}
    first = first_seed_of(experiment.seed)
    families = {}
    own = [family for family in _own_families(results) if experiment.cell_key in family.keys]
    of_papers = _declared_families_of(experiment.cell_key, experiment.profile, experiment.seed)
    for declared in (*of_papers, *own):
        earlier = _closed(results, declared)
        family = earlier.get(first) or _without_earlier(declared.claims, earlier, first)
        families[declared.name] = {"main": list(family.main), "others": list(family.others)}
    return {"claims": families, "rule": rule()} if families else {}


def family_names_of_run(cell_key: str, profile: str, seed: int) -> set[str]:
    """Return the names of the families that the manifest of a run of that cell and seed contains."""
    return {declared.name for declared in _declared_families_of(cell_key, profile, seed)}


def _declared_families_of(cell_key: str, profile: str, seed: int) -> list[Declared]:
    """Return the families that contain the cell and have claims that this seed can judge; none for a custom setting."""
    papers = dict.fromkeys(name.partition("/")[0] for name in ITEMS) if profile in PROFILES else ()
    families = [entry for paper in papers for entry in families_at(paper, profile).items()]
    return [of for (_, first), of in families if seed >= first and of.owners and cell_key in of.keys]


def families_in(manifest: Mapping[str, Any]) -> dict[str, ClaimFamily]:
    """Return the families of a run at its start, by name; none for runs that are not confirmatory."""
    return {
        name: ClaimFamily(main=tuple(family["main"]), others=tuple(family["others"]))
        for name, family in manifest.get("claims", {}).items()
    }


# The seed block that judges a claim.


def first_seed_of(seed: int) -> int:
    """Return the first seed of the seed's block."""
    return seed - seed % SEEDS


def closed(item: Item, results: Path) -> dict[int, ClaimFamily]:
    """Return the families of the item's paper at its profile that have runs, by their first seed."""
    return _closed(results, declared_family(item))


def judging_family(item: Item, claim: Claim, families: Mapping[int, ClaimFamily]) -> tuple[SeedBlock, ClaimFamily]:
    """Return the seed block and the family of the runs that judge the claim.

    That is the closed family that contains the claim, or the family of the next unused block. Raise
    ConfigError if all blocks are used.
    """
    for first, family in sorted(families.items()):
        if hash_of(item, claim) in family:
            return _block(item, first), family
    following = max([item.confirms_from - SEEDS, *families]) + SEEDS
    if following not in CONFIRMING:
        raise ConfigError(
            f"no seed block is left for this claim, because all seeds from {CONFIRMING.start} to "
            f"{CONFIRMING.stop - 1} have judged other claims; withdraw it"
        )
    return _block(item, following), _without_earlier(declared_family(item).claims, families, following)


def _block(item: Item, first: int) -> SeedBlock:
    return SeedBlock(first=first, number=1 + (first - item.confirms_from) // SEEDS)


def _without_earlier(family: ClaimFamily, families: Mapping[int, ClaimFamily], first: int) -> ClaimFamily:
    """Return the family without the claims that earlier blocks judge."""
    for start, earlier in families.items():
        family = family.without(earlier) if start < first else family
    return family


def _closed(results: Path, declared: Declared) -> dict[int, ClaimFamily]:
    families: dict[int, ClaimFamily] = {}
    for first, path in _confirming_runs(results, declared.keys):
        if first not in families and (family := families_in(_manifest(path)).get(declared.name)) is not None:
            families[first] = family
    return families


def _confirming_runs(results: Path, keys: frozenset[str]) -> Iterator[tuple[int, Path]]:
    """Yield the first seed of each run's block, and the file that contains its manifest."""
    kinds = [(results / "runs", "/manifest.json"), *((folder, ".json.gz") for folder in reference_folders(results))]
    for cells, end in kinds:
        for key in sorted(keys.intersection(folder.name for folder in cells.glob("*"))):
            for path in sorted((cells / key).glob(f"seed=[1-9][0-9][0-9]{end}")):
                yield first_seed_of(int(path.relative_to(cells / key).parts[0][5:8])), path


def _manifest(path: Path) -> Mapping[str, Any]:
    try:
        return read_copy(path).manifest if path.suffix == ".gz" else read_manifest(path.parent)
    except (FsslError, OSError):  # `fssl verify` reports it
        return {}
