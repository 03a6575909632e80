"""Every TOML file says in its first line which kind it is, and where that kind is documented."""

import re
import subprocess

import pytest

from tests.conftest import ROOT

LISTED = ["git", "-C", str(ROOT), "ls-files", "*.toml"]
FILES = [name for name in subprocess.run(LISTED, capture_output=True, text=True).stdout.split() if "/" in name]
MOST = 16  # kinds, as before they were named


@pytest.mark.skipif(not FILES, reason="no checkout")
def test_every_file_names_its_kind_and_the_document_of_the_kind():
    kinds: dict[str, set[str]] = {}
    for name in FILES:
        first = (ROOT / name).read_text().partition("\n")[0]
        match = re.fullmatch(r"# kind: (?P<kind>[a-z ]+); see (?P<document>[\w./]+)", first)
        assert match, f"{name} begins with {first!r}"
        assert (ROOT / match["document"]).is_file(), f"{name} names {match['document']}"
        kinds.setdefault(match["kind"], set()).add(match["document"])
    assert len(kinds) <= MOST
    several = {"names of classes"}  # of methods and of networks
    assert all(len(documents) == 1 for kind, documents in kinds.items() if kind not in several)
