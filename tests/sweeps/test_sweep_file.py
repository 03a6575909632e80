"""Sweep files: what the generator writes is what is committed, and every trap of the format is named with its line."""

import shlex
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.main import main
from benchmark.cli.sweep import COMMITTED, file_of_item
from benchmark.data.partition import ClassSkew, Dirichlet
from benchmark.errors import ConfigError
from benchmark.papers.catalogue import ITEMS, items
from benchmark.records.run import run
from benchmark.records.wandb_mirror import WandbMirror
from sweeps.factors import experiment_of
from sweeps.grid import Grid, checked, combinations, grid_of_words, size
from sweeps.sweep_file import REPORTED, read, written

GRIDS = sorted((COMMITTED / "grids").glob("*.yaml"))
SMALL: Grid = {"R": [0, 0.2], "method": ["crl", "grouping"], "profile": ["demo"]}


COMMITTED_ITEMS = sorted(
    name
    for path in COMMITTED.rglob("*.yaml")
    if not (name := path.relative_to(COMMITTED).with_suffix("").as_posix()).startswith("grids/")
)


@pytest.mark.parametrize("name", COMMITTED_ITEMS)
def test_the_committed_file_of_an_item_is_what_the_generator_writes(name):
    """After a change: fssl sweep all --write sweeps/wandb"""
    (item,) = items([name], "laptop")
    path = COMMITTED / f"{name}.yaml"
    assert path.read_text() == file_of_item(item)
    assert {run.cell_key for run in checked(read(path))} == {cell.cell_key for cell in item.trained}


def test_every_item_that_trains_has_its_file_and_no_other_has():
    assert {item.name for item in items(ITEMS, "laptop") if item.trained} == set(COMMITTED_ITEMS)


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_committed_grid_is_made_by_the_command_in_its_first_line(path, capsys):
    text = path.read_text()
    _, *words = shlex.split(text.splitlines()[0].removeprefix("# made by: "))
    assert main(words) == 0
    assert capsys.readouterr().out == text


def test_factors_land_where_the_papers_letters_mean():
    made = experiment_of(
        {"R": 0.8, "T": 4, "N_s": 100, "K": 8, "C": 3, "S": 3, "method": "grouping", "data": "mnist", "seed": 5}
    )
    (item,) = items(["arena/mnist"], "laptop")
    start = item.cell("SSFL, grouping/untuned").experiment
    assert made.partition == ClassSkew(R=0.8) and made.federation == replace(start.federation, K=8, C=3, T=4)
    assert made.method == replace(start.method, averaging=replace(start.method.averaging, S=3))
    assert made.data == replace(start.data, N_s=100) and made.seed == 5 and made.optimizer == start.optimizer
    assert experiment_of({"alpha": 0.1}).partition == Dirichlet(alpha=0.1, min_size=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "no factors; give some"),
        ("r=0", "unknown factor 'r'"),
        ("alfa=1", "did you mean 'alpha'"),
        ("R=", "write R=VALUE,VALUE"),
        ("R", "has no values"),
        ("R=0 R=1", "twice"),
        ("T=2,2", "a value twice"),
        ("T=1.5", "T: 1.5 is not a whole number"),
        ("R=high", "R: 'high' is not a number"),
        ("method=groping", "did you mean 'grouping'"),
        ("data=minst", "choose digits, mnist or cifar10"),
        ("R=0 alpha=1", "R and alpha"),
        ("R=0,2", "R=2"),
        ("S=2 method=crl", "give method=grouping"),
        ("profile=desk", "unknown profile 'desk'"),
        ("cell=ssfl/tab2:FedAvg/smal", "did you mean 'FedAvg/small'"),
        ("cell=ssfl/tab2:FedAvg/small T=2", "T: a cell fixes all factors"),
        ("seed=-1", "seed: -1"),
    ],
)
def test_what_is_no_grid_is_refused_in_one_line(words, said, capsys):
    assert main(["sweep", "--grid", words]) == 65
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("- 0.2", "- 2e-1", "YAML reads 2e-1 as a text; write 0.2"),
        ("- 0.2", "- 1e3", "YAML reads 1e3 as a text; write 1000.0"),
        ("- 0.2", "- no", "YAML reads a bool; give a number or a name"),
        ("- 0.2", "- None", "R: 'None' is not a number"),
        ("- 0.2", "- null", "YAML reads a NoneType"),
        ("- 0.2", "- [0.2]", "YAML reads a list"),
        ("- crl", "- clr", "did you mean 'crl'"),
        ("  R:", "  partitio.R:", "unknown factor 'partitio.R'"),
        ("    values:\n    - 0\n    - 0.2", "    min: 0.0\n    max: 0.2", "a grid has no ranges"),
        ("    values:\n    - 0\n    - 0.2", "    values: []", "give at least one"),
        ("    values:\n    - 0\n    - 0.2", "    values: 0.2", "is not a list of values"),
        ("    values:\n    - 0\n    - 0.2", "    vales: [0]", "write value: or values"),
        ("method: grid", "method: bayes", "W&B chooses its runs"),
        ("method: grid", "method: bayesian", "choose grid, random or bayes"),
        ("method: grid", "method: grid\nearly_terminate: {type: hyperband}", "leave it out"),
        ("project: fssl", "projekt: fssl", "did you mean 'project'"),
        ("- benchmark.cli.main", "- os", "command: is not that of this suite"),
        ("parameters:", "parameter:", "did you mean 'parameters'?"),
        ("project: fssl", "project: !!python/object/apply:os.system [id]", "is not whole"),
        ("project: fssl", "project: [", "is not whole"),
    ],
)
def test_every_trap_of_the_format_is_named(old, new, said, tmp_path):
    text = written(SMALL, name="small", made_by="a test")
    assert old in text
    (tmp_path / "sweep.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match="sweep.yaml: ") as error:
        read(tmp_path / "sweep.yaml")
    assert said in str(error.value)


def test_any_field_is_a_factor_by_its_name():
    """Of an environment and of a cell; a letter and its field are one."""
    start = experiment_of({"method": "crl"})
    made = experiment_of({"method": "crl", "optimizer.lr": 0.005, "federation.rounds": 7, "federation.K": 12})
    assert made == replace(
        start,
        optimizer=replace(start.optimizer, lr=0.005),
        federation=replace(start.federation, rounds=7, K=12),
    )
    cell = {"cell": "arena/digits:SemiFL/untuned", "profile": "demo"}
    start = experiment_of(cell)
    made = experiment_of(cell | {"method.threshold": 0.8})
    assert made == replace(start, method=replace(start.method, threshold=0.8))
    assert [run.optimizer.lr for run in checked(grid_of_words("optimizer.lr=0.01,0.02"))] == [0.01, 0.02]
    for values, said in (
        ({"K": 4, "federation.K": 5}, "by its letter"),
        ({"optimizer.lrr": 0.1}, "optimizer.lrr"),
        (cell | {"K": 4}, "a cell fixes all factors"),
    ):
        with pytest.raises(ConfigError, match=said):
            experiment_of(values)


def test_a_sweep_whose_runs_wandb_chooses_is_checked(tmp_path, capsys):
    """Its ends have to be experiments; nothing but an agent runs it."""
    path = tmp_path / "bayes.yaml"
    text = written({"optimizer.lr": [0.01], "seed": [0]}, name="lr", made_by="a test").replace("grid", "bayes")
    text = text.replace("    value: 0.01", "    min: 0.001\n    max: 0.1\n    distribution: log_uniform_values")
    path.write_text(text + "early_terminate:\n  type: hyperband\n  min_iter: 10\n")
    assert main(["sweep", "--check", str(path)]) == 0
    assert "bayes: W&B chooses the runs, no error" in capsys.readouterr().out
    assert main(["work", str(path), "--results", str(tmp_path)]) == 65
    path.write_text(text.replace("min: 0.001", "min: -0.001"))
    assert main(["sweep", "--check", str(path)]) == 65
    assert "lr: -0.001" in capsys.readouterr().err
    for wrong, said in (("name: accuracy", "runs do not report 'accuracy'"), ("nam: test/accuracy", "report None")):
        path.write_text(text.replace("name: test/accuracy", wrong))
        assert main(["sweep", "--check", str(path)]) == 65 and said in capsys.readouterr().err


def test_runs_report_the_metric_of_a_sweep_after_each_evaluation(tmp_path):
    """What bayes and early_terminate go by, as W&B's client is given it: a value for each evaluated round."""
    sent = []
    start = {"profile": "demo", "federation.rounds": 5, "federation.T": 1, "evaluation.every": 2}
    for held_out, name in ((False, "test/accuracy"), (True, "validation/accuracy")):
        experiment = experiment_of({**start, "evaluation.validation": held_out})
        mirror = WandbMirror(
            experiment, lambda: None, words={}, mode="offline", wandb_folder=tmp_path, folder_name="seed=0"
        )
        mirror._start = lambda: None  # type: ignore[method-assign]
        mirror._run = SimpleNamespace(log=lambda line, step: sent.append((step, line)))
        run(experiment, tmp_path, callbacks=[mirror])
        assert [step for step, line in sent if name in line and name in REPORTED] == [2, 4, 5]
        sent.clear()


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "R": st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True),
            "T": st.lists(st.integers(1, 10**6), min_size=1, max_size=4, unique=True),
            "method": st.lists(st.sampled_from(["crl", "semifl"]), min_size=1, unique=True),
            "seed": st.lists(st.integers(0, 10**9), min_size=1, max_size=4, unique=True),
        },
    ).filter(bool)
)
def test_what_is_written_is_read_back(tmp_path_factory, grid):
    """Whatever the numbers: 1e-05 and 0.1 + 0.2 among them."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    path.write_text(written(grid, name="a", made_by="b"))
    assert read(path) == grid
    assert len(list(combinations(grid))) == size(grid)


def test_run_takes_an_agents_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"R": 0.2, "T": 2, "profile": "demo", "seed": 3}')
    assert main(["run", "--print-config", "--sweep", str(tmp_path / "config.json")]) == 0
    made = experiment_of({"R": 0.2, "T": 2, "profile": "demo", "seed": 3})
    assert f'"cell_key": "{made.cell_key}"' in capsys.readouterr().out
