"""`fssl verify --for-board b.zip`: accept or refuse each cell of a submission, and write a report for its sender.

One finished run of each cell, or the number of --retrain, is trained again in a separate process. Cells that this
machine cannot train, or not in the time of --budget, are reported as not checkable. Nothing of a submission reaches the
report except within code spans of Markdown.
"""

import argparse
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, TypeAlias

from benchmark.cli.accepted import store
from benchmark.cli.apart import Trained, checked, trained
from benchmark.data.datasets import is_available
from benchmark.data.folder import public_name
from benchmark.errors import DataError
from benchmark.files import ANEW, write_atomically
from benchmark.records.provenance import commit, hardware
from benchmark.records.record import FINISHED, RunRecord
from benchmark.records.seeds import seeds_text
from benchmark.records.sources import own_names
from benchmark.sharing.bundle import Bundle, opened
from benchmark.sharing.comment import code, shortened
from benchmark.sharing.verify import Retrained, compared, troubles_of, why_not_here, why_not_this_code
from reports.formatting import count

Status: TypeAlias = Literal["accepted", "refused", "not checkable here"]
STATUSES: tuple[Status, ...] = ("accepted", "refused", "not checkable here")
NOTHING_CHECKED = 69  # the exit code if no cell is refused, and none could be checked (EX_UNAVAILABLE)
LONGER = 3.0  # a run is not begun if its record took this many times longer than the time left


@dataclass(frozen=True, kw_only=True)
class CellVerdict:
    """The verdict on one cell of a submission, with its reason."""

    cell_key: str
    label: str
    method: str
    data: str
    seeds: tuple[int, ...]
    status: Status
    reason: str
    retrained: tuple[str, ...] = ()  # names of the records that were trained again and are equal

    @property
    def line(self) -> str:
        """Return the cell's line of the report, as an entry of a Markdown list."""
        what = f"cell {code(self.cell_key)}, method {code(self.method)} on {code(self.data)}, {seeds_text(self.seeds)}"
        return f"- **{self.status}**: {code(self.label)} ({what}): {code(self.reason)}"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The verdicts on all cells of a submission. `bundle` is None if the file is not a readable submission."""

    path: Path
    digest: str  # sha256 of the file, in hexadecimal
    bundle: Bundle | None
    cells: tuple[CellVerdict, ...]
    refused: str = ""  # why the whole file is refused
    believed: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """Return 0 if a cell is accepted and none is refused, 66 if one is refused, and 69 if nothing was checked."""
        statuses = {cell.status for cell in self.cells}
        if self.refused or "refused" in statuses:
            return DataError.exit_code
        return 0 if "accepted" in statuses else NOTHING_CHECKED

    @property
    def retrained(self) -> list[str]:
        return [name for cell in self.cells for name in cell.retrained]


def run_for_board(path: Path, options: argparse.Namespace) -> int:
    """Verify a submission, print one line per cell, write the report, and store it with --accept if it is accepted."""
    found = verified(path, options)
    by = options.by or "an unnamed verifier"
    if options.accept and found.exit_code == 0:
        _store(found, options.results, by)
    if options.report is not None:
        write_atomically(options.report, report_of(found, by).encode())
    if options.json:
        print(json.dumps(as_json(found)))
        return found.exit_code
    if found.refused:
        print(f"{path}: refused: {code(found.refused).strip('`')}")
    for cell in found.cells:
        print(f"{cell.status}: {code(cell.label).strip('`')} ({cell.cell_key}): {code(cell.reason).strip('`')}")
    return found.exit_code


def verified(path: Path, options: argparse.Namespace) -> Verified:
    """Check a submission and train runs of each of its cells again."""
    try:
        bundle = opened(path)
    except DataError as error:
        digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        reason = f"{error}".removesuffix(f"; {ANEW}")
        return Verified(path=path, digest=digest, bundle=None, cells=(), refused=reason)
    digest = hashlib.sha256(bundle.content).hexdigest()
    seen = checked(path, bundle, trusted=options.trust)
    drawn = _drawn(bundle, options)
    of_cells, whole = _by_cell(bundle, seen.faults)
    left = 60.0 * options.budget
    outcomes = dict[Path, Retrained]()
    seconds = 0.0
    if not seen.faults:
        for run in drawn:
            outcomes[run.path], took = _trained_again(bundle, run, left - seconds, options)
            seconds += took
            if not options.json:
                print(f"{run.path}: {outcomes[run.path].words()}", file=sys.stderr, flush=True)
    # One difference can be chance between processors, and a mean of several cannot.
    compared_runs = {name: outcome for name, outcome in outcomes.items() if outcome.skipped is None}
    shared = [text for text in troubles_of(compared_runs) if not _names_a_run(text, outcomes)]
    cells = []
    for key, label in sorted(bundle.card["labels"].items(), key=itemgetter(1)):
        own = {path: outcome for path, outcome in outcomes.items() if path.parent.name == key}
        faults = [*of_cells.get(key, ()), *whole, *(shared if own else ())]
        cells.append(_verdict(bundle, key, label, faults, own, unchecked=bool(seen.faults)))
    believed = [*seen.absent, *([] if options.trust else bundle.own), *seen.not_compared]
    return Verified(
        path=path, digest=digest, bundle=bundle, cells=tuple(cells), believed=tuple(believed), seconds=seconds
    )


def _drawn(bundle: Bundle, options: argparse.Namespace) -> list[RunRecord]:
    """Draw N finished runs of each cell, so that nobody can predict them.

    Order them by their time, the shortest first.
    """
    draw = random.Random(options.seed)
    chosen = list[RunRecord]()
    for key in sorted(bundle.card["labels"]):
        runs = [run for run in bundle.records if run.cell_key == key and run.status in FINISHED]
        chosen += draw.sample(runs, min(options.retrain, len(runs)))
    return sorted(chosen, key=_recorded_seconds)


def _recorded_seconds(run: RunRecord) -> float:
    return float(run.result.get("wall_seconds", 0.0))


def _by_cell(bundle: Bundle, faults: Sequence[str]) -> tuple[Mapping[str, list[str]], list[str]]:
    """Split faults into faults of named cells of the submission, and faults of all of it."""
    of_cells: dict[str, list[str]] = {}
    whole = []
    for fault in faults:
        keys = [key for key in bundle.card["labels"] if key in fault]
        for key in keys:
            of_cells.setdefault(key, []).append(fault)
        if not keys:
            whole.append(fault)
    return of_cells, whole


def _names_a_run(text: str, outcomes: Mapping[Path, Retrained]) -> bool:
    return any(text.startswith(f"{path}: ") for path in outcomes)


def _trained_again(bundle: Bundle, run: RunRecord, left: float, options: argparse.Namespace) -> tuple[Retrained, float]:
    """Train a run again in at most `left` seconds. Return the comparison, and how many seconds it took."""
    if reason := _why_not(run, left, options):
        return Retrained(skipped=reason), 0.0
    outcome: Trained = trained(bundle, run, left)
    if outcome.record is None:
        return Retrained(skipped=outcome.skipped, trouble=outcome.trouble), outcome.seconds
    found = compared(run, outcome.record)
    # A submission's record is a compact copy with numbers of six digits.
    return replace(found, exact=found.exact and not run.committed), outcome.seconds


def _why_not(run: RunRecord, left: float, options: argparse.Namespace) -> str | None:
    """Return why this machine cannot train the run again now, or None if it can."""
    own = own_names(run.experiment)
    data = str(run.experiment["data"]["name"])
    if data.startswith("folder:"):
        return f"its images ({public_name(data)}) are the sender's"
    if own and not options.trust:
        return f"it is of {', '.join(own)}: read its source, then type --trust"
    if not is_available(data):
        return f"the files of {data} are not on this machine"
    reason = why_not_this_code(run) if own else why_not_here(run)
    if reason is not None:
        return reason
    recorded = _recorded_seconds(run)
    if left < 1 or recorded > LONGER * left:
        return f"its record took {recorded:,.0f} s, and {max(0.0, left):,.0f} s of the budget are left"
    return None


def _verdict(
    bundle: Bundle,
    key: str,
    label: str,
    faults: Sequence[str],
    outcomes: Mapping[Path, Retrained],
    *,
    unchecked: bool,
) -> CellVerdict:
    """Combine the results of the checks and of the training for a cell."""
    first = next(run for run in bundle.records if run.cell_key == key)
    troubles = [f"{path}: {outcome.trouble}" for path, outcome in outcomes.items() if outcome.trouble is not None]
    equal = {path: outcome for path, outcome in outcomes.items() if outcome.trouble is None and not outcome.skipped}
    status: Status = "not checkable here"
    if reasons := [*faults, *troubles]:
        more = f" (and {len(reasons) - 1} more)" if reasons[1:] else ""
        status, reason = "refused", f"{reasons[0].removesuffix(f'; {ANEW}')}{more}"
    elif unchecked:
        reason = "nothing of a submission is trained again while one of its cells is refused"
    elif equal:
        said = [f"seed {_seed(path)} {outcome.words()}" for path, outcome in equal.items()]
        status, reason = "accepted", "; ".join(said)
    elif outcomes:
        reason = next(outcome.skipped or "" for outcome in outcomes.values())
    else:
        reason = "no run of it is trained again; type --retrain 1"
    return CellVerdict(
        cell_key=key,
        label=label,
        method=str(first.experiment["method"]["kind"]),
        data=public_name(str(first.experiment["data"]["name"])),
        seeds=tuple(bundle.contents["seeds"][key]),
        status=status,
        reason=reason,
        retrained=tuple(f"{path}" for path in equal) if status == "accepted" else (),
    )


def _seed(path: Path) -> str:
    return path.name.removeprefix("seed=").partition(".")[0]


def report_of(found: Verified, by: str) -> str:
    """Write the report as Markdown. Texts of the submission are in code spans, and the whole has a largest size."""
    card = found.bundle.card if found.bundle is not None else {}
    lines = [f"### Submission {code(card.get('title', found.path.name))} by {code(card.get('by', ''))}", ""]
    if found.refused:
        lines.append(f"- **refused**: {code(found.refused)}")
    lines += [cell.line for cell in found.cells]
    runs = count(len(found.retrained), "run")
    lines += ["", f"{runs} trained again in {found.seconds:.0f} s by {code(by)} on {code(hardware_in_words())}, "]
    lines[-1] += f"code {code(code_version())}. SHA-256 of the file: {code(found.digest)}."
    own = [name for name in found.bundle.own if not name.startswith("folder:")] if found.bundle is not None else []
    if own:
        lines.append(f"Custom code: {', '.join(map(code, own))}. A person has to read it: it could write any number.")
    if found.believed:
        lines.append(f"Not checked: {', '.join(map(code, found.believed))}.")
    return shortened("\n".join(lines) + "\n")


def as_json(found: Verified) -> dict[str, Any]:
    """Return the fields of --json."""
    cells = []
    for cell in found.cells:
        cells.append({**vars(cell), "seeds": list(cell.seeds), "retrained": list(cell.retrained)})
    numbers = Counter(cell.status for cell in found.cells)
    return {
        "bundle": str(found.path),
        "sha256": found.digest,
        "accepted": found.exit_code == 0,
        "troubles": [found.refused] if found.refused else [],
        "cells": cells,
        "numbers": {status: numbers[status] for status in STATUSES},
        "believed": list(found.believed),
        "seconds": round(found.seconds, 3),
    }


def hardware_in_words() -> str:
    """Return this machine's processor and number of cores."""
    known = hardware()
    return f"{known['processor']}, {count(int(known['cores']), 'core')}"


def code_version() -> str:
    """Return the commit of this code, with a mark if it was changed since."""
    known = commit()
    return f"{known['commit'][:10]}{' with changes' if known['changes'] else ''}"


def _store(found: Verified, results: Path, by: str) -> None:
    """Store an accepted submission with a note on who trained which runs again."""
    assert found.bundle is not None  # it is accepted
    check = {"by": by, "hardware": hardware_in_words(), "code": code_version(), "runs": found.retrained}
    retrained, believed = found.retrained, found.believed
    store(found.path, found.bundle, results, retrained=retrained, believed=believed, verified=[check])
