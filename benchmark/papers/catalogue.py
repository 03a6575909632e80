"""Every item that `fssl reproduce` knows, by name."""

from collections.abc import Callable, Iterable, Mapping

from benchmark.config import nearest
from benchmark.errors import ConfigError
from benchmark.papers import ssfl
from benchmark.papers.item import Item

ITEMS: Mapping[str, Callable[[str], Item]] = {f"ssfl/{name}": build for name, build in ssfl.ITEMS.items()}


def items(names: Iterable[str], profile: str) -> list[Item]:
    """The items of these names ("ssfl/tab2", "ssfl" for a whole paper, "all"), each once. Raises ConfigError."""
    chosen: dict[str, None] = {}
    for name in names:
        found = [item for item in ITEMS if name in ("all", item, item.split("/")[0])]
        if not found:
            raise ConfigError(f"{name!r} is no item; {nearest(name, ITEMS)}, a paper or all")
        chosen.update(dict.fromkeys(found))
    return [ITEMS[name](profile) for name in chosen]
