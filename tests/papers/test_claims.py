"""Claims of all papers: verbatim sentences, as they stood in the commits that they name."""

import re
import subprocess
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmark.papers.item import ACCURACY
from benchmark.papers.published import PUBLISHED, claims_of, read_published
from tests.conftest import ROOT
from tests.papers.conftest import shared

TEXTS = {name: f"papers/{name}.md" for name in ("semifl", "rscfed", "fedswitch")}
TEXTS |= {"ssfl": "papers/ssfl_gradient_diversity.md", "sage": "facts/sage_protocol.md"}
PATHS = [path for paper in TEXTS for path in sorted((PUBLISHED / paper).glob("*.toml")) if path.stem != "departures"]
NAMES = [f"{path.parent.name}/{path.stem}" for path in PATHS]
WITHOUT_TEXT = ("Twin-sight, arXiv:2402.14430",)  # sources that are not in the shared folder


def plain(text: str) -> str:
    """Remove white space, because the text has some around each formula."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", NAMES)
def test_every_quote_is_in_the_paper(name):
    text = plain(shared(TEXTS[name.split("/")[0]]).read_text())
    for claim in read_published(name).claims:
        assert plain(claim["quote"]) in text or claim["source"].startswith(WITHOUT_TEXT)
        assert claim["quote"] or claim["source"].startswith("our ")


HASHED = {  # what a claim's hash is made of
    "quote",
    "source",
    "contrast",
    "contrasts",
    "form",
    "endpoint",
    "metric",
    "least",
    "main",
    "data",
    "mean_over",
    "each_of",
}


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_claim_stands_in_the_commit_that_it_names(name):
    """As it is now, in a commit of that hour."""
    claims = [claim for claim in read_published(name).claims if claim.get("commit")]
    for commit in {claim["commit"] for claim in claims}:
        try:
            hour = datetime.fromtimestamp(int(git("show", "-s", "--format=%ct", commit)), UTC)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("the history is not here")
        then = tomllib.loads(git("show", f"{commit}:results/published/{name}.toml"))["claims"]
        for claim in (claim for claim in claims if claim["commit"] == commit):
            assert claim["made"] == hour
            assert hashed(claim) in map(hashed, then), claim["name"]


def hashed(claim: Mapping[str, Any]) -> dict[str, Any]:
    return {"endpoint": "last", "metric": ACCURACY, "main": False} | {k: v for k, v in claim.items() if k in HASHED}


CLAIM = {
    "name": "More is better",
    "quote": "",
    "source": "ours",
    "data": ["a", "b"],
    "contrast": {"{data}/x": 1.0, "{data}/y": -1.0},
    "form": "improves",
    "least": 0.01,
}


def test_a_claim_over_data_sets_is_one_for_each():
    claims = claims_of([CLAIM], {"a": "A", "b": "B"})
    assert [claim.name for claim in claims] == ["More is better (A)", "More is better (B)"]
    assert [claim.contrasts for claim in claims] == [({"A/x": 1.0, "A/y": -1.0},), ({"B/x": 1.0, "B/y": -1.0},)]


def test_a_claim_over_one_stand_in_is_judged_once():
    """Two claims that the stand-in makes the same contrast are one, so that it is not corrected for twice."""
    again = CLAIM | {"name": "Again", "data": ["b"]}
    (claim,) = claims_of([CLAIM, again], {"a": "MNIST", "b": "MNIST"})
    assert (claim.name, claim.contrasts) == ("More is better", ({"MNIST/x": 1.0, "MNIST/y": -1.0},))
    within = CLAIM | {"name": "Within", "form": "comparable"}
    assert len(claims_of([CLAIM, within], {"a": "MNIST", "b": "MNIST"})) == 2
