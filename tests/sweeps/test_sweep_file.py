"""Sweep files: what the generator writes is what is committed, and every trap of the format is named with its line."""

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.sweep import COMMITTED, file_of_item
from benchmark.data.partition import ClassSkew, Dirichlet
from benchmark.errors import ConfigError
from benchmark.papers.arena import ENTRIES
from benchmark.papers.items import ITEMS, cell_named, items
from benchmark.plain import read_table
from benchmark.records.record import run_folder
from benchmark.records.run import run
from sweeps.factors import METHODS, experiment_of
from sweeps.grid import Grid, checked, grid_of_words
from sweeps.sweep_file import REPORTED, read, written
from tests.conftest import record_of

GRIDS = sorted((COMMITTED / "grids").glob("*.yaml"))
CHOSEN_BY_WANDB = sorted((COMMITTED / "bayes").glob("*.yaml"))
SMALL: Grid = {"R": [0, 0.2], "method": ["crl", "grouping"], "profile": ["demo"]}


def test_the_committed_file_of_every_item_is_what_the_generator_writes():
    """After a change: fssl sweep all --write sweeps/wandb"""
    trained = {COMMITTED / f"{item.name}.yaml": item for item in items(ITEMS, "laptop") if item.trained}
    assert {*trained, *GRIDS, *CHOSEN_BY_WANDB} == set(COMMITTED.rglob("*.yaml"))
    for path, item in trained.items():
        assert path.read_text() == file_of_item(item)
    path = COMMITTED / "ssfl" / "tab2.yaml"
    of_item = {cell.cell_key for cell in trained[path].trained}
    assert {run.cell_key for run in checked(read(path))} == of_item


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_committed_grid_is_made_by_the_command_in_its_first_line(path, printed):
    text = path.read_text()
    _, *words = shlex.split(text.splitlines()[0].removeprefix("# made by: "))
    assert printed(*words) == text


@pytest.mark.parametrize("path", CHOSEN_BY_WANDB, ids=lambda path: path.stem)
def test_an_example_of_a_search_passes_the_check_and_never_goes_by_test_data(path, printed):
    printed("sweep", "--check", path)
    content = read_table(path)
    assert content["method"] == "bayes" and content["metric"]["name"].startswith("validation/")


def test_a_sweep_file_without_a_command_is_answered_with_what_to_write(tmp_path, fssl, printed):
    """What the message says to write passes when it is pasted."""
    text = "method: grid\nparameters:\n  R: {values: [0, 0.4]}\n"
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    code, _, err = fssl("sweep", "--check", path)
    assert code == 65
    path.write_text(text + err.partition("; write ")[2])
    assert "2 runs" in printed("sweep", "--check", path)


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
    ("old", "new", "said"),
    [
        ("- 0.2", "- 2e-1", "write 0.2"),
        ("- crl", "- clr", "did you mean 'crl'"),
        ("  R:", "  partitio.R:", "unknown factor 'partitio.R'"),
        ("    values:\n    - 0\n    - 0.2", "    min: 0.0\n    max: 0.2", "a grid has no ranges"),
        ("    values:\n    - 0\n    - 0.2", "    values: 0.2", "is not a list of values"),
        ("method: grid", "method: bayes", "`wandb agent`"),
        ("- benchmark.cli.main", "- os", "write command: ["),
        ("project: fssl", "project: !!python/object/apply:os.system [id]", "is not valid"),
    ],
)
def test_every_trap_of_the_format_is_named(old, new, said, tmp_path):
    text = written(SMALL, name="small", made_by="a test")
    assert old in text
    (tmp_path / "sweep.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match="sweep.yaml") as error:
        read(tmp_path / "sweep.yaml")
    assert said in str(error.value)


def test_any_field_is_a_factor_by_its_name():
    """Of an environment and of a cell; a letter and its field are one."""
    start = experiment_of({"method": "crl"})
    made = experiment_of({"method": "crl", "optimizer.lr": 0.005, "federation.rounds": 7, "federation.K": 12})
    federation = replace(start.federation, rounds=7, K=12)
    assert made == replace(start, optimizer=replace(start.optimizer, lr=0.005), federation=federation)
    cell = {"cell": "arena/digits:SemiFL/untuned", "profile": "demo"}
    start = experiment_of(cell)
    made = experiment_of(cell | {"method.threshold": 0.8})
    assert made == replace(start, method=replace(start.method, threshold=0.8))
    assert [run.optimizer.lr for run in checked(grid_of_words("optimizer.lr=0.01,0.02"))] == [0.01, 0.02]
    with pytest.raises(ConfigError, match="by its letter"):
        experiment_of({"K": 4, "federation.K": 5})


def test_methods_for_clients_with_labels_are_swept_too():
    """`data=clients` is arena/clients, with its rule of partition; its methods and those for a server's labels are
    told apart."""
    assert all(METHODS) and len(METHODS) == len(ENTRIES)  # each of the arena has a word of its own
    for word, label in (("sage", "SAGE"), ("labels_alone", "Labels alone"), ("fedswitch", "FedSwitch")):
        made = experiment_of({"data": "clients", "method": word, "profile": "demo"})
        assert made == cell_named(f"arena/clients:{label}/untuned", "demo")
    skewed = experiment_of({"data": "clients", "method": "sage", "profile": "demo", "alpha": 1})
    made = experiment_of({"data": "clients", "method": "sage", "profile": "demo"})
    assert skewed == replace(made, partition=Dirichlet(alpha=1.0, rule="sage"))
    with pytest.raises(ConfigError, match="'sage' .*data=mnist; choose data=clients"):
        experiment_of({"data": "mnist", "method": "sage"})
    with pytest.raises(ConfigError, match="'crl' .*data=clients; choose data=digits, data=mnist, "):
        experiment_of({"data": "clients"})


def test_a_sweep_whose_runs_wandb_chooses_is_checked(tmp_path, fssl, printed):
    """Its ends have to be experiments; nothing but an agent runs it."""
    path = tmp_path / "bayes.yaml"
    text = written({"optimizer.lr": [0.01], "seed": [0]}, name="lr", made_by="a test").replace("grid", "bayes")
    text = text.replace("    value: 0.01", "    min: 0.001\n    max: 0.1\n    distribution: log_uniform_values")
    path.write_text(text + "early_terminate:\n  type: hyperband\n  min_iter: 10\n")
    assert "bayes: W&B chooses the runs, no error" in printed("sweep", "--check", path)
    assert fssl("work", path, "--results", tmp_path)[0] == 65
    for right, wrong, said in (
        ("min: 0.001", "min: -0.001", "lr is -0.001"),
        ("name: test/accuracy", "name: accuracy", "'accuracy'"),
        ("name: test/accuracy", "nam: test/accuracy", "None"),
    ):
        path.write_text(text.replace(right, wrong))
        code, _, err = fssl("sweep", "--check", path)
        assert code == 65 and said in err


@pytest.mark.parametrize(("held_out", "name"), [(False, "test/accuracy"), (True, "validation/accuracy")])
def test_runs_report_the_metric_of_a_sweep_after_each_evaluation(held_out, name, tmp_path):
    """What bayes and early_terminate go by: W&B is sent each recorded round."""
    start = {"profile": "demo", "federation.rounds": 5, "federation.T": 1, "evaluation.every": 2}
    experiment = experiment_of({**start, "evaluation.validation": held_out})
    run(experiment, tmp_path)
    rounds = record_of(run_folder(tmp_path, experiment)).rounds
    assert [line["round"] for line in rounds if name in line and name in REPORTED] == [2, 4, 5]


@given(st.lists(st.floats(0, 1), min_size=1, unique=True), st.lists(st.integers(0), min_size=1, unique=True))
def test_what_is_written_is_read_back(tmp_path_factory, R, seeds):
    """Whatever the numbers: 1e-05 and 0.1 + 0.2 among them."""
    path = tmp_path_factory.mktemp("sweep") / "sweep.yaml"
    grid = {"R": R, "method": ["crl", "semifl"], "seed": seeds}
    path.write_text(written(grid, name="a", made_by="b"))
    assert read(path) == grid


def test_values_with_blanks_and_commas_stand_in_double_quotes(printed, tmp_path):
    """The first line of the file is the command that writes it again."""
    words = 'cell="semifl/tab3:FedMatch/IID","rscfed/tab2:SVHN/RSCFed, weight held","ssfl/tab2:Server only" seed=0,1'
    cells = ["semifl/tab3:FedMatch/IID", "rscfed/tab2:SVHN/RSCFed, weight held", "ssfl/tab2:Server only"]
    assert grid_of_words(words) == {"cell": cells, "seed": [0, 1]}
    text = printed("sweep", "--grid", 'cell="ssfl/tab2:Server only" seed=0', "--profile", "demo")
    (tmp_path / "grid.yaml").write_text(text)
    assert read(tmp_path / "grid.yaml")["cell"] == ["ssfl/tab2:Server only"]
    _, *typed = shlex.split(text.splitlines()[0].removeprefix("# made by: "))
    assert printed(*typed) == text
