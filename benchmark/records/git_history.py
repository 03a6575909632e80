"""Compare records with git: whether it has the commits that they name, and whether committed copies are unchanged.

Without git, a checkout or a complete history, nothing is found, and the report states that nothing was compared.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from subprocess import CalledProcessError

from benchmark.records.copies import COMMITTED, RESTORE
from benchmark.records.provenance import ROOT, git
from benchmark.records.record import RunRecord

UNKNOWN = "unknown"  # the commit that a suite without git records
LEEWAY = timedelta(minutes=10)  # largest difference between two clocks
# Commits of 31 exploratory runs of 2026-11-23 that were rewritten before they were merged: git has the runs, but
# not these commits.
REWRITTEN = frozenset({"b166e3c4a7ebc50e8d30994da6b6f08976c4186d"})
WITHOUT_GIT = "commits of runs from a suite that was installed without git"
WITHOUT_HISTORY = "commits of runs, since this suite has no git history"


def history_faults(records: Iterable[RunRecord]) -> tuple[list[str], set[str]]:
    """Return contradictions between git and compact copies, and phrases about copies that could not
    be compared.

    A run's commit must be in this suite's history, and an attempt must not have started before its
    commit was made.
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
            yield f"{record.path}: commit {commit[:12]!r} of manifest.json is not in this suite's git history"
        elif started is not None and started < times[commit] - LEEWAY:
            made = f"{times[commit]:%Y-%m-%d %H:%M}"
            yield f"{record.path}: the run started {started:%Y-%m-%d %H:%M}, but its commit was made {made}"


def _attempts(record: RunRecord) -> Iterator[tuple[datetime | None, str]]:
    """Yield the start and the commit of each attempt; the manifest has the commit of the last one
    if no attempt has it.
    """
    attempts = record.manifest.get("attempts") or [{}]
    last = time_of(attempts[-1].get("started", ""))
    yield last, record.manifest.get("code", {}).get("commit", UNKNOWN)
    for attempt in attempts:
        if code := attempt.get("code"):
            yield time_of(attempt["started"]), code["commit"]


def started_at(record: RunRecord) -> datetime | None:
    """Return when the run began, in UTC, or None if its manifest has no readable time."""
    attempts = record.manifest.get("attempts") or [{}]
    return time_of(attempts[0].get("started", ""))


def time_of(text: str) -> datetime | None:
    """Return the time of a text such as "2026-11-23T08:39:06Z", in UTC, or None for any other text."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@cache
def commit_times() -> Mapping[str, datetime] | None:
    """Return the commits of all branches and tags with their times, or None without a complete history."""
    if _git("rev-parse", "--is-shallow-repository") != "false\n" or not _is_checkout():
        return None
    lines = (_git("log", "--all", "HEAD", "--format=%H %ct") or "").splitlines()
    fields = (line.split() for line in lines)
    return {commit: datetime.fromtimestamp(int(seconds), UTC) for commit, seconds in fields} or None


def changed_copies(results: Path) -> list[str]:
    """Return a line per committed copy of this checkout that was edited or deleted since HEAD; none
    for other results folders.
    """
    if results.resolve() != COMMITTED.resolve() or not _is_checkout():
        return []
    changes = _git("diff", "-z", "--name-status", "--no-renames", "HEAD", "--", str(COMMITTED / "reference")) or ""
    words = changes.split("\0")
    pairs = zip(words[::2], words[1::2], strict=False)
    said = {"M": "it differs from the copy that is committed", "D": "it is committed, but was deleted in this checkout"}
    return [f"{ROOT / name}: {said[kind]}; {RESTORE}" for kind, name in pairs if kind in said]


def _is_checkout() -> bool:
    top = _git("rev-parse", "--show-toplevel")
    return top is not None and Path(top.removesuffix("\n")).resolve() == ROOT.resolve()


def _git(*words: str) -> str | None:
    """Return git's output, or None if git fails or is not installed."""
    try:
        return git(*words)
    except (OSError, CalledProcessError):
        return None
