"""Every item that `fssl reproduce` knows, by name."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.papers import arena, fedswitch, rscfed, sage, semifl, ssfl
from benchmark.papers.claim_dates import registered
from benchmark.papers.item import CONFIRMING, Item
from benchmark.papers.own import read_own
from benchmark.papers.scale import PROFILES, profile_of
from benchmark.papers.switches import departures
from benchmark.papers.table import AS_PRINTED, Rule, Variant
from benchmark.papers.table import items as items_of

PAPERS = {"ssfl": ssfl, "semifl": semifl, "rscfed": rscfed, "fedswitch": fedswitch, "sage": sage, "arena": arena}
WITH_SWITCHES = (ssfl.PAPER, semifl.PAPER, rscfed.PAPER, fedswitch.PAPER, sage.PAPER)
_OF_PAPERS = {f"{paper}/{name}": build for paper, module in PAPERS.items() for name, build in module.ITEMS.items()}
_DEPARTURES = {f"{paper.name}/departures": partial(departures, paper) for paper in WITH_SWITCHES}
ITEMS: Mapping[str, Callable[..., Item]] = {**_OF_PAPERS, **_DEPARTURES}
# Papers' items as variants build them, "rscfed/fig2-plain": each is chosen by its own name alone.
VARIANTS: dict[str, Callable[..., Item]] = {}
VARIANT_OF: dict[str, Variant] = {}
for _paper in WITH_SWITCHES:
    for _variant in _paper.variants:
        _built = replace(_paper, experiment=_variant.experiment, variants=(), confirms_from=CONFIRMING.start)
        _builders = items_of(_built, PAPERS[_paper.name].ITEMS)
        if _variant.switches:
            _builders["departures"] = partial(departures, _built)
        for _name, _build in _builders.items():
            _full = f"{_paper.name}/{_name}{_variant.suffix}"
            VARIANTS[_full], VARIANT_OF[_full] = partial(_variant.item, _build), _variant
# Questions of the suite's own: chosen by name, or with all, but not with the paper.
OURS = frozenset(name for name in ITEMS if name.endswith("/departures"))


def profiles(name: str) -> tuple[str, ...]:
    """The profiles in which the runs of that item differ."""
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
    """The items of these names, each once: "ssfl/tab2", "ssfl" for a whole paper without OURS, "all".

    A name that ends with .toml is the file of an item of one's own.
    Where an item's runs under that profile would be those of a smaller one, it is the item of the smaller profile.

    `also`: more methods for the arena's items, by name ("my_module:MyMethod").
    `also_quoted`: cells that the paper quotes, which are else only shown, are trained too.
    `rule`: "paper" takes the print where the released code contradicts it, for the papers that have both.
    Raises ConfigError.
    """
    entries = [arena.arena_method(name) for name in also]
    files = [name for name in dict.fromkeys(names) if name.endswith(".toml")]
    if files and (entries or rule == "paper"):
        raise ConfigError(f"{files[0]}: has all its methods and fields in the file; leave out --also and --rule")
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
                f"--also: {name} compares what its paper compares; choose arena/digits or another of the arena"
            )
        if name in VARIANTS and profile not in profiles(name):
            own = " or ".join(profiles(name))
            raise ConfigError(f"{name}: profile {profile} has a stand-in's own numbers; choose --profile {own}")
    builders = {**ITEMS, **VARIANTS}
    own_profiles = {name: profile_of(profile, profiles(name)) for name in chosen}
    built = [read_own(name, profile, cell_named) for name in files]
    for name, own in own_profiles.items():
        built.append(builders[name](own, entries) if entries else item_of(builders[name], own))
    return [item.with_quoted() for item in built] if also_quoted else built


@cache
def item_of(build: Callable[..., Item], profile: str) -> Item:
    """Build the item once, with each claim's own date: a report asks for every item several times."""
    return registered(build(profile))


def cell_named(name: str, profile: str) -> Experiment:
    """The experiment of "ITEM:LABEL". Raises ConfigError."""
    item_name, _, label = name.partition(":")
    named = items([item_name], profile)
    if len(named) != 1:
        raise ConfigError(f"cell: {item_name!r} is more than one item; write ITEM:LABEL")
    labels = [cell.label for cell in named[0].cells]
    if label not in labels:
        raise ConfigError(f"cell: {item_name} has no cell {label!r}; {nearest(label, labels)}")
    return named[0].cell(label).experiment


def _printed(name: str) -> str:
    printed = f"{name.removesuffix(AS_PRINTED)}{AS_PRINTED}"
    if printed not in VARIANTS:
        raise ConfigError(f"--rule paper: {name} has one rule; choose an item of ssfl")
    return printed
