"""Every TOML file says in its first line which kind it is, and where that kind is documented."""

import re
import subprocess

import pytest

from tests.conftest import ROOT
from tests.readme import own_table

LISTED = ["git", "-C", str(ROOT), "ls-files", "*.toml"]
FILES = [name for name in subprocess.run(LISTED, capture_output=True, text=True).stdout.split() if "/" in name]
FIRST_LINE = r"# kind: (?P<kind>[a-z ]+); see (?P<document>[\w./]+)"
MOST = 13  # kinds; a further one needs a reader and a document of its own


@pytest.mark.skipif(not FILES, reason="no checkout")
def test_every_file_names_its_kind_and_the_document_of_the_kind():
    kinds: dict[str, set[str]] = {}
    for name in FILES:
        first = (ROOT / name).read_text().partition("\n")[0]
        match = re.fullmatch(FIRST_LINE, first)
        assert match, f"{name} begins with {first!r}"
        assert (ROOT / match["document"]).is_file(), f"{name} names {match['document']}"
        kinds.setdefault(match["kind"], set()).add(match["document"])
    assert len(kinds) <= MOST
    several = {"names of classes"}  # of methods and of networks
    assert all(len(documents) == 1 for kind, documents in kinds.items() if kind not in several)


def test_the_table_of_the_readme_has_the_kind_of_a_paper_s_table():
    """So users' files say their kind, too, if they begin with README's."""
    published = (ROOT / "results" / "published" / "ssfl" / "tab2.toml").read_text()
    assert own_table().partition("\n")[0] == published.partition("\n")[0]
