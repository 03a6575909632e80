"""`fssl work` and the options of a launch: what is trained, and what is refused before anything is written."""

import pytest

from benchmark.cli.main import main
from benchmark.records.record import run_folder
from sweeps.grid import checked
from sweeps.sweep_file import read, written

GOOD = written({"T": [1], "profile": ["demo"], "seed": [0, 1]}, name="small", made_by="a test")
MANY = written({"T": list(range(1, 102)), "seed": list(range(100))}, name="many", made_by="a test")  # 10,100 runs


def test_work_trains_a_sweep_file_once(tmp_path, capsys):
    path = tmp_path / "sweep.yaml"
    path.write_text(GOOD)
    words = ["work", str(path), "--results", str(tmp_path), "--jobs", "1"]
    result = run_folder(tmp_path, checked(read(path))[0]) / "result.json"
    assert main(words) == 0
    assert capsys.readouterr().out == "2 runs done\n"
    written_at = result.stat().st_mtime_ns
    assert main(words) == 0
    assert capsys.readouterr().out == "2 runs done\n" and result.stat().st_mtime_ns == written_at


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none.yaml"], "cannot be read"),
        (["ssfl/tab2", "a.yaml"], "names all its runs"),
        (["ssfl/tab3000"], "ssfl/tab3"),
        (["ssfl/tab2", "--jobs", "0"], "--jobs: 0"),
        (["ssfl/tab2", "--devices", "cuda:99"], "--devices: no device 'cuda:99' in 'cuda:99'; "),
        (["ssfl/tab2", "--devices", "0,99"], "' in '0,99'"),
        (["ssfl/tab2", "--devices", "tpu"], "'tpu' in 'tpu'"),
        (["ssfl/tab2", "--devices", ""], "'' in ''"),
        (["ssfl/tab2", "--address", "auto"], "--address: not with --launcher local"),
        (["ssfl/tab2", "--gpus-per-run", "1"], "--gpus-per-run: not with --launcher local"),
        (["ssfl/tab2", "--launcher", "ray", "--devices", "cpu"], "--devices: not with --launcher ray"),
        (["ssfl/tab2", "--launcher", "ray", "--cpus-per-run", "0"], "--cpus-per-run: 0; more than 0 is needed"),
        (["ssfl/tab2", "--launcher", "ray", "--gpus-per-run", "1.5"], "--gpus-per-run: 1.5; give a share of one"),
        (["ssfl/tab2", "--launcher", "slurm"], "unknown launcher 'slurm'; choose local or ray"),
    ],
)
def test_words_that_cannot_be_right(tmp_path, capsys, words, says):
    assert main(["work", *words, "--results", str(tmp_path / "results")]) == 65
    assert says in capsys.readouterr().err and not (tmp_path / "results").exists()


@pytest.mark.parametrize("command", ["work", "agent"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("  T:", "  Tt:"), "parameters: unknown factor 'Tt'; did you mean 'T'"),
        (MANY, "10,100 runs; --yes takes more than 10,000"),
    ],
    ids=["misspelt factor", "too many runs"],
)
def test_a_bad_sweep_file_is_refused_before_anything_is_asked_or_written(
    command, text, says, tmp_path, capsys, monkeypatch
):
    """W&B has no key here: an agent that went on to ask it would say so."""
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    (path := tmp_path / "sweep.yaml").write_text(text)
    more = ["team/fssl/s1"] if command == "agent" else []
    assert main([command, str(path), *more, "--results", str(tmp_path / "results")]) == 65
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1, captured.err
    assert "API key" not in captured.err and not (tmp_path / "results").exists()
