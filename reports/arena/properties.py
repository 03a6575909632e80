"""What the arena's methods do, one row a method, by the names that the arena gives them."""

from benchmark.papers.item import Item
from benchmark.verdicts.results import Records, seeds_of
from reports.arena.table import method_of, methods
from reports.properties import Mark, Properties, fedswitch_table1, semifl_table2


def arena_properties(item: Item, records: Records) -> tuple[Properties, ...]:
    """FedSwitch's Table 1 and SemiFL's Table 2, for every ranked method of which a run's record says what it handed
    over. Empty where none does."""
    privacy: dict[str, tuple[Mark, ...]] = {}
    training: dict[str, tuple[Mark, ...]] = {}
    heads: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    for method in methods(item):
        cells = [cell for cell in item.cells if cell.role not in ("bound", "ladder") and method_of(cell) == method]
        runs = [record for cell in cells for record in seeds_of(records, cell)]
        first, second = fedswitch_table1(runs), semifl_table2(runs)
        if not first.columns:
            continue
        heads = tuple(first.rows), second.columns
        privacy[method] = tuple(marks[0] for marks in first.rows.values())
        training[method] = tuple(next(iter(second.rows.values())))
    pairs = zip(heads, (privacy, training), strict=True)
    return tuple(Properties(corner="Method", columns=columns, rows=rows) for columns, rows in pairs if rows)
