"""A paper's page: its tables and figures, its claims with their verdicts, its methods' places in the arena."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.papers.catalogue import ITEMS
from benchmark.papers.item import Item
from benchmark.verdicts.results import Records, cell_result
from reports.arena.table import method_of
from reports.files import slug
from reports.views import cell_page, claim_view
from reports.words import mean_spread


@dataclass(frozen=True, kw_only=True)
class Paper:
    """What a card says of a paper before any run."""

    name: str  # as in "ssfl/tab2"
    short: str
    title: str
    where: str
    methods: tuple[str, ...]  # those of its own, by the names that the arena gives them


PAPERS = (
    Paper(
        name="ssfl",
        short="SSFL",
        title="Improving Semi-supervised Federated Learning by Reducing the Gradient Diversity of Models",
        where="Zhang et al., arXiv:2008.11364",
        methods=("SSFL, FedAvg", "SSFL, grouping"),
    ),
    Paper(
        name="semifl",
        short="SemiFL",
        title="SemiFL: Communication Efficient Semi-Supervised Federated Learning with Unlabeled Clients",
        where="Diao, Ding, Tarokh, arXiv:2106.01432",
        methods=("SemiFL",),
    ),
    Paper(
        name="rscfed",
        short="RSCFed",
        title="RSCFed: Random Sampling Consensus Federated Semi-supervised Learning",
        where="Liang et al., CVPR 2022, arXiv:2203.13993",
        methods=("RSCFed", "Fed-Consist"),
    ),
    Paper(
        name="fedswitch",
        short="FedSwitch",
        title="When does the student surpass the teacher? Federated Semi-supervised Learning with Teacher-Student EMA",
        where="Zhao et al., 2023",
        methods=("FedSwitch", "TS-Server EMA", "TS-Client EMA", "FedProx-FixMatch"),
    ),
)


def declared(paper: str) -> int:
    """How many tables and figures of the paper the suite can run."""
    return sum(name.split("/")[0] == paper for name in ITEMS)


def arena_entries(
    paper: Paper, shown: Sequence[tuple[Item, Records]], rows: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Where the paper's methods have a finished run in the arena: method, what of it, and the cell's page from the
    site's root. An item that repeats another's experiments under a further profile is left out."""
    return [
        {
            "method": method_of(cell),
            "item": item.name,
            "profile": item.profile,
            "title": item.title,
            "label": cell.label,
            "page": str(row["href"]),
            "href": f"{str(row['href']).rsplit('/', 1)[0]}/{cell_page(cell.label)}.html",
            "text": mean_spread(result.summary),
            "counts": result.counts,
        }
        for (item, records), row in zip(shown, rows, strict=True)
        if item.methods_are_rows and not row["same_as"]
        for cell in item.cells
        if method_of(cell) in paper.methods
        and cell.role not in ("bound", "ladder")
        and (result := cell_result(cell, records, item.seeds)).values
    ]


def paper_values(
    name: str, shown: Sequence[tuple[Item, Records]], rows: Sequence[dict[str, Any]], values: Mapping[str, Any]
) -> dict[str, Any]:
    """`name`: of a paper, or of whatever else stands before the slash of an item's name. `shown` and `rows`: all items
    and their rows on the front page; `values`: the front page's."""
    paper = next((one for one in PAPERS if one.name == name), None)
    mine = [place for place, (item, _) in enumerate(shown) if item.name.split("/")[0] == name]
    return {
        "paper": paper,
        "name": name,
        "declared": declared(name),
        "items": [rows[place] for place in mine],
        "profiles": _in_order(rows[place]["item"].profile for place in mine),
        "methods": _in_order(method for place in mine for method in rows[place]["methods"]),
        "data": _in_order(data for place in mine for data in rows[place]["data"]),
        "claims": [
            {**claim_view(judged), "item": shown[place][0], "href": rows[place]["href"]}
            for place in mine
            for judged in rows[place]["judged"]
        ],
        "arena": arena_entries(paper, shown, rows) if paper else [],
        "marks": values["marks"],
        "made": values["made"],
    }


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def paper_page(name: str) -> str:
    """Relative to the site: ssfl/index.html."""
    return f"{slug(name)}/index.html"
