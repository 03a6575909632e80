"""The page of findings: of each paper the claims that matter most, what came out, and what can be said against it.

`findings.toml` names the claims and has the objections; every number is from the records.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark.papers.item import Item
from benchmark.papers.published import check_keys
from benchmark.records.files import write_atomically
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.results import ACCURACY, Records
from reports.agreement import agreement
from reports.claims import (
    DECIDED,
    claim_page,
    collapsed_text,
    declared_claims,
    estimate_text,
    finding_text,
    furthest,
    judged_by,
    quote_text,
    state_text,
)
from reports.formatting import NONE, count, difference_interval, markdown, points, points_interval, sentence, shown
from reports.pages import papers
from reports.reported import Reported

LEAD = """# Findings

Of each paper the three claims that matter most, and all that are decided. A claim is decided by seeds that were used \
for nothing else; a pilot shows a direction and decides nothing. `fssl report --readme` writes this page from the \
records.

A difference is taken so that it is above zero where the claim is right. A claim that two things are alike (hardly \
loses, is no faster, gives no more) holds where the interval lies within a margin that was fixed before. The \
difference is the typical one (Hodges-Lehmann) over confirming seeds, which are looked at when there are 9, 16, 24 \
and 32 of them; all looks and claims of a paper share an error of 5 %. *Judged by*: *end* is accuracy at the end of \
the run; *speed* is the mean log-odds over the rounds, given as accuracy; *counted* is the same for every seed. \
*Collapse*: more than a fifth of the runs of a cell ended below a model of the labelled images alone, so that seeds \
are counted on which one side only did, and the size of the difference decides nothing. In SSFL's table the server's \
weight alone is a control of ours: FedAvg without groups, whose server weighs what it weighs inside a group.
"""

DECIDED_HEAD = """| decided claim | verdict | judged by | difference | interval, or runs below labels alone | n | of |
|---|---|---|---:|---:|---:|---|"""
BESIDE = """Test accuracy by the paper's rule: where the paper chose the round on test data, so does the row. One run \
has no spread, so that it decides nothing."""


def findings_page(every: Sequence[Reported], *, links: bool) -> str:
    """As Markdown; with `links` a claim leads to its page, from the site's root. Raises ConfigError."""
    lines = [LEAD, state_text(every)]
    known = furthest(every)
    for paper, findings in _declared().items():
        lines += [f"\n## {papers()[paper]['short']}\n\n{papers()[paper]['title']}. {papers()[paper]['where']}.\n"]
        for number, (item, name, against) in enumerate(findings, start=1):
            one, judged = known.get((item.name, name), (None, None))
            (claim,) = (claim for claim in item.claims if claim.name == name)
            page = f"{one.page.parent.as_posix()}/{claim_page(claim)}" if one and judged else ""
            title = f"[{markdown(name)}]({page})" if links and page else markdown(name)
            verdict = judged.verdict if judged else "not run"
            lines += [
                f"{number}. **{title}**: {verdict}. {markdown(sentence(quote_text(claim)))}\\",
                f"   {_outcome(one, judged)}\\",
                f"   *What can be said against it:* {markdown(against)}",
            ]
        rows = [_decided_row(*pair) for pair in known.values() if pair[0].paper == paper]
        lines += ["", DECIDED_HEAD, *filter(None, rows)] if any(rows) else []
    rows = _beside_the_print(every)
    if rows:
        lines += [f"\n## At a paper's own length and network\n\n{BESIDE}\n", *rows]
    return "\n".join(lines) + "\n"


def _beside_the_print(every: Sequence[Reported]) -> list[str]:
    """The cells at profile `paper` beside their printed accuracy; a cell that two tables print alike once."""
    rows: dict[tuple[str, float | None], str] = {}
    for one in every:
        for result in one.results.values():
            agreed, printed = agreement(one.item, result), result.cell.printed()
            if agreed is None or result.summary is None or printed is None:
                continue
            ours = f"{shown(ACCURACY, result.summary.mean)} % ({count(result.summary.n, 'run')})"
            gap = f"{points(agreed.difference)} points {points_interval(agreed.interval)}".rstrip()
            text = f"{one.item.name}, {result.cell.label}: {ours}, printed {printed:.2f} %: {gap}"
            text += f", {agreed.verdict}." if agreed.verdict else f". Data: {agreed.reason}."
            rows.setdefault((result.cell.cell_key, printed), f"- {markdown(text)}")
    return list(rows.values())


def write_findings(results: Sequence[tuple[Item, Records]], path: Path) -> None:
    """The page of findings. Raises CannotWrite."""
    page = findings_page([Reported(item, records) for item, records in results], links=False)
    write_atomically(path, page.encode())


def _outcome(one: Reported | None, judged: Judged | None) -> str:
    if one is None or judged is None:
        return "No run has been made."
    where = f"{one.item.name} at profile {one.item.profile}"
    looks = f", {count(judged.looks, 'look')}" if judged.looks else ""
    more = f" {judged.could_decide} confirming seeds can decide it." if judged.could_decide else ""
    return markdown(f"{where}{looks}. {finding_text(judged)}{more}")


def _decided_row(one: Reported, judged: Judged) -> str:
    """Empty where the claim is open."""
    if judged.verdict not in DECIDED:
        return ""
    entries = (
        judged.claim.name,
        judged.verdict,
        judged_by(judged),
        estimate_text(judged),
        difference_interval(judged.claim.metric, judged.interval) or collapsed_text(judged) or NONE,
        str(judged.n) if judged.claim.endpoint != "arithmetic" else NONE,
        f"{one.item.name} {one.item.profile}",
    )
    return f"| {' | '.join(map(markdown, entries))} |"


def _declared() -> Mapping[str, list[tuple[Item, str, str]]]:
    """By paper: the item, the claim's name, and what is said against it. Raises ConfigError for a misspelt key."""
    claims = {f"{item.name}: {claim.name}": (item, claim.name) for item, claim in declared_claims()}
    found: dict[str, list[tuple[Item, str, str]]] = {}
    for paper, entries in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items():
        for entry in entries:
            check_keys("reports/findings.toml", entry, {"claim", "against"})
            if entry["claim"] in claims:  # the items of a test, or of a user's own paper, may be others
                found.setdefault(paper, []).append((*claims[entry["claim"]], entry["against"]))
    return found
