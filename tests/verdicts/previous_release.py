"""Write `previous_release.json`: the verdicts that an older commit gives by the records that it has.

`python -m tests.verdicts.previous_release COMMIT` unpacks the commit in a temporary git worktree and runs
`verdicts_now.py` on its sources. The commit of a release is given once, after the release.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

FILE = Path(__file__).with_name("previous_release.json")
SCRIPT = Path(__file__).with_name("verdicts_now.py")


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def verdicts_at(place: Path) -> dict[str, Any]:
    """Run `verdicts_now.py` on the sources and the records that are unpacked in the folder."""
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, str(SCRIPT), "--json"]
    done = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    for judged in found["claims"].values():
        del judged["could_decide"]  # runs since the release change it
    return found


def text_of(release: dict[str, Any]) -> str:
    """Write one line per claim, so that a diff of two releases shows the claims that moved."""
    lines = [f"{json.dumps(name)}: {json.dumps(judged)}" for name, judged in release.pop("claims").items()]
    head = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in release.items()]
    claims = '"claims": {\n' + ",\n".join(lines) + "\n}"
    return "{\n" + ",\n".join([*head, claims]) + "\n}\n"


def main(name: str) -> None:
    commit = git("rev-parse", f"{name}^{{commit}}").strip()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "release"
        git("worktree", "add", "--detach", str(place), commit)
        try:
            copies = len(list((place / "results" / "reference").glob("*/seed=*.json.gz")))
            release = {"commit": commit, "copies": copies, **verdicts_at(place)}
        finally:
            git("worktree", "remove", "--force", str(place))
    FILE.write_text(text_of(release))


if __name__ == "__main__":
    main(sys.argv[1])
