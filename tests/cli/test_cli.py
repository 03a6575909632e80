"""The command line: what it prints, its exit codes, and that a wrong word leaves nothing behind."""

import json

import pytest

from benchmark.cli.main import main
from benchmark.errors import Stopped
from benchmark.papers.catalogue import items
from benchmark.verdicts.families import begun_under
from benchmark.verdicts.rule import rule
from sweeps.processes import attempt

TINY = ["--federation.K=3", "--federation.C=2", "--federation.T=1", "--federation.rounds=2", "--data.N_s=20"]


def fssl(capsys, *words):
    """(exit code, standard output, standard error)"""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", "--partition.R=2"], 65, "R"),
        (["run", "--federation.C=99"], 65, "choose C from 1 to 10"),
        (["run", "--method=ssfl", "--method.averaging=grouping", "--method.averaging.S=11"], 65, "choose S from"),
        (["run", "--data.N_s=55"], 65, "N_s"),
        (["run", "--data.name=minst"], 65, "mnist"),
        (["run", "--data.name=svhn"], 66, "svhn"),
        (["run", "--config", "nothing.yaml"], 65, "nothing.yaml"),
        (["run", "--cell", "ssfl/tab2:FedAvg/ful"], 65, "FedAvg/full"),
        (["run", "--federation.alpha=1"], 65, "unknown key federation.alpha = 1; did you mean 'partition.alpha' or"),
        (["run", "--threads", "0"], 65, "--threads: 0; choose 1 or more"),
        (["run", "--engine", "cpu"], 65, "unknown engine 'cpu'; choose auto, reference, pool"),
        (["run", "--engine", "ray"], 65, "'ray' is withdrawn; choose pool on one machine"),
        (["run", "--engine", "reference", "--devices", "cpu,cpu"], 65, "has one; choose --engine pool"),
        (["run", "--engine", "pool", "--devices", "cuda:99"], 65, "--devices: no device 'cuda:99' in 'cuda:99'; "),
        (["run", "--devices", "cpu", "--precision", "tf32"], 65, "precision: 'tf32', which cpu does not have"),
        (["run", "--engine", "pool", "--workers", "0"], 65, "--workers: 0; choose 1 or more"),
        (["run", "--sweep", "sweep.json", "--cell", "x"], 65, "leave out --cell, --profile and --config"),
        (["run", "--profile", "laptop"], 65, "--profile: is that of --cell"),
        (["data", "partition", "--data", "digits", "--K", "3"], 65, "did you mean '--federation.K'?"),
        (["sweep", "--grid", "R=0", "--write", "x"], 65, "--write: a grid is one sweep and is printed"),
        (["report", "--out", "x", "--commit-reference"], 65, "--commit-reference: not allowed with argument --out"),
        (["run", "--federation.T"], 65, "--federation.T has no value; type --federation.T=VALUE"),
        (["reproduce", "sfl"], 65, "unknown item 'sfl'; did you mean 'ssfl'?"),
        (["reproduce", "ssfl/tab2", "--profile", "lap"], 65, "laptop"),
        (["reproduce", "ssfl/tab2", "--seeds", "0"], 65, "--seeds"),
        (["reproduce", "ssfl/tab2", "--seeds", "many"], 65, "many"),
        (["plan"], 65, "ITEM"),
        (["fly"], 65, "fly"),
        ([], 65, "COMMAND"),
    ],
)
def test_wrong_words(capsys, tmp_path, monkeypatch, words, code, says):
    monkeypatch.setenv("FSSL_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmark.data.sources.DOWNLOAD_TIMEOUT", 0.1)
    places = ["--results", tmp_path / "results"] if words and words[0] in ("run", "reproduce", "plan") else []
    exit_code, out, err = fssl(capsys, *words, *places)
    assert exit_code == code and says in err and out == ""
    assert err.count("\n") == 1 and err.startswith("fssl: ")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["status", "verify", "wandb-rebuild"])
def test_results_that_are_not_there_are_not_read(capsys, tmp_path, command):
    """A mistyped name is no folder without records."""
    code, out, err = fssl(capsys, command, "--results", tmp_path / "typo")
    assert (code, out) == (66, "") and "typo is not there; check its name" in err
    assert not list(tmp_path.iterdir())
    assert fssl(capsys, "verify", "--results", tmp_path)[0] == 66


@pytest.mark.parametrize("words", ["plan fedswitch/tab1", "list networks", "report fedswitch/tab1 --profile demo"])
def test_no_results_yet_are_a_normal_state(capsys, tmp_path, monkeypatch, words):
    monkeypatch.setattr("benchmark.records.copies.COMMITTED", tmp_path)
    code, out, err = fssl(capsys, *words.split(), "--results", tmp_path / "later")
    assert code == 0 and out and "later is not there yet: no run of it counts" in err


def test_an_unwritable_results_folder(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = fssl(capsys, "run", *TINY, "--results", tmp_path / "file")
    assert code == 73 and str(tmp_path / "file") in err


def test_run_prints_its_result_as_json(capsys, tmp_path):
    code, out, _ = fssl(capsys, "run", *TINY, "--json", "--results", tmp_path)
    result = json.loads(out)
    assert code == 0 and result["status"] == "done" and result["rounds"] == 2
    assert result["folder"] == str(tmp_path / "runs" / result["cell_key"] / "seed=0")
    assert fssl(capsys, "verify", "--results", tmp_path)[:2] == (0, "1 records, 0 troubles\n")


def test_a_run_that_kept_no_pseudo_label_says_what_to_do(capsys, tmp_path):
    _, out, _ = fssl(capsys, "run", *TINY, "--method.threshold=0.99", "--results", tmp_path)
    assert "kept no pseudo-label at threshold 0.99; more rounds or a lower --method.threshold may keep some\n" in out


def test_a_printed_configuration_runs_again(capsys, tmp_path):
    _, out, _ = fssl(capsys, "run", *TINY, "--print-config")
    (tmp_path / "same.json").write_text(out)
    _, again, _ = fssl(capsys, "run", "--config", tmp_path / "same.json", "--print-config")
    assert json.loads(again) == json.loads(out)
    _, short, _ = fssl(capsys, "run", "--data.N_s=250", "--data", "cifar10", "--print-config")
    assert short and short == fssl(capsys, "run", "--data.name=cifar10", "--data.N_s=250", "--print-config")[1]


def test_diverging_is_exit_70(capsys, tmp_path):
    words = ("run", *TINY, "--optimizer.lr=1e30", "--json", "--results", tmp_path)
    code, _, err = fssl(capsys, *words)
    assert code == 70 and "not finite" in err
    code, out, _ = fssl(capsys, *words)
    assert code == 70 and json.loads(out)["status"] == "diverged"


def test_plan_prints_one_object(capsys, tmp_path):
    """Hours are of the devices that `work` would use with the same words."""
    words = ("plan", "ssfl/tab2", "--profile", "demo", "--pilots", "1", "--results", tmp_path)
    code, out, _ = fssl(capsys, *words, "--json", "--devices", "cpu,cpu,cpu")
    planned = json.loads(out)
    assert code == 0 and planned["item"] == "ssfl/tab2" and planned["runs"] == planned["cells"] > 9
    assert {"local_steps", "flops", "bytes_up", "bytes_down", "hours"} <= planned.keys()
    assert (planned["device"], planned["side_by_side"]) == ("cpu", 3)
    assert "on 3 cores, all at work" in fssl(capsys, *words, "--devices", "cpu,cpu,cpu")[1]
    assert "no device 'cuda:99'" in fssl(capsys, *words, "--devices", "99")[2]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("by", ["run", "launcher"])
def test_a_confirming_run_begins_under_its_claims_and_the_rule(by, capsys, tmp_path, monkeypatch):
    """A pilot has neither."""
    manifests = {}

    def begin(experiment, results, *, begun_under, **options):
        manifests[experiment.seed] = begun_under()
        raise Stopped

    monkeypatch.setattr("benchmark.records.run.run", begin)
    experiment = items(["ssfl/tab2"], "demo")[0].cell("Server only").experiment
    for seed in (100, 3):
        if by == "run":
            words = ("--cell", "ssfl/tab2:Server only", "--profile", "demo", "--results", tmp_path)
            assert fssl(capsys, "run", *words, f"--seed={seed}")[0] == 76
        else:
            assert isinstance(attempt(experiment.with_seed(seed), tmp_path, "cpu"), Stopped)
    assert manifests == {100: begun_under(experiment.with_seed(100), tmp_path), 3: {}}
    assert manifests[100].keys() == {"claims", "rule"} and manifests[100]["rule"] == rule()
