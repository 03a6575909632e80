"""Store accepted submissions among the results, each with a note on the records that were trained again."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.files import write_atomically, write_json
from benchmark.sharing.bundle import SUBMITTED, Bundle, noted
from reports.formatting import slug


def store(
    path: Path,
    bundle: Bundle,
    results: Path,
    *,
    retrained: Iterable[str],
    believed: Iterable[str],
    verified: Iterable[Mapping[str, Any]] = (),
) -> list[str]:
    """Store the submission of the file `path` for the site, and return the names of all its records that were trained
    again, in this or an earlier call.

    A file that already is in the folder of submissions stays there under its name. `verified` are entries of the note
    on who trained which records again.
    """
    folder = results / SUBMITTED
    digest = hashlib.sha256(bundle.content).hexdigest()
    place = folder / f"{slug(bundle.card['title'])}-{digest[:8]}.zip"
    if path.absolute().parent == folder.absolute():
        place = path.absolute()
    before = noted(place)
    known = sorted({*before["retrained"], *retrained})
    write_atomically(place, bundle.content)
    now = {"retrained": known, "believed": list(believed), "verified": [*before["verified"], *verified]}
    write_json(place.with_suffix(".json"), {**before, **now})
    return known
