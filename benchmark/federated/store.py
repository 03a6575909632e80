"""What clients keep between rounds, by keeper: in memory up to a bound, beyond it in files.

A `ClientStore` never changes what it holds: a round works on a `Draft`, and what it left makes the next store, which
shares all else with the one before. So a checkpoint that has yet to be written holds the state of its own round.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from benchmark.federated.trees import copied, tree_bytes
from benchmark.methods.protocol import Tree

MEMORY = 64 << 20  # bytes of private state that stay in memory; the state of the round's clients comes on top


class Shelf(Protocol):
    """Where trees go that do not stay in memory."""

    def put(self, keeper: str, tree: Tree) -> str:
        """Write the tree; the name under which `get` finds it."""
        ...

    def get(self, keeper: str, name: str) -> Tree:
        """The tree, whose tensors may be a file's content; nobody writes to them."""
        ...


class Slot:
    """One keeper's tree: in memory, on the shelf (`name`), or both. Where it is may change; what it is never does."""

    __slots__ = ("tree", "name", "size")

    def __init__(self, tree: Tree | None, name: str | None = None) -> None:
        self.tree, self.name = tree, name
        self.size = 0 if tree is None else 1 + tree_bytes(tree)  # no tree is free


class ClientStore(Mapping[str, Tree]):
    """Trees by keeper, those that changed last at the end. Without a shelf all stay in memory.

    `memory` is in bytes. `names`: trees that lie on the shelf already. What `store[keeper]` gives must not be changed:
    it may be shared with a checkpoint, or be a file.
    """

    def __init__(
        self,
        trees: Mapping[str, Tree] | None = None,
        *,
        names: Mapping[str, str] | None = None,
        shelf: Shelf | None = None,
        memory: int = MEMORY,
    ) -> None:
        self.shelf, self.memory = shelf, memory
        self._slots = {keeper: Slot(None, name) for keeper, name in (names or {}).items()}
        self._slots.update((keeper, Slot(tree)) for keeper, tree in (trees or {}).items())
        self._relieve()

    def __getitem__(self, keeper: str) -> Tree:
        slot = self._slots[keeper]
        if slot.tree is not None:
            return slot.tree
        assert self.shelf is not None and slot.name is not None  # it left memory by way of the shelf
        return self.shelf.get(keeper, slot.name)

    def __contains__(self, keeper: object) -> bool:
        return keeper in self._slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def in_memory(self) -> int:
        """Bytes of the tensors that are held in memory."""
        return sum(slot.size for slot in self._slots.values() if slot.tree is not None)

    def after(self, clients: Mapping[str, Tree]) -> "ClientStore":
        """The store after a round that left these: a draft of this store, or whatever else a method made of it."""
        found = ClientStore(shelf=self.shelf, memory=self.memory)
        if isinstance(clients, Draft) and clients.store is self:
            changed = clients.written
            found._slots = {keeper: slot for keeper, slot in self._slots.items() if keeper not in changed}
        else:
            changed = dict(clients)
        found._slots.update((keeper, Slot(tree)) for keeper, tree in changed.items())
        found._relieve()
        return found

    def shelved(self) -> tuple[dict[str, Tree], dict[str, str]]:
        """For a checkpoint: what to write into it, and the names of what is on the shelf.

        Once anything has left memory, everything goes to the shelf: then a checkpoint writes the trees that changed
        since the last one, and names.
        """
        if self.shelf is None or all(slot.name is None for slot in self._slots.values()):
            return dict(self), {}
        return {}, {keeper: self._named(keeper, slot) for keeper, slot in self._slots.items()}

    def _named(self, keeper: str, slot: Slot) -> str:
        if slot.name is None:
            assert self.shelf is not None and slot.tree is not None
            slot.name = self.shelf.put(keeper, slot.tree)
        return slot.name

    def _relieve(self) -> None:
        """Let go of what changed longest ago, until the rest is within bounds."""
        excess = self.in_memory - self.memory
        if self.shelf is None or excess <= 0:
            return
        for keeper, slot in self._slots.items():
            if slot.tree is not None and slot.size > 0:
                self._named(keeper, slot)
                slot.tree = None
                excess -= slot.size
            if excess <= 0:
                return


class Draft(ChainMap[str, Tree]):
    """A store as a round in progress sees and changes it; the store itself stays as it is.

    `get` gives a copy, because local work may change its tensors in place (`Training.private`).
    """

    def __init__(self, store: ClientStore) -> None:
        self.store, self.written = store, dict[str, Tree]()
        super().__init__(self.written, store)  # type: ignore[arg-type]  # which is only read

    def get(self, keeper: str, default: Any = None) -> Any:
        return copied(self[keeper]) if keeper in self else default
