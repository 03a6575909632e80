"""The command line: what it prints and lists, and its exit codes; a wrong word leaves nothing, and is named."""

import errno
import json
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest

from benchmark.cli import launch
from benchmark.cli.list import _item
from benchmark.cli.main import VERBS, parser
from benchmark.cli.run import _nothing_kept, resolve
from benchmark.cli.withdrawn import WITHDRAWN
from benchmark.data.datasets import DATASETS
from benchmark.errors import Stopped
from benchmark.methods.registry import METHODS
from benchmark.models.build import NETWORKS
from benchmark.papers.items import ITEMS, items
from benchmark.records.record import run_folder
from benchmark.records.run import run
from benchmark.verdicts.families import begun_under
from benchmark.verdicts.rule import rule
from reports.item_results import ItemResults
from reports.pages import progress
from sweeps.factors import experiment_of
from sweeps.plan import plan, restricted
from sweeps.sweep_file import written
from sweeps.workers import attempt
from tests.conftest import ROOT
from tests.sweeps.agents import FSSL, small_sweep
from tests.sweeps.here import in_this_process
from tests.sweeps.test_tune import TOY_FILE

TINY = ["--federation.K=3", "--federation.C=2", "--federation.T=1", "--federation.rounds=2", "--data.N_s=20"]


@pytest.mark.parametrize(
    ("words", "code", "names"),
    [
        ("run --partition.R=2", 65, "partition.R is 2.0"),
        ("run --federation.cohort=3", 65, "federation.cohort"),
        ("run --optimizer=adam", 65, "optimizer.lr"),
        ("run --federaton.K=3", 65, "'federation'"),
        ("run --federation.C=11", 65, "choose C from 1 to 10"),
        ("run --federation.T=2.5", 65, "federation.T"),
        ("run --method=os:path", 65, "os:path"),
        ("run --method=no_such_module:X", 65, "no_such_module"),
        ("run --optimizer.lr=fast", 65, "optimizer.lr"),
        ("run --optimizer.lr=NaN", 65, "optimizer.lr"),
        ("run --optimizer.lr=1e308", 65, "lr is 1e+308"),  # which no float32 holds
        ("run --optimizer.nesterov=maybe", 65, "optimizer.nesterov"),
        ("run --evaluation.selection=best", 65, "best_on_test"),
        ("run --evaluation.validation=true", 65, "N_validation"),
        ("run seed=1", 65, "--name=value"),
        ("run --seed", 65, "--seed=VALUE"),
        ("run --method=ssfl --method.averaging=grouping --method.averaging.S=11", 65, "S from"),
        ("run --data.N_s=55", 65, "N_s"),
        ("run --data.name=minst", 65, "mnist"),
        ("run --data.name=svhn", 66, "svhn"),
        ("run --method heterofl --method.widths=[] --data.label_setting=share", 65, "method.widths"),
        ("run --method flexmatch_lpl --data.label_setting=share --data.streaming_steps=2", 65, "streaming_steps is 2"),
        ("run --config nothing.yaml", 65, "nothing.yaml"),
        ("run --cell ssfl/tab2:FedAvg/ful", 65, "FedAvg/full"),
        ("run --federation.alpha=1", 65, "'partition.alpha'"),
        ("run --partition.alpha=0.1", 65, "type --partition.kind=dirichlet"),
        ("run --method semifl --method.objective=1", 65, "method.objective"),
        ("tune --search optimiser.lr=0.1,0.2", 65, "'optimizer.lr'"),
        ("status --results pyproject.toml", 66, "not a folder"),
        ("run --threads 0", 65, "--threads: 0"),
        ("run --engine pool --threads 2", 65, "--threads: 2"),
        ("run --engine cpu", 65, "auto, reference, pool"),
        ("run --engine ray", 65, "choose pool"),
        ("run --engine reference --devices cpu,cpu", 65, "--engine pool"),
        ("run --devices cpu --precision tf32", 65, "precision is 'tf32'"),
        ("run --engine pool --workers 0", 65, "--workers: 0"),
        ("run --sweep sweep.json --cell x", 65, "--cell, --profile and --config"),
        ("run --profile laptop", 65, "--cell"),
        ("data partition --data digits --K 3", 65, "'--federation.K'"),
        ("sweep --grid R=0 --write x", 65, "--write"),
        ("report --out x --commit-reference", 65, "--out"),
        ("reproduce sfl", 65, "'ssfl'"),
        ("reproduce ssfl/tab2 --profile lap", 65, "laptop"),
        ("reproduce ssfl/tab2 --seeds many", 65, "many"),
        ("work none.yaml", 65, "none.yaml"),
        ("work ssfl/tab3000", 65, "ssfl/tab3"),
        ("work ssfl/tab2 --devices cuda:99", 65, "'cuda:99'"),
        ("work ssfl/tab2 --address auto", 65, "--address"),
        ("work ssfl/tab2 --launcher ray --devices cpu", 65, "--devices"),
        ("work ssfl/tab2 --launcher ray --gpus-per-run 1.5", 65, "--gpus-per-run: 1.5"),
        ("work ssfl/tab2 --launcher ray --gpus-per-run inf", 65, "--gpus-per-run: 'inf'"),
        ("work ssfl/tab2 --launcher slurm", 65, "local or ray"),
        ("status --profile lptop", 65, "'lptop'"),
        ("status --main --pilots 1", 65, "--main"),
        ("status --rule paper", 65, "--rule"),
        ("status --no-reference", 65, "--no-reference"),
        ("list data --dta x", 65, "'--data-root'"),
        ("run --xyz=3", 65, "`fssl run --help`"),
        ("run --N_s=51", 65, "'--data.N_s'"),
        ("--data=mnist", 65, "`fssl --help`"),
        ("plan", 65, "ITEM"),
        ('sweep --grid ""', 65, "factors"),
        ("sweep --grid 'cell=\"ssfl/tab2:Server only seed=0'", 65, "quote"),
        ('sweep --grid "r=0"', 65, "'r'"),
        ('sweep --grid "R=0 alpha=1"', 65, "R and alpha"),
        ('sweep --grid "R=0,2"', 65, "R=2"),
        ('sweep --grid "S=2 method=crl"', 65, "method=grouping"),
        ('sweep --grid "cell=ssfl/tab2:FedAvg/smal"', 65, "'FedAvg/small'"),
        ('sweep --grid "cell=ssfl/tab2:FedAvg/small T=2"', 65, "T is "),
        ("tune", 65, "fedswitch/open"),
        ("tune nowhere.toml", 65, "nowhere.toml "),
        ("tune fedswitch/open --profile laptop", 66, "mnist"),
        (f"tune {TOY_FILE} --profile laptop", 65, "'laptop'"),
        (f"tune {TOY_FILE} --trials 0", 65, "--trials: 0"),
        (f"tune {TOY_FILE} --storage {TOY_FILE}", 65, "toy.toml"),
        (f"tune {TOY_FILE} --storage postgres:hunter2@h/d", 65, "postgresql+psycopg://USER@HOST"),
        (f"tune {TOY_FILE} --storage postgresql+psycopg://ann:hunter2@127.0.0.1:1/d --jobs 1", 73, "ann:***@127.0.0.1"),
        ("tune --search optimizer.lr=0.01..0.02", 65, "default 0.03"),
        ("tune --search optimizer.lr=0.01..0.1 --search optimizer.lr=0.02,0.03", 65, "optimizer.lr is "),
        ("tune --search seed=0,1", 65, "seed is "),
        ("tune --search evaluation.every=10,20", 65, "evaluation.every is "),
        ("verify arena/digits", 65, "--claims"),
        ("fly", 65, "fly"),
        ("", 65, "COMMAND"),
    ],
)
def test_wrong_words(fssl, tmp_path, monkeypatch, words, code, names):
    monkeypatch.setenv("FSSL_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("benchmark.data.sources.DOWNLOAD_TIMEOUT", 0.1)
    command = words.partition(" ")[0]
    places = ["--results", tmp_path / "results"]
    with_places = places if command in ("run", "reproduce", "plan", "work", "tune") else []
    exit_code, out, err = fssl(*shlex.split(words), *with_places)
    assert exit_code == code and names in err and out == ""
    assert (err.count("\n") == 1 and err.startswith("fssl: ")) or command == "tune"  # which says what it begins
    assert not list(tmp_path.glob("results/*")) and "hunter2" not in err  # a password


@pytest.mark.parametrize("words", ["work x", "run", "data partition"])  # plain, with fields, and within another command
@pytest.mark.parametrize("option", ["--results", "--data-root", "--json", "--with-reference"])
def test_a_shortened_or_misspelt_option_is_refused(fssl, words, option):
    for wrong in (option[:-1], option[:-2] + option[:-3:-1], option + option[-1], f"{option[:-1]}=1"):
        code, _, err = fssl(*words.split(), wrong)
        assert code == 65 and err.startswith(f"fssl: unknown option '{wrong.partition('=')[0]}'; "), (words, wrong)


@pytest.mark.parametrize("typed", WITHDRAWN)
def test_a_withdrawn_name_is_gone_and_names_its_successor(typed, fssl):
    """Alone, with a value, and behind other words; before anything else is looked at."""
    verb, *option = typed.split()
    for words in ([verb, *option], [verb, "x", *option, "2h"], [verb, *(f"{name}=2h" for name in option)]):
        assert fssl(*words) == (65, "", f"fssl: `fssl {typed}` is withdrawn; {WITHDRAWN[typed]}\n")
    assert (verb in VERBS) == bool(option)
    assert not option or option[0] not in parser(verb).format_help()


@pytest.mark.parametrize("command", ["status", "verify", "wandb-rebuild"])
def test_results_that_are_not_there_are_not_read(fssl, tmp_path, command):
    """A mistyped name is no folder without records."""
    code, out, err = fssl(command, "--results", tmp_path / "typo")
    assert (code, out) == (66, "") and str(tmp_path / "typo") in err
    assert not list(tmp_path.iterdir())
    assert fssl("verify", "--results", tmp_path)[0] == 66


@pytest.mark.parametrize("words", ["plan fedswitch/tab1", "list networks", "report fedswitch/tab1 --profile demo"])
def test_no_results_yet_are_a_normal_state(fssl, tmp_path, monkeypatch, words):
    monkeypatch.setattr("benchmark.records.copies.COMMITTED", tmp_path)
    monkeypatch.setattr("benchmark.cli.report.ITEMS", ("fedswitch/tab1",))
    monkeypatch.setattr("benchmark.cli.report.VARIANTS", ())
    code, out, err = fssl(*words.split(), "--results", tmp_path / "later")
    assert code == 0 and out and str(tmp_path / "later") in err


def test_an_unwritable_results_folder(fssl, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = fssl("run", *TINY, "--results", tmp_path / "file")
    assert code == 73 and str(tmp_path / "file") in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_behind_standard_output():
    with open("/dev/full", "w") as full:
        ended = subprocess.run([*FSSL, "list", "methods"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 73 and ended.stderr.count("\n") == 1 and os.strerror(errno.ENOSPC) in ended.stderr


def test_run_prints_its_result_as_json(fssl, tmp_path):
    code, out, _ = fssl("run", *TINY, "--json", "--results", tmp_path)
    result = json.loads(out)
    assert code == 0 and result["status"] == "done" and result["rounds"] == 2
    assert result["folder"] == str(tmp_path / "runs" / result["cell_key"] / "seed=0")
    code, out, _ = fssl("verify", "--json", "--results", tmp_path)
    assert code == 0 and (json.loads(out)["records"], json.loads(out)["troubles"]) == (1, [])


def test_a_run_whose_last_round_kept_no_pseudo_label_says_what_may_keep_some(capsys, tmp_path):
    """Not where some were kept, nor for a method that has none, nor before the warm start has ended."""
    experiment = resolve(None, [*TINY, "--method.threshold=0.9", "--method.warm_start_rounds=1"])
    assert "--method.threshold" in _nothing_kept(experiment, {"pseudo/kept": 0.0})
    assert _nothing_kept(experiment, {"pseudo/kept": 0.1}) == ""
    assert _nothing_kept(resolve(None, [*TINY, "--method", "server_only"]), {}) == ""
    in_warm_start = resolve(None, [*TINY, "--method.threshold=0.9", "--method.warm_start_rounds=2"])
    assert _nothing_kept(in_warm_start, {"pseudo/kept": 0.0}) == ""


def test_a_printed_configuration_runs_again(fssl, tmp_path):
    _, out, _ = fssl("run", *TINY, "--print-config")
    (tmp_path / "same.json").write_text(out)
    _, again, _ = fssl("run", "--config", tmp_path / "same.json", "--print-config")
    assert json.loads(again) == json.loads(out)
    _, short, _ = fssl("run", "--data.N_s=250", "--data", "cifar10", "--print-config")
    assert short and short == fssl("run", "--data.name=cifar10", "--data.N_s=250", "--print-config")[1]


def test_diverging_is_exit_70(fssl, tmp_path):
    words = ("run", *TINY, "--optimizer.lr=1e30", "--json", "--results", tmp_path)
    code, _, err = fssl(*words)
    assert code == 70 and "optimizer.lr" in err  # which to choose smaller
    code, out, _ = fssl(*words)
    assert code == 70 and json.loads(out)["status"] == "diverged"


def test_plan_prints_one_object(fssl, tmp_path):
    """Hours are of the devices that `work` would use with the same words."""
    words = ("plan", "ssfl/tab2", "--profile", "demo", "--pilots", "1", "--results", tmp_path)
    code, out, _ = fssl(*words, "--json", "--devices", "cpu,cpu,cpu")
    planned = json.loads(out)
    assert code == 0 and planned["item"] == "ssfl/tab2" and planned["runs"] == planned["cells"] > 9
    assert {"local_steps", "flops", "bytes_up", "bytes_down", "hours"} <= planned.keys()
    assert (planned["device"], planned["side_by_side"]) == ("cpu", 3)
    code, out, err = fssl(*words, "--devices", "99")
    assert (code, out) == (65, "") and "cuda:99" in err
    assert not (tmp_path / "runs").exists()


def test_a_sweep_file_is_planned_and_looked_at_as_it_is_trained(fssl, tmp_path):
    """Two cells of two seeds, one of them with a record; a file names all its runs, and takes no other words."""
    grid = tmp_path / "grid.yaml"
    places = ("--results", tmp_path)
    short = "T=1 federation.rounds=2 method.warm_start_rounds=0"
    grid.write_text(fssl("sweep", "--grid", f"R=0,0.4 seed=0,1 {short}", "--profile", "demo")[1])
    short_run = {"T": 1, "federation.rounds": 2, "method.warm_start_rounds": 0}
    run(experiment_of({"R": 0, "seed": 1, **short_run, "profile": "demo"}), tmp_path)
    planned = json.loads(fssl("plan", grid, "--json", *places)[1])
    assert (planned["cells"], planned["runs"], planned["profile"]) == (2, 3, "demo")
    seen = json.loads(fssl("status", grid, "--json", *places)[1])
    assert seen["counts"]["done"] == 1 and seen["counts"]["missing"] == 3
    refused = {
        "plan ssfl/tab2": "ITEM",
        "status --seeds 9": "--seeds",
        "work --main": "--main",
        "plan --profile paper": "--profile",
        "status --rule paper": "--rule",
    }
    for words, names in refused.items():
        command, *more = words.split()
        code, _, error = fssl(command, grid, *more, *places)
        assert code == 65 and names in error


@pytest.mark.parametrize("by", ["run", "launcher"])
def test_a_confirming_run_begins_under_its_claims_and_the_rule(by, fssl, tmp_path, monkeypatch):
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
            assert fssl("run", *words, f"--seed={seed}")[0] == 76
        else:
            assert isinstance(attempt(experiment.with_seed(seed), tmp_path, "cpu"), Stopped)
    assert manifests == {100: begun_under(experiment.with_seed(100), tmp_path), 3: {}}
    assert manifests[100].keys() == {"claims", "rule"} and manifests[100]["rule"] == rule()


def test_work_trains_a_sweep_file_once(tmp_path, printed, monkeypatch):
    monkeypatch.setattr(launch, "LocalWorkers", in_this_process)
    path, experiment = small_sweep(
        tmp_path, **{"T": [1], "federation.rounds": [2], "method.warm_start_rounds": [0], "seed": [0, 1]}
    )
    result = run_folder(tmp_path, experiment) / "result.json"
    times = []
    for _ in range(2):
        printed("work", path, "--results", tmp_path, "--jobs", "1")
        times.append([file.stat().st_mtime_ns for file in sorted(tmp_path.glob("runs/*/*/result.json"))])
    assert len(times[0]) == 2 and times[0] == times[1] and result.is_file()


@pytest.mark.parametrize("words", [["work"], ["agent", "team/fssl/s1"]], ids=" ".join)
def test_a_bad_sweep_file_is_refused_before_anything_is_asked_or_written(words, tmp_path, fssl, monkeypatch):
    """W&B has no key here: an agent that went on to ask it would say so."""
    monkeypatch.setenv("WANDB_API_KEY", "")
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    many: dict[str, list[Any]] = {"T": list(range(1, 102)), "seed": list(range(100))}  # 10,100 runs
    (path := tmp_path / "sweep.yaml").write_text(written(many, name="many", made_by="a test"))
    refused = fssl(words[0], path, *words[1:], "--results", tmp_path / "results")
    assert refused[:2] == (65, "") and "--yes" in refused[2] and refused[2].count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.fixture
def nothing_here(tmp_path, monkeypatch):
    """Provide no data folder, an empty cache, no results, and a download that fails the test."""
    monkeypatch.setenv("FSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FSSL_DATA", "")  # which `--data-root` sets
    monkeypatch.setattr("benchmark.data.datasets.download", lambda *_: pytest.fail("a download"))
    monkeypatch.setattr("benchmark.data.datasets.load", lambda *_: pytest.fail("a data set was loaded"))
    return tmp_path


def test_everything_is_listed(nothing_here, printed):
    lists = json.loads(printed("list", "--json", "--profile", "demo", "--results", nothing_here))
    assert [row["item"] for row in lists["items"]] == list(ITEMS)
    assert all(row["done"] == 0 and row["hours left"] is None for row in lists["items"])
    assert [row["item"] for row in lists["items"] if row["runs"] == 0] == ["fedswitch/fig2", "sage/fig5a"]  # images
    assert [row["method"] for row in lists["methods"]] == list(METHODS)
    assert [row["network"] for row in lists["networks"]] == list(NETWORKS)
    assert [row["data set"] for row in lists["data"]] == list(DATASETS)
    assert all(row["what"].endswith(".") for row in lists["methods"] + lists["networks"])


def test_data_sets_are_where_they_are(nothing_here, printed):
    (nothing_here / "here" / "mnist" / "MNIST" / "raw").mkdir(parents=True)
    listed = json.loads(printed("list", "data", "--json", "--data-root", nothing_here / "here"))["data"]
    here = {row["data set"]: row["here"] for row in listed}
    assert here["mnist"] == str(nothing_here / "here" / "mnist")
    assert "with scikit-learn" in here["digits"] and "torchvision downloads" in here["svhn"]
    assert all("no; set FSSL_DATA" in here[name] for name in ("ham10000_64", "cinic10"))
    shown = printed("list", "data", "--data-root", nothing_here / "here")
    lines = {line.split()[0]: line for line in shown.splitlines() if line.strip()}
    assert "60,000" in lines["mnist"] and all(name in lines for name in here)


@pytest.mark.parametrize("name", ["ssfl/tab2", "arena/mnist"])
def test_a_table_has_one_count(name, tmp_path):
    """In the list, in the plan and on its page: committed runs of other seeds, of too few, and of trials."""
    planned = plan(items([name], "laptop"), tmp_path, tell=False)
    (item,) = planned.items
    seen = progress(ItemResults(item, restricted(planned.records, planned.shown)))
    row = _item(item, planned)
    done = len(planned.runs) - len(planned.missing)
    assert done > 0 and (row["done"], seen["runs_done"]) == (done, done)
    assert row["runs"] == seen["runs_wanted"] == len(planned.runs) + len(planned.waiting)


INTERRUPTED = """
import os, signal, sys, threading
from benchmark.cli import entry

sys.argv = ["fssl", "list", "items"]
threading.Timer({delay}, os.kill, (os.getpid(), signal.SIGINT)).start()
entry.main()
"""


@pytest.mark.parametrize("delay", [0.02, 0.1, 0.3])
def test_an_interrupt_while_python_loads_is_one_line(delay):
    command = [sys.executable, "-c", INTERRUPTED.format(delay=delay)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == Stopped.exit_code
    assert ended.stderr.startswith("fssl: ") and ended.stderr.count("\n") == 1


CHANGES_FOLDER = """
import os
from dataclasses import dataclass
from benchmark.methods.server_only import ServerOnly

os.chdir("/")


@dataclass(frozen=True, kw_only=True)
class Mine(ServerOnly):
    def round(self, state, world):
        os.chdir("/")
        return super().round(state, world)
"""


def test_results_stay_where_they_were_named(tmp_path, monkeypatch, printed):
    """Whatever working folder a user's module changes to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "moves.py").write_text(CHANGES_FOLDER)
    short = ["--federation.rounds=1", "--federation.T=1", "--engine", "reference"]
    printed("run", "--method", "moves:Mine", "--results", "r", *short)
    assert list(tmp_path.glob("r/runs/*/*/result.json"))
    sys.modules.pop("moves")


def test_lists_fit_100_columns_and_name_the_profile_of_the_items(printed, tmp_path):
    shown = printed("list", "--profile", "demo", "--results", tmp_path / "r")
    assert max(map(len, shown.splitlines())) <= 100
    assert "demo" in shown.splitlines()[0]
