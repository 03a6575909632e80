"""The records of the previous release are read, and give the verdicts that the release gave, but for listed moves."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmark.papers.items import items
from benchmark.records.copies import read_copy
from benchmark.verdicts.rule import RULE_VERSION
from tests.conftest import ROOT
from tests.verdicts.previous_release import FILE
from tests.verdicts.verdicts_now import verdicts

COMPARED = ("verdict", "n", "look", "estimate")
RELEASE = json.loads(FILE.read_text())
CLAIMS: dict[str, dict[str, Any]] = RELEASE["claims"]


@dataclass(frozen=True)
class Move:
    """What a claim has today in place of what it had at the release, and why."""

    why: str
    now: dict[str, Any] = field(default_factory=dict)  # empty: no claim has this hash any more


NO_ROOM = "rule 7: the cells leave less than four margins above them"
SMALLEST = "rule 7: of several contrasts that decide, the one with the smallest difference is shown"
ANEW = "59c09a17 wrote it down anew by the paper's sentence, before its first confirmatory run"
MOVES = {
    "93165434b63fd23d": Move(NO_ROOM, {"verdict": "no room"}),
    "1e2bdc2d1f500aa8": Move(NO_ROOM, {"verdict": "no room"}),
    "ade41a9e221f0540": Move(NO_ROOM, {"verdict": "no room"}),
    "ef876072b9fa3781": Move(NO_ROOM, {"verdict": "no room"}),
    "0b481dee85423874": Move(NO_ROOM, {"verdict": "no room"}),
    "b97f4a12653f2754": Move(SMALLEST, {"estimate": -0.0613806}),
    "ae58a5005d9dd657": Move(SMALLEST, {"estimate": -0.0733348}),
    "13435861e11187aa": Move(SMALLEST, {"estimate": -0.0265255}),
    "3e9974c1dd4b6d60": Move(SMALLEST, {"estimate": -0.0326573}),
    "590100434df8b2a5": Move(ANEW),
    "3e7c75213e74ba89": Move(ANEW),
}


def compared(judged: dict[str, Any] | None) -> dict[str, Any]:
    """Take what both releases have to agree on; nothing if there is no such claim."""
    return {name: judged[name] for name in COMPARED} if judged else {}


def has_more_seeds(then: dict[str, Any], now: dict[str, Any] | None) -> bool:
    """Say whether runs since the release count for a claim that it had not decided."""
    return then["verdict"] in ("not judged yet", "undecided") and now is not None and now["n"] > then["n"]


@pytest.mark.slow
def test_the_verdicts_of_the_previous_release_come_out_again():
    """The estimates agree to six digits. A listed move that is none any more fails, too."""
    today = verdicts(ROOT / "results")
    assert today.keys() >= CLAIMS.keys() - MOVES.keys()
    moved = {}
    for name, then in CLAIMS.items():
        now = today.get(name)
        if compared(now) != compared(then) and not has_more_seeds(then, now):
            changes = compared(now).items() - compared(then).items()
            moved[name] = dict(changes)
    assert moved == {name: move.now for name, move in MOVES.items()}


def test_every_copy_of_the_previous_release_is_read():
    copies = [read_copy(path) for path in sorted((ROOT / "results" / "reference").glob("*/seed=*.json.gz"))]
    assert len(copies) >= RELEASE["copies"]
    assert {copy.status for copy in copies} == {"done", "diverged"}


def test_a_claim_that_was_withdrawn_since_names_the_verdict_of_the_release():
    """SAGE's convergence and the half of a sentence of RSCFed are withdrawn since, and were decided before."""
    named = {}
    for item in items(["all", "rscfed/fig2-plain"], "laptop"):
        for claim in item.claims:
            then = CLAIMS.get(item.hash_of(claim))
            if claim.withdrawn and then and then["look"]:
                named[f"{item.name}: {claim.name}"] = claim.verdicts[item.hash_of(claim)]
                assert named[f"{item.name}: {claim.name}"] == f"{then['verdict']} at laptop, by {then['n']} seeds"
    assert named.keys() >= {
        "sage/tab1: SAGE needs less than three quarters of FixMatch-GPL's rounds",
        "rscfed/fig2: Better than Fed-Consist with adjusted weights",
    }
    assert RELEASE["rule"] <= RULE_VERSION
