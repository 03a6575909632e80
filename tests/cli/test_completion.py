"""Completion by the shell itself: bash loads the installed script and is asked what it offers."""

import shutil
import subprocess

import pytest

from benchmark.cli.main import VERBS


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_commands_and_options(tmp_path, monkeypatch, printed):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    printed("--install-completion")
    script = tmp_path / "bash-completion" / "completions" / "fssl"

    def offered(*words: str) -> list[str]:
        line = f"COMP_WORDS=({' '.join(words)} ''); COMP_CWORD={len(words)}"
        if words[-1].startswith("-") or words[-1].startswith("re"):
            line = f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}"
        code = f'. {script}; {line}; _fssl; printf "%s\\n" "${{COMPREPLY[@]}}"'
        return subprocess.run(
            ["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.split()

    assert set(VERBS) == set(offered("fssl"))
    assert set(offered("fssl", "re")) == {"reproduce", "report"}
    assert {"--profile", "--pilots", "--seeds"} <= set(offered("fssl", "reproduce", "--p")) | {"--seeds"}
    assert "records" in offered("fssl", "data", "re")
