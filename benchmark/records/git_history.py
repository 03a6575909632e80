"""What git says of records: whether it has the commits that they name, and whether committed copies are as committed.

Where there is no git, no checkout or no whole history, nothing is found, and it is said that nothing was compared.
"""

import subprocess
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

from benchmark.records.copies import COMMITTED, RESTORE
from benchmark.records.provenance import ROOT
from benchmark.records.record import RunRecord

UNKNOWN = "unknown"  # the commit that a suite without git names
LEEWAY = timedelta(minutes=10)  # by which two clocks may differ
# Commits of 31 pilot runs of 2026-11-23 that were rewritten before they were merged: git has the runs, and not these.
REWRITTEN = frozenset({"b166e3c4a7ebc50e8d30994da6b6f08976c4186d"})
WITHOUT_GIT = "commits of runs by a suite that was installed without git"
WITHOUT_HISTORY = "commits of runs, since this suite has no git history"


def history_faults(records: Iterable[RunRecord]) -> tuple[list[str], set[str]]:
    """What git contradicts in compact copies, and in words what could not be compared.

    A run's commit must be in this suite's history, and an attempt must not have started before its commit was made.
    """
    copies = [record for record in records if record.is_copy]
    named = {commit for record in copies for _, commit in _attempts(record)}
    not_compared = {WITHOUT_GIT} if UNKNOWN in named else set[str]()
    if not named - {UNKNOWN}:
        return [], not_compared
    times = commit_times()
    if times is None:
        return [], not_compared | {WITHOUT_HISTORY}
    return [fault for record in copies for fault in _commit_faults(record, times)], not_compared


def _commit_faults(record: RunRecord, times: Mapping[str, datetime]) -> Iterator[str]:
    for started, commit in _attempts(record):
        if commit == UNKNOWN or commit in REWRITTEN:
            continue
        if commit not in times:
            yield f"{record.path}: manifest.json: commit {commit[:12]!r} is not in this suite's git history"
        elif started is not None and started < times[commit] - LEEWAY:
            made = f"{times[commit]:%Y-%m-%d %H:%M}"
            yield f"{record.path}: manifest.json: it started {started:%Y-%m-%d %H:%M}, but its commit was made {made}"


def _attempts(record: RunRecord) -> Iterator[tuple[datetime | None, str]]:
    """When an attempt started, and by which commit. The manifest names that of the last one, where no attempt does."""
    attempts = record.manifest.get("attempts") or [{}]
    last = time_of(attempts[-1].get("started", ""))
    yield last, record.manifest.get("code", {}).get("commit", UNKNOWN)
    for attempt in attempts:
        if code := attempt.get("code"):
            yield time_of(attempt["started"]), code["commit"]


def started_at(record: RunRecord) -> datetime | None:
    """When the run began, in UTC; None where its manifest has no time that can be read."""
    attempts = record.manifest.get("attempts") or [{}]
    return time_of(attempts[0].get("started", ""))


def time_of(text: str) -> datetime | None:
    """The time of a text such as "2026-11-23T08:39:06Z", in UTC; None for another text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@cache
def commit_times() -> Mapping[str, datetime] | None:
    """Each commit that any branch or tag of this suite has, and when it was made; None without the whole history."""
    if _git("rev-parse", "--is-shallow-repository") != "false\n" or not _is_checkout():
        return None
    lines = (_git("log", "--all", "HEAD", "--format=%H %ct") or "").splitlines()
    fields = (line.split() for line in lines)
    return {commit: datetime.fromtimestamp(int(seconds), UTC) for commit, seconds in fields} or None


def changed_copies(results: Path) -> list[str]:
    """Committed copies of this checkout that were edited or deleted since HEAD; none for another folder of results."""
    if results.resolve() != COMMITTED.resolve() or not _is_checkout():
        return []
    changes = _git("diff", "-z", "--name-status", "--no-renames", "HEAD", "--", str(COMMITTED / "reference")) or ""
    words = changes.split("\0")
    pairs = zip(words[::2], words[1::2], strict=False)
    said = {"M": "differs from the copy that is committed", "D": "is committed, and is deleted here"}
    return [f"{ROOT / name}: {said[kind]}; {RESTORE}" for kind, name in pairs if kind in said]


def _is_checkout() -> bool:
    top = _git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.removesuffix("\n")).resolve() == ROOT.resolve()


def _git(*words: str) -> str | None:
    """What git prints; None where it fails or is not there."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout
