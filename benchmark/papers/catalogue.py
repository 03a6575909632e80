"""Every item that `fssl reproduce` knows, by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.papers import arena, fedswitch, rscfed, semifl, ssfl
from benchmark.papers.arena_entries import entry_of
from benchmark.papers.item import Item
from benchmark.papers.scale import PROFILES, profile_of
from benchmark.papers.ssfl_departures import departures
from benchmark.papers.table import Rule

PAPERS = {"ssfl": ssfl, "semifl": semifl, "rscfed": rscfed, "fedswitch": fedswitch, "arena": arena}
ITEMS: Mapping[str, Callable[..., Item]] = {
    f"{paper}/{name}": build for paper, module in PAPERS.items() for name, build in module.ITEMS.items()
} | {"ssfl/departures": departures}
TWO_RULES = [name for name, module in PAPERS.items() if getattr(module, "PAPER", None) and module.PAPER.printed]
PRINTED = frozenset(f"{paper}/{name}" for paper in TWO_RULES for name in PAPERS[paper].ITEMS)  # with `rule="paper"`
OURS = frozenset({"ssfl/departures"})  # beside a paper's own items: by its name, or with all, but not with the paper


def profiles(name: str) -> tuple[str, ...]:
    """The profiles in which the runs of that item differ."""
    paper, _, item = name.partition("/")
    return arena.PROFILES[item] if paper == "arena" else PROFILES


def items(
    names: Iterable[str],
    profile: str,
    also: Sequence[str] = (),
    *,
    also_quoted: bool = False,
    rule: Rule = "released_code",
) -> list[Item]:
    """The items of these names ("ssfl/tab2", "ssfl" for a whole paper, "all"), each once; a paper's name
    stands for what the paper has, not for OURS beside it. Raises ConfigError.

    Where an item's runs under that profile would be those of a smaller one, it is the item of the smaller one.

    `also`: more methods for the arena's items, by name ("my_module:MyMethod"); other items know no such thing.
    `also_quoted`: cells that are else only shown, because the paper quotes them, are trained too.
    `rule`: "paper" takes the print where the released code contradicts it, for the papers that have both.
    """
    entries = [entry_of(name) for name in also]
    chosen: dict[str, None] = {}
    for name in names:
        found = [item for item in ITEMS if name in ("all", item) or (name == item.split("/")[0] and item not in OURS)]
        if not found:
            raise ConfigError(f"unknown item {name!r}; {nearest(name, [*PAPERS, *ITEMS, 'all'])}")
        chosen.update(dict.fromkeys(found))
    if others := [name for name in chosen if not name.startswith("arena/")] if entries else []:
        raise ConfigError(
            f"--also: {others[0]} compares what its paper compares; choose arena/digits or another of the arena"
        )
    if rule == "paper" and (others := [name for name in chosen if name not in PRINTED]):
        raise ConfigError(f"--rule paper: {others[0]} has one rule; choose an item of {', '.join(TWO_RULES)}")
    more = {"rule": rule} if rule == "paper" else {}
    built = [
        ITEMS[name](profile_of(profile, profiles(name)), *([entries] if entries else []), **more) for name in chosen
    ]
    return [item.with_quoted() for item in built] if also_quoted else built
