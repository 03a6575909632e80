"""The version of the code that a record names."""

import subprocess

import pytest

from benchmark.records import provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one commit, taken for ours."""
    (tmp_path / "benchmark").mkdir()
    (tmp_path / "benchmark" / "a.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    words = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*words, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    provenance.commit.cache_clear()
    yield tmp_path
    provenance.commit.cache_clear()


def changes():
    provenance.commit.cache_clear()
    return provenance.commit()["changes"]


def test_changed_and_new_files_of_the_code_count_and_others_do_not(checkout):
    assert len(provenance.commit()["commit"]) == 40 and changes() is None
    for name in ("notes.txt", "benchmark/run.log"):
        (checkout / name).write_text("x")
    assert changes() is None
    (checkout / "benchmark" / "b.py").write_text("b = 1\n")
    added = changes()
    (checkout / "benchmark" / "b.py").write_text("b = 2\n")
    assert None is not added != changes()
    (checkout / "benchmark" / "b.py").unlink()
    (checkout / "benchmark" / "a.py").write_text("a = 2\n")
    assert changes() is not None


def test_bits_are_expected_of_an_equal_engine_and_machine_whatever_the_workers():
    engine = {"name": "pool", "threads": 1, "workers": 2}
    one = {"engine": engine, "hardware": {"processor": "p", "cores": 2}}
    assert provenance.equal_bits_expected(one, {**one, "engine": {**engine, "workers": 4}})
    others = {"engine": {**engine, "threads": 2}, "hardware": {"processor": "q"}, "packages": {"torch": "9"}}
    assert not any(provenance.equal_bits_expected(one, {**one, name: value}) for name, value in others.items())
    loose = {**one, "engine": {**engine, "bit_equal": False}}
    assert not provenance.equal_bits_expected(loose, loose)


def test_inside_another_project_s_checkout_the_version_is_unknown(checkout, monkeypatch):
    inside = checkout / ".venv" / "site-packages"
    inside.mkdir(parents=True)
    monkeypatch.setattr(provenance, "ROOT", inside)
    provenance.commit.cache_clear()
    assert provenance.commit() == {"commit": "unknown", "changes": None}
