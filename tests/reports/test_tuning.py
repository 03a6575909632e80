"""Studies on the front page: a sentence and a file each, from the JSON file alone; hostile text stays text."""

import json
from pathlib import Path
from typing import Any

import pytest

from reports.site import build
from reports.tuning import studies_in
from tests.conftest import ROOT
from tests.reports.test_site import HOSTILE, Page, words


def study(**changes: Any) -> str:
    """Make a study of three seeds: the default at 80, 82, 84 %, a better trial at 81, 84, 87 %, and one that was
    pruned.

    Best - default is 1, 2, 3 points: 2 in the mean.
    """
    scores = {0: [0.8, 0.82, 0.84], 1: [0.7, 0.72], 2: [0.81, 0.84, 0.87]}
    trials = [{"number": n, "state": "pruned" if n == 1 else "complete", "scores": s} for n, s in scores.items()]
    start = {"study": "toy/open", "title": "A toy", "profile": "demo", "data": {"name": "digits", "N_validation": 100}}
    return json.dumps({**start, "seeds": [1000, 1001, 1002], "trials": trials, "best": 2, "default": 0, **changes})


def test_a_study_has_a_sentence_and_its_file_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    content = study(title=HOSTILE)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies/toy.json").write_text(content)
    (tmp_path / "studies/half.json").write_text("{")
    front = build([], tmp_path / "site", results=tmp_path)
    page = tmp_path / "site" / "tuning.html"
    shown = words(page)
    assert HOSTILE in shown and "<script>alert" not in page.read_text()
    for value in ("toy/open", "2 complete, 1 pruned", "100 labels of digits", "+2.00 points", "3 common seeds"):
        assert value in shown
    assert "tune/toy.json" in Page(page).links() and (tmp_path / "site/tune/toy.json").read_text() == content
    assert "studies/half.json" in words(front) and not (tmp_path / "site/tune/half.json").exists()


@pytest.mark.parametrize("content", ["[]", '{"study": "x"}', study(best=2, trials=[{"number": 2}])])
def test_a_file_that_is_no_study_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "toy.json").write_text(content)
    studies, (trouble,) = studies_in(tmp_path)
    assert not studies and trouble.startswith("studies/toy.json: ")


def test_the_committed_studies_are_whole() -> None:
    studies, troubles = studies_in(ROOT / "results" / "studies")
    assert len(studies) == 2 and not troubles and all(" +" in text for text, _ in studies.values())
