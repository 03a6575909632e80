"""What a reader has to know before trusting a run: edited afterwards, of another profile, of uncommitted code."""

from collections.abc import Iterable

from benchmark.records.record import RunRecord


def marks_of(record: RunRecord, profile: str) -> tuple[str, ...]:
    """Short remarks, in the order of their weight; empty for a run that is as its page says. `profile`: the page's."""
    code = record.manifest.get("code")
    changes = code.get("changes") if isinstance(code, dict) else None
    own = str(record.experiment.get("profile", profile))
    return (
        *(["edited after it was written"] if record.edited else []),
        *([f"recorded under profile {own}"] if own != profile else []),
        *(["of uncommitted code"] if changes else []),
    )


def commits(records: Iterable[RunRecord]) -> tuple[str, ...]:
    """The distinct code versions of these runs, sorted."""
    return tuple(sorted({commit_of(record) for record in records}))


def commit_of(record: RunRecord) -> str:
    code = record.manifest.get("code")
    return str(code.get("commit", "unknown")) if isinstance(code, dict) else "unknown"


def remarks(records: Iterable[RunRecord], profile: str) -> tuple[str, ...]:
    """What of these runs has to be said on a page: "2 runs edited after they were written", mixed code versions."""
    records = list(records)
    counts: dict[str, int] = {}
    for record in records:
        for mark in marks_of(record, profile):
            counts[mark] = counts.get(mark, 0) + 1
    versions = commits(records)
    return (
        *(f"{count} of {len(records)} runs: {mark}" for mark, count in counts.items()),
        *(
            [f"runs of {len(versions)} code versions: {', '.join(v[:10] for v in versions[:4])}"]
            if versions[1:]
            else []
        ),
    )
