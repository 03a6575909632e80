"""List all items that `fssl reproduce` accepts, and build them by name."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers import arena, fedswitch, rscfed, sage, semifl, ssfl
from benchmark.papers.claim_dates import registered
from benchmark.papers.item import Item
from benchmark.papers.own import read_own
from benchmark.papers.paper import BY_THE_PAPER, Rule, Variant
from benchmark.papers.scale import PROFILES, profile_of
from benchmark.papers.switches import departures
from benchmark.papers.table import items as items_of

PAPERS = {"ssfl": ssfl, "semifl": semifl, "rscfed": rscfed, "fedswitch": fedswitch, "sage": sage, "arena": arena}
WITH_SWITCHES = (ssfl.PAPER, semifl.PAPER, rscfed.PAPER, fedswitch.PAPER, sage.PAPER)
_OF_PAPERS = {f"{paper}/{name}": build for paper, module in PAPERS.items() for name, build in module.ITEMS.items()}
_DEPARTURES = {f"{paper.name}/departures": partial(departures, paper) for paper in WITH_SWITCHES}
ITEMS: Mapping[str, Callable[..., Item]] = {**_OF_PAPERS, **_DEPARTURES}
# The papers' items as variants build them, such as "rscfed/fig2-plain". A variant is only selected by this name.
VARIANTS: dict[str, Callable[..., Item]] = {}
VARIANT_OF: dict[str, Variant] = {}
for _paper in WITH_SWITCHES:
    for _variant in _paper.variants:
        _built = _variant.applied(_paper)
        _builders = items_of(_built, _variant.items or PAPERS[_paper.name].ITEMS)
        if _variant.switches:
            _builders["departures"] = partial(departures, _built)
        for _name, _build in _builders.items():
            _full = f"{_paper.name}/{_name}{_variant.suffix}"
            VARIANTS[_full], VARIANT_OF[_full] = partial(_variant.item, _build), _variant


def base_of(name: str) -> str:
    """Return the item that this one repeats in a further reduced setting: "ssfl/tab2" for "ssfl/tab2-cifar10".

    The result is empty for all other items.
    """
    variant = VARIANT_OF.get(name)
    return name.removesuffix(variant.suffix) if variant and variant.is_further_setting else ""


# Questions of our own: they are selected by their name or by "all", but not by the paper's name.
OURS = frozenset(name for name in ITEMS if name.endswith("/departures"))


def profiles(name: str) -> tuple[str, ...]:
    """Return the profiles with different runs of the item."""
    if variant := VARIANT_OF.get(name):
        return variant.profiles
    paper, _, item = name.partition("/")
    own: Mapping[str, tuple[str, ...]] = getattr(PAPERS[paper], "OWN_PROFILES", {})
    return own.get(item, PROFILES)


def items(
    names: Collection[str],
    profile: str,
    also: Sequence[str] = (),
    *,
    also_quoted: bool = False,
    rule: Rule = "released_code",
) -> list[Item]:
    """Build the items with these names, each once: "ssfl/tab2", "ssfl" for the whole paper without OURS, or "all".

    A name that ends with .toml is the file of a custom table. If an item's runs under the profile
    would equal the runs under a smaller profile, the item is built under the smaller one.

    `also` names further methods for the items of the method comparison ("my_module:MyMethod"). With
    `also_quoted`, cells that the paper cites from a different paper are trained. `rule="paper"`
    follows the paper where the released code contradicts it, for the papers that have both
    variants. Raise ConfigError for an unknown name or combination.
    """
    entries = [arena.arena_method(name) for name in also]
    files = [name for name in dict.fromkeys(names) if name.endswith(".toml")]
    if files and (entries or rule == "paper"):
        raise ConfigError(f"{files[0]} defines all its methods and fields itself; leave out --also and --rule")
    chosen: dict[str, None] = {}
    for name in (name for name in names if name not in files):
        matches = [one for one in ITEMS if name in ("all", one) or (name == one.split("/")[0] and one not in OURS)]
        matches = [name] if name in VARIANTS else matches
        if not matches:
            raise ConfigError(f"unknown item {name!r}; {nearest(name, [*PAPERS, *ITEMS, *VARIANTS, 'all'])}")
        chosen.update(dict.fromkeys(matches if rule == "released_code" else map(_printed, matches)))
    for name in chosen:
        if entries and not name.startswith("arena/"):
            raise ConfigError(
                f"--also adds a method only to the method comparison, not to {name}; choose arena/digits or a "
                "different arena item"
            )
        if name in VARIANTS and profile not in profiles(name):
            own = " or ".join(profiles(name))
            raise ConfigError(f"{name} has no settings for profile {profile}; choose --profile {own}")
    builders = {**ITEMS, **VARIANTS}
    own_profiles = {name: profile_of(profile, profiles(name)) for name in chosen}
    built = [read_own(name, profile, cell_named) for name in files]
    for name, own in own_profiles.items():
        built.append(builders[name](own, entries) if entries else item_of(builders[name], own))
    return [item.with_quoted() for item in built] if also_quoted else built


@cache
def item_of(build: Callable[..., Item], profile: str) -> Item:
    """Build the item once, with the registration date of each claim: a report asks for every item several times."""
    return registered(build(profile))


def cell_named(name: str, profile: str) -> Experiment:
    """Return the experiment of "ITEM:LABEL". Raise ConfigError if there is no such cell."""
    item_name, _, label = name.partition(":")
    named = items([item_name], profile)
    if len(named) != 1:
        raise ConfigError(f"cell {item_name!r} names more than one item; write ITEM:LABEL")
    labels = [cell.label for cell in named[0].cells]
    if label not in labels:
        raise ConfigError(f"{item_name} has no cell {label!r}; {nearest(label, labels)}")
    return named[0].cell(label).experiment


def _printed(name: str) -> str:
    by_the_paper = f"{name.removesuffix(BY_THE_PAPER)}{BY_THE_PAPER}"
    if by_the_paper not in VARIANTS:
        raise ConfigError(f"--rule paper does not apply to {name}, which has only one rule; choose an item of ssfl")
    return by_the_paper
