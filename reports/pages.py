"""Collect the values that the templates show: plain values, tables and pictures for each kind of page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmark.data.folder import public_name
from benchmark.papers.item import UNTRAINED
from benchmark.papers.items import ITEMS, VARIANT_OF, base_of
from benchmark.papers.own import OWN
from reports.claim_figures import claims_pictures
from reports.claims import ClaimRow, rows_of
from reports.entries import is_arena, is_published, method_of, notes_of
from reports.findings import (
    QUESTIONS,
    SENTENCES,
    counts_in_summaries,
    kinds,
    shown_kinds,
    state_text,
    statuses,
    statuses_in_words,
)
from reports.formatting import NONE, cell_address, count, points
from reports.headlines import headlines
from reports.item_results import PAPERS, ItemResults, note_on_other_data
from reports.leads import lead_text
from reports.methods import property_table
from reports.paper_table import frame_of
from reports.provenance import code_versions, warnings
from reports.published_table import unread_text
from reports.rendering import MARKS
from reports.sentences import Sentence, sentences_of, sentences_table
from reports.tables import Column, Table, TableEntry, row_of, table_of


def _not_run(paper: str, mine: Iterable[ItemResults]) -> list[str]:
    """Return the tables and figures of the paper that have no record."""
    shown = {reported.item.name for reported in mine}
    return [name for name in ITEMS if name.split("/")[0] == paper and name not in shown]


def progress(reported: ItemResults) -> dict[str, Any]:
    """Return how far an item has come: its cells, runs and verdicts."""
    results = [result for result in reported.results.values() if result.awaited]
    verdicts = statuses(reported)
    trained = {result.cell.cell_key: result for result in results if result.cell.role not in UNTRAINED}
    runs_done = sum(result.n_finished for result in trained.values())
    runs_wanted = sum(max(result.n_wanted, result.n_finished) for result in trained.values())
    with_runs = [result for result in results if result.n]
    runs_of_choices = reported.item.seeds * len(reported.item.choices)
    diverged = sum(len(result.diverged) for result in results)
    return {
        "cells_run": len(with_runs),
        "total": len(results) + len(reported.item.choices),
        "runs_done": runs_done + reported.trials_done,
        "runs_wanted": runs_wanted + runs_of_choices + len(reported.item.tried),
        "diverged": diverged,
        "verdicts": verdicts[SENTENCES],
        "questions": verdicts[QUESTIONS],
    }


def items_table(shown: Sequence[ItemResults]) -> Table:
    """Return a row for each table or figure with its progress. Caveats about its runs are on the page of the item."""
    rows = []
    for reported in shown:
        item = reported.item
        seen = progress(reported)
        broken = (count(seen["diverged"], "run") + " diverged",) if seen["diverged"] else ()
        entries = (
            TableEntry(text=item.name, detail=(item.title,), href=reported.page),
            item.profile,
            TableEntry(text=f"{seen['cells_run']} of {seen['total']}", sort=seen["cells_run"] / max(1, seen["total"])),
            TableEntry(text=f"{seen['runs_done']} of {seen['runs_wanted']}", sort=seen["runs_done"], below=broken),
            _verdicts_entry(reported, seen["verdicts"]),
        )
        methods = list(dict.fromkeys(method_of(cell) for cell in item.cells if "method" in cell.setting))
        data = list(dict.fromkeys(public_name(cell.experiment.data.name) for cell in item.cells))
        rows.append(row_of(entries, profile=item.profile, method=methods, data=data))
    heads = ("Table or figure", "Profile", "Cells run", "Runs", Column(name="Verdicts on sentences", left=True))
    return table_of("items", "Tables and figures", heads, rows, words=2)


def _verdicts_entry(reported: ItemResults, verdicts: Counter[str]) -> TableEntry:
    """Return the number of sentences by verdict, and the largest difference from a published number."""
    gap = reported.largest_gap
    texts = [f"{verdict} {verdicts[verdict]}" for verdict in MARKS if verdicts[verdict]]
    below = (f"largest difference from published: {points(gap[1].difference)} ({gap[0]})",) if gap else ()
    return TableEntry(text=", ".join(texts) or NONE, below=below, sort=verdicts["holds"])


def claims_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the page of all claims."""
    return {"state": state_text(every), "sentence_tables": sentence_tables(every)}


def tables_values(every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the page of papers, tables and figures."""
    cards = []
    for name in PAPERS:
        cards.append(_card(name, [reported for reported in every if reported.paper == name]))
    return {"cards": cards, "items": items_table(every)}


def sentence_tables(every: Sequence[ItemResults], paper: str = "", *, brief: bool = False) -> list[tuple[str, Table]]:
    """Return a table of the sentences of each kind. `brief`: without a line for each claim that is open."""
    rows = shown_kinds(every, paper)
    tables = []
    for kind, own in rows.items():
        if own:
            tables.append((kind[0].upper() + kind[1:], sentences_table(sentences_of(own), brief=brief)))
    return tables


def _card(name: str, mine: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the progress of a paper, with a line for each profile."""
    lines = list[dict[str, Any]]()
    for profile in dict.fromkeys(reported.item.profile for reported in mine):
        here = [reported for reported in mine if reported.item.profile == profile]
        tables = {_without_suffix(reported.item.name) for reported in here}
        # A cell of several items counts once. A choice counts as one cell, whichever its trials select.
        results = [result for reported in here for result in reported.results.values() if result.awaited]
        choices = sum(len(reported.item.choices) for reported in here)
        keys = {result.cell.cell_key for result in results}
        keys_with_runs = {result.cell.cell_key for result in results if result.n}
        lines.append(
            {
                "profile": profile,
                "items": len(tables),
                "cells_run": len(keys_with_runs),
                "total": len(keys) + choices,
                "verdicts": Counter(sentence.status for sentence in _sentences_judged_in(here)),
            }
        )
    return {**PAPERS[name], "name": name, "lines": lines, "not_run": _not_run(name, mine)}


def _without_suffix(name: str) -> str:
    """Return the name of the table or figure that the item builds: "ssfl/tab2" for all of its variants."""
    variant = VARIANT_OF.get(name)
    return name.removesuffix(variant.suffix) if variant else name


def _sentences_judged_in(every: Sequence[ItemResults]) -> list[Sentence]:
    """Return the sentences that a paper's items judge, each once, with the claims that count in summaries."""
    rows = [row for reported in every for row in kinds(rows_of(reported))[SENTENCES]]
    return sentences_of(row for row in rows if counts_in_summaries(row) and not row.judged.judged_in)


def paper_values(name: str, mine: Sequence[ItemResults], every: Sequence[ItemResults]) -> dict[str, Any]:
    """Return the values of the page of a paper, or of the method comparison: headline, items and sentences.

    Items in a further reduced setting come first, because it leaves more room for differences.
    """
    own = [headline for headline in headlines(every) if headline.paper == name] if name in PAPERS else []
    return {
        "name": name,
        "about": PAPERS.get(name),
        "headlines": own,
        "items": items_table(sorted(mine, key=lambda reported: not base_of(reported.item.name))),
        "sentence_tables": sentence_tables(mine, name, brief=True),
        "not_run": _not_run(name, mine),
    }


def item_values(reported: ItemResults) -> dict[str, Any]:
    """Return the values of the item's page, except its tables, claims and pictures."""
    item = reported.item
    pages = {label: cell_address(result) for label, result in reported.results.items()}
    is_compared = any(cell.published_value() is not None for cell in item.cells)
    return {
        **progress(reported),
        "item": item,
        "paper": reported.paper,
        "own": reported.paper == OWN,
        "arena": is_arena(item),
        "is_published": is_published(item),
        "unread": unread_text(item),
        "frame": frame_of(item),
        "other_data": any(note_on_other_data(result) for result in reported.results.values()),
        "result": lead_text(reported) if item.reference else result_sentences(reported),
        "warnings": warnings(reported.runs, item.profile),
        "versions": code_versions(reported.runs),
        "notes": notes_of(reported),
        "properties": property_table(reported) if is_arena(item) or "exchange/privacy" in item.metrics else None,
        "rows": rows_of(reported),
        "leading": leading_claims(reported),
        "pages": pages,
        "forests": claims_pictures(reported.judged),
        "margin": item.margin if is_compared else None,
        "n_runs": len(reported.runs),
    }


def leading_claims(reported: ItemResults) -> list[ClaimRow]:
    """Return the claims at the beginning of a page: the primary ones, or without any the first decided ones."""
    rows = [row for row in rows_of(reported) if not row.claim.withdrawn]
    primary = [row for row in rows if row.claim.main]
    decided = [row for row in rows if row.judged.is_decided]
    return primary or decided[:LEADING]


def result_sentences(reported: ItemResults) -> str:
    """Summarise the result in one or two sentences: verdicts of claims, and agreement with published accuracies."""
    sentences = []
    if in_words := statuses_in_words(reported):  # as on the terminal
        sentences.append(f"{in_words[0].upper()}{in_words[1:]}.")
    agreed = [seen for seen in reported.agreements.values() if not seen.other_data]
    if agreed and reported.largest_gap and reported.item.margin is not None:
        within = sum(abs(seen.difference) <= reported.item.margin for seen in agreed)
        label, largest = reported.largest_gap
        sentences.append(
            f"{within} of {len(agreed)} published accuracies are reproduced within {100 * reported.item.margin:g} "
            f"points; the largest difference is {points(largest.difference)} points ({label})."
        )
    if not sentences:
        done = [result for result in reported.results.values() if result.n]
        elsewhere = [row.judged.judged_in for row in rows_of(reported) if row.judged.judged_in]
        judged = f"its claims are judged in {'; '.join(dict.fromkeys(elsewhere))}" if elsewhere else "it has no claim"
        sentences.append(f"{len(done)} of {count(len(reported.results), 'cell')} have finished runs; {judged}.")
    return " ".join(sentences)


LEADING = 4  # decided claims at the beginning of the page of an item without primary claims
