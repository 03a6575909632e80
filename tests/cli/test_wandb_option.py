"""`--wandb` of `fssl work` and `fssl reproduce`: runs of a table are mirrored while they are trained."""

import json

import pytest

FILE = """
seeds   = 2
fields  = { "federation.rounds" = 2, "federation.T" = 1, "method.warm_start_rounds" = 0 }
rows    = { FedSwitch = {} }
"""


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_SWEEP_ID", raising=False)
    monkeypatch.delenv("FSSL_WANDB", raising=False)
    (tmp_path / "mine.toml").write_text(FILE)
    return tmp_path


def mirrored(folder):
    """Return the ids that W&B has of runs in this folder of results."""
    return {path.name.split("-", 3)[3] for path in (folder / "wandb").glob("wandb/offline-run-*")}


SLOW = [pytest.param(way, marks=pytest.mark.slow) for way in ("environment", "together")]  # W&B starts slowly


@pytest.mark.parametrize("way", ["option", "none", *SLOW])
def test_each_run_of_a_table_is_mirrored_where_it_is_asked_for(table, monkeypatch, fssl, way):
    words = ["work", "./mine.toml", "--profile", "demo", "--jobs", "1", "--results", table / "r"]
    words += ["--wandb", "offline"] if way in ("option", "together") else []
    words += ["--together", "2"] if way == "together" else []
    if way == "environment":
        monkeypatch.setenv("FSSL_WANDB", "offline")
    code, _, err = fssl(*words)
    assert code == 0, err
    runs = json.loads(fssl("status", "--json", "--results", table / "r")[1])["runs"]
    names = mirrored(table / "r")
    assert len(runs) == 2 and "W&B:" not in err
    expected = {f"{run['cell_key']}-{run['seed']}" for run in runs} if way != "none" else set()
    assert names == expected


def test_an_unknown_mode_is_refused_before_anything_is_trained(table, fssl):
    code, _, err = fssl("work", "./mine.toml", "--profile", "demo", "--wandb", "ofline", "--results", table / "r")
    assert code == 65 and "ofline" in err and not (table / "r").exists()
