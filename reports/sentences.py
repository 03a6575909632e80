"""Group claims by sentence, because the summaries count sentences.

Each claim tests one sentence or question of ours, and a sentence may have several claims.

The status of a sentence follows from the statuses of its claims, without the withdrawn ones:

* "holds", "contradicted" or "no effect of interest": all of its claims are decided with this verdict;
* "mixed": the decided claims have different verdicts, or one has a different verdict at more clients
  (`ClaimRow.larger`);
* "in part": the decided claims have one verdict, but others are open, or the sentence is also about more clients than
  any verdict covers (`ClaimRow.larger`);
* "undecided", "no room", "pilots only", "not run": no claim is decided, and this is the first of these four statuses
  that a claim has.

A question of ours is a separate sentence. A sentence or question in a further reduced setting is the same one, with
further claims.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.papers.items import base_of
from benchmark.verdicts.judge import DECIDED
from reports.claims import OPEN, ClaimRow
from reports.formatting import count, plain_quote
from reports.tables import Column, Table, TableEntry, row_of, table_of

MIXED, IN_PART = "mixed", "in part"
STATUSES = (*DECIDED, MIXED, IN_PART, *OPEN)  # of a sentence in a summary table


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """The claims on one sentence of a paper, or on one question of ours."""

    rows: tuple[ClaimRow, ...]

    @property
    def text(self) -> str:
        """Return the paper's words, or the name of a question of ours."""
        claim = self.rows[0].claim
        return f"“{plain_quote(claim.quote)}”" if claim.quote else claim.name

    @property
    def source(self) -> str:
        return self.rows[0].claim.source

    @property
    def paper(self) -> str:
        return self.rows[0].reported.paper

    @property
    def status(self) -> str:
        """Return one of `STATUSES`, by the rules in this module's docstring."""
        statuses = [row.status for row in self.rows]
        decided = {status for status in statuses if status in DECIDED}
        decided |= {row.larger.verdict for row in self.rows if row.larger and row.larger.verdict in DECIDED}
        if not decided:
            return min(statuses, key=OPEN.index)
        if len(decided) > 1:
            return MIXED
        is_whole = decided.issuperset(statuses) and not any(row.is_open_at_larger for row in self.rows)
        return decided.pop() if is_whole else IN_PART

    @property
    def has_decision(self) -> bool:
        return self.status in (*DECIDED, MIXED, IN_PART)


def sentences_of(rows: Iterable[ClaimRow]) -> list[Sentence]:
    """Group claims by sentence, in the order of each sentence's first claim; withdrawn claims are left out."""
    grouped: dict[tuple[str, ...], list[ClaimRow]] = {}
    for row in rows:
        if not row.claim.withdrawn:
            question = (base_of(row.item.name) or row.item.name, row.claim.name)
            words = (" ".join(row.claim.quote.split()),) if row.claim.quote else question
            grouped.setdefault((row.reported.paper, *words), []).append(row)
    return [Sentence(rows=tuple(own)) for own in grouped.values()]


def sentence_values(sentence: Sentence) -> dict[str, Any]:
    """Return a sentence as plain JSON values: its text, source and status, and the names of its claims."""
    claims = [row.claim.name for row in sentence.rows]
    first = sentence.rows[0].claim
    text = first.quote or first.name
    return {"text": text, "source": sentence.source, "status": sentence.status, "claims": claims}


def sentences_table(sentences: Sequence[Sentence], *, brief: bool = False) -> Table:
    """Return a row for each sentence, with its claims below each other.

    `brief`: a line for each decided claim only; the sentence leads to the first of its claims.
    """
    rows = []
    for sentence in sentences:
        listed = [row for row in sentence.rows if row.judged.is_decided] if brief else sentence.rows
        claims = tuple(map(_claim_line, listed))
        profiles = dict.fromkeys(row.item.profile for row in sentence.rows if row.has_page or row.judged.is_decided)
        page = next((row.page for row in sentence.rows if row.page), "") if brief else ""
        number = len(sentence.rows)
        cells = (
            TableEntry(text=sentence.text, detail=(sentence.source,), href=page),
            TableEntry(text=sentence.status, look=sentence.status, sort=float(STATUSES.index(sentence.status))),
            TableEntry(text=count(number, "claim"), lines=claims, sort=float(number)),
            ", ".join(profiles) or "–",
        )
        topics = list(dict.fromkeys(row.topic for row in sentence.rows))
        rows.append(row_of(cells, paper=sentence.paper, verdict=sentence.status, topic=topics))
    heads = ("Sentence", "Verdict", Column(name="Claims", left=True), Column(name="Profile", left=True))
    return table_of("sentences", "Sentences, each with its claims", heads, rows, words=2)


def _claim_line(row: ClaimRow) -> TableEntry:
    """Build the line "ssfl/tab2, Grouping wins: holds at K = 10 (+0.74 points, n = 16)"."""
    seen = f" ({row.estimate}, n = {row.judged.n})" if row.judged.estimate is not None else ""
    text = f"{row.item.name}, {row.claim.name}: {row.verdict_text}{seen}"
    return TableEntry(text=text, href=row.page, below=tuple(row.caveats) if row.judged.is_decided else ())
