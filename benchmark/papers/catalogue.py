"""Every item that `fssl reproduce` knows, by name."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.papers import arena, ssfl
from benchmark.papers.arena_entries import entry_of
from benchmark.papers.item import Item
from benchmark.papers.ssfl_departures import departures

ITEMS: Mapping[str, Callable[..., Item]] = {
    f"{paper}/{name}": build
    for paper, module in (("ssfl", ssfl), ("arena", arena))
    for name, build in module.ITEMS.items()
} | {"ssfl/departures": departures}
OURS = frozenset({"ssfl/departures"})  # beside a paper's own items: by its name, or with all, but not with the paper


def items(names: Iterable[str], profile: str, also: Sequence[str] = (), *, also_quoted: bool = False) -> list[Item]:
    """The items of these names ("ssfl/tab2", "ssfl" for a whole paper, "all"), each once; a paper's name
    stands for what the paper has, not for OURS beside it. Raises ConfigError.

    `also`: more methods for the arena's items, by name ("my_module:MyMethod"); other items know no such thing.
    `also_quoted`: cells that are else only shown, because the paper quotes them, are trained too.
    """
    entries = [entry_of(name) for name in also]
    chosen: dict[str, None] = {}
    for name in names:
        found = [item for item in ITEMS if name in ("all", item) or (name == item.split("/")[0] and item not in OURS)]
        if not found:
            raise ConfigError(f"{name!r} is no item; {nearest(name, ITEMS)}, a paper or all")
        chosen.update(dict.fromkeys(found))
    if others := [name for name in chosen if not name.startswith("arena/")] if entries else []:
        raise ConfigError(f"--also: {others[0]} compares what its paper compares; arena/digits would be right")
    built = [ITEMS[name](profile, *([entries] if entries else [])) for name in chosen]
    return [item.with_quoted() for item in built] if also_quoted else built
