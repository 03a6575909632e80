"""Print the hash of every claim at one profile for the sources in the working directory, whatever commit they are of.

It is run as a script in an unpacked commit; the formula is today's, and is written here a second time. Claims once had
their first contrast in a field `contrast` of its own.
"""

import hashlib
import json
import sys
from typing import Any


def contrasts_of(claim: Any) -> tuple[dict[str, float], ...]:
    """Read the contrasts of a claim of any commit."""
    first = getattr(claim, "contrast", None)
    return (*([first] if first else []), *(getattr(claim, "contrasts", None) or ()))


def hash_of(claim: Any, keys: dict[str, str]) -> str:
    """Compute the claim's hash; `keys` has the key of each cell by its label."""
    terms = []
    for cells in contrasts_of(claim):
        weights = [(keys.get(label, label), float(weight)) for label, weight in cells.items()]
        terms.append(tuple(sorted(weights)))
    is_main = getattr(claim, "main", False)
    fixed = (claim.quote, claim.source, claim.form, claim.endpoint, claim.metric, float(claim.least), is_main)
    return hashlib.sha256(json.dumps((terms, *fixed)).encode()).hexdigest()[:16]


def hashes(profile: str) -> set[str]:
    """Compute the hashes of all items; an item that has no such profile has none."""
    try:
        from benchmark.papers import items as paper_items
    except ImportError:  # an older commit
        from benchmark.papers import catalogue as paper_items  # type: ignore

    found = set()
    for build in (*paper_items.ITEMS.values(), *getattr(paper_items, "VARIANTS", {}).values()):
        try:
            item = build(profile)
        except Exception:  # whatever the commit raises for a profile that the item does not have
            continue
        labels = {label for claim in item.claims for cells in contrasts_of(claim) for label in cells}
        keys = {cell.label: cell.cell_key for cell in item.cells if cell.label in labels}
        found |= {hash_of(claim, keys) for claim in item.claims}
    return found


if __name__ == "__main__":
    json.dump(sorted(hashes(sys.argv[1])), sys.stdout)
