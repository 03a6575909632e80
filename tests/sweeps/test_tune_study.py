"""A study as data, the draws of its trials, and the diff of its best setting."""

import ast
import importlib.util
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.cli.tune import compact
from benchmark.errors import ConfigError
from benchmark.experiment import to_json
from benchmark.papers.arena import digits, mnist
from benchmark.papers.catalogue import ITEMS, items
from sweeps.tune.book import best_of
from sweeps.tune.catalogue import FEDSWITCH_OPEN, STUDIES, study_named
from sweeps.tune.patch import diff, with_values
from sweeps.tune.sampling import NamedTPE, pruner
from sweeps.tune.storage import Journal, quiet
from sweeps.tune.study import Declaration, Linear, Log, LogBelowOne, Plan, Span, field_of
from tests.conftest import ROOT
from tests.sweeps.toy_study import TOY, defaults, toy_plan


@given(st.floats(1e-4, 0.999))
def test_scales_give_back_what_they_take(value):
    """To three digits of the coordinate: of 1 - value where that is searched."""
    for scale in (Linear(), Log()):
        assert scale.outer(scale.inner(value)) == pytest.approx(value, rel=5e-3)
    below = LogBelowOne()
    assert 1 - below.outer(below.inner(value)) == pytest.approx(1 - value, rel=5e-3)


def test_a_ratio_keeps_its_digits():
    """1 - 0.0123 is 0.9877, and no 0.98770000000000002."""
    assert repr(LogBelowOne().outer(0.01234)) == "0.9877"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"space": ()}, "empty"),
        ({"space": (TOY.space[0], TOY.space[0])}, "each field once"),
        ({"seeds": 0}, "seeds is 0"),
        ({"trials": 0}, "trials is 0"),
    ],
)
def test_studies_that_cannot_be(changes, says):
    with pytest.raises(ConfigError, match=says):
        replace(TOY, **changes)


@pytest.mark.parametrize(
    ("study", "numbers", "says"),
    [
        (TOY, {"trials": 0}, "--trials: 0"),
        (TOY, {"seeds": 0}, "--seeds: 0"),
        (replace(TOY, profiles=("laptop",)), {}, "--profile: 'demo'"),
        (replace(TOY, space=(Span(field="optimizer.lr", low=0.1, high=0.2, reason=""),)), {}, "outside its span"),
        (replace(TOY, space=(Span(field="optimizer.rl", low=0.1, high=0.2, reason=""),)), {}, "no 'rl'"),
        (replace(TOY, space=(Span(field="optimizer.nesterov", low=0, high=1, reason=""),)), {}, "is no number"),
        (replace(TOY, experiment=lambda profile: replace(e := defaults(profile), data=replace(e.data, N_validation=0))),
         {}, "never on test data"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be(study, numbers, says):
    with pytest.raises(ConfigError, match=says):
        toy_plan(study, **numbers)


@pytest.mark.parametrize(("low", "high", "scale"), [(0.2, 0.1, Linear()), (0.0, 1.0, Log()), (0.5, 1.0, LogBelowOne())])
def test_spans_that_cannot_be(low, high, scale):
    with pytest.raises(ConfigError, match="would be right"):
        Span(field="optimizer.lr", low=low, high=high, scale=scale, reason="")


def test_a_trial_differs_from_the_default_in_its_values_and_in_what_is_measured():
    plan = toy_plan()
    runs = plan.runs({"optimizer.lr": 0.2, "partition.R": 0.1})
    assert [run.seed for run in runs] == [1000, 1001]  # apart from a table's 0, 1, ...
    assert all(run.evaluation.validation and run.evaluation.every == run.federation.rounds for run in runs)
    found, before = to_json(runs[0]), to_json(defaults("demo"))
    assert (found["optimizer"].pop("lr"), found["partition"].pop("R")) == (0.2, 0.1)
    assert (before["optimizer"].pop("lr"), before["partition"].pop("R")) == (0.05, 0.4)
    for name in ("evaluation", "seed"):
        del found[name], before[name]
    assert found == before


def test_the_key_names_the_question():
    """More trials go on with a study; another space, default or number of seeds is another one."""
    key = toy_plan().key
    assert toy_plan(trials=9).key == key
    wider = replace(TOY, space=(replace(TOY.space[0], high=0.6), *TOY.space[1:]))
    shorter = replace(TOY, experiment=lambda p: replace(d := defaults(p), federation=replace(d.federation, rounds=2)))
    others = [toy_plan(seeds=3).key, toy_plan(wider).key, toy_plan(shorter).key]
    assert len({key, *others}) == 4


@pytest.mark.parametrize(("profile", "item"), [("demo", digits), ("laptop", mnist)])
def test_fedswitch_is_tuned_in_the_arenas_environment(profile, item):
    """All but the fields of the space is what the arena's FedSwitch has."""
    (arena,) = [cell.experiment for cell in item(profile).cells if cell.label == "FedSwitch/own"]
    plan = Plan(study=FEDSWITCH_OPEN, profile=profile, trials=1, seeds=1)
    found, theirs = to_json(plan.default), to_json(arena)
    for span in FEDSWITCH_OPEN.space:
        part, _, name = span.field.partition(".")
        del found[part][name], theirs[part][name]
    assert found == theirs and plan.default.data.N_validation > 0


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_every_declared_study(study):
    """Each profile makes a plan; each field is in the declaration that a diff would change, at the default's value; no
    table's run is among the trials."""
    tables = {cell.cell_key for name in ITEMS for item in items([name], "demo") for cell in item.cells}
    for profile in study.profiles:
        plan = Plan(study=study, profile=profile, trials=study.trials, seeds=study.seeds)
        assert all(run.evaluation.validation for run in plan.runs(plan.defaults))
        assert not {run.cell_key for run in plan.runs(plan.defaults)} & tables
        declared = {span.keyword: plan.defaults[span.field] for span in study.space}
        assert diff(ROOT, study.declarations[profile], declared) == ""
    assert all(span.reason for span in study.space)


@pytest.mark.parametrize("name", ["fedswitch/opne", "tests.sweeps.nothing:TOY", "tests.sweeps.toy_study:defaults"])
def test_names_that_are_no_study(name):
    with pytest.raises(ConfigError, match=r"would be right|cannot be imported|did you mean 'fedswitch/open'"):
        study_named(name)


def test_a_study_of_ones_own():
    assert study_named("tests.sweeps.toy_study:TOY").name == "toy/tiny"


def _accuracy(params: dict[str, float]) -> float:
    """A hill over the toy's space, in place of training."""
    return -((params["optimizer.lr"] - 0.1) ** 2) - (params["partition.R"] - 0.3) ** 2 - params["optimizer.momentum"]


def _searched(plan: Plan, path: Path, pieces: list[int]) -> list[dict[str, float]]:
    """The parameters of the study's trials, with everything of Optuna made anew before each piece of so many trials."""
    found: list[dict[str, float]] = []
    with quiet():
        for piece in pieces:
            study = optuna.create_study(
                storage=Journal(path=path).open(60),
                study_name="s",
                direction="maximize",
                load_if_exists=True,
                sampler=NamedTPE(plan),
                pruner=pruner(plan),
            )
            for _ in range(piece):
                trial = study.ask()
                params = {s.field: trial.suggest_float(s.field, *s.bounds, log=s.scale.log) for s in plan.study.space}
                study.tell(trial, _accuracy(params))
                found.append(params)
    return found


def test_draws_do_not_depend_on_how_often_a_study_was_begun(tmp_path):
    """Twelve trials in one piece, in pieces of one, and of another question: the same, the same, others. No draw comes
    twice, and the first is the default (1 - momentum is what is searched)."""
    plan = replace(toy_plan(), trials=12)
    whole = _searched(plan, tmp_path / "a", [12])
    assert _searched(plan, tmp_path / "b", [1] * 12) == whole
    assert whole[0] == {"optimizer.lr": 0.05, "optimizer.momentum": pytest.approx(0.1), "partition.R": 0.4}
    assert len({tuple(params.values()) for params in whole}) == 12
    other = _searched(toy_plan(seeds=3), tmp_path / "c", [4])
    assert other[0] == whole[0] and not any(params in whole for params in other[1:])
    random = [_accuracy(params) for params in whole[1:3]]
    assert max(map(_accuracy, whole[3:])) > max(random)  # TPE has found something


def test_the_best_is_the_first_of_equals():
    def complete(number, value):
        trial = optuna.trial.create_trial(value=value)
        trial.number = number
        return trial

    trials = [
        complete(0, 0.5),
        complete(1, 0.75),
        complete(2, 0.75),
        optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL),
    ]
    best = best_of(trials)
    assert best is not None and best.number == 1 and best_of(trials[3:]) is None


SOURCE = '''"""A file with its own layout."""

é = "bytes and characters differ"
DEMO = Values(  # why
    lr=0.03,  # gamma
    ratio=.9, beta=-1.0,
)
LAPTOP = Values(lr=0.5)
'''
DEMO = Declaration(file="values.py", name="DEMO")


@given(st.floats(1e-6, 1e6), st.floats(-1e3, 1e3))
def test_with_values_changes_its_declarations_literals_alone(ratio, beta):
    changed = with_values(SOURCE, DEMO, {"ratio": ratio, "beta": beta})
    (call,) = [node for node in ast.walk(ast.parse(changed)) if isinstance(node, ast.Call) and len(node.keywords) == 3]
    assert {k.arg: ast.literal_eval(k.value) for k in call.keywords} == {"lr": 0.03, "ratio": ratio, "beta": beta}
    for line in ("    lr=0.03,  # gamma\n", "LAPTOP = Values(lr=0.5)\n", "DEMO = Values(  # why\n", 'é = "bytes'):
        assert line in changed


@pytest.mark.parametrize(("name", "values", "says"), [("DEMO", {"tau": 1.0}, "'tau'"), ("GPU", {"lr": 1.0}, "no GPU")])
def test_declarations_that_do_not_fit(name, values, says):
    with pytest.raises(ConfigError, match=says):
        with_values(SOURCE, Declaration(file="values.py", name=name), values)


def test_the_diff_applies_and_yields_the_values(tmp_path):
    """`git apply` of FedSwitch's diff in a repository with the declared file: the module then has these values, the
    other profile has what it had."""
    declaration = FEDSWITCH_OPEN.declarations["demo"]
    file = tmp_path / declaration.file
    file.parent.mkdir(parents=True)
    file.write_text((ROOT / declaration.file).read_text())
    wanted = {span.keyword: 0.123 + place for place, span in enumerate(FEDSWITCH_OPEN.space)}
    (tmp_path / "best.diff").write_text(diff(tmp_path, declaration, wanted))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", "best.diff"], cwd=tmp_path, check=True)
    spec = importlib.util.spec_from_file_location("unreported_after", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {name: getattr(module.FEDSWITCH_DEMO, name) for name in wanted} == wanted
    before = Plan(study=FEDSWITCH_OPEN, profile="laptop", trials=1, seeds=1).defaults
    assert {s.field: getattr(module.FEDSWITCH_LAPTOP, s.keyword) for s in FEDSWITCH_OPEN.space} == before


def test_a_compact_file_has_a_line_a_trial():
    summary = {"a": 1, "trials": [{"number": 0, "v": 0.5}, {"number": 1, "v": None}]}
    text = compact(summary).decode()
    assert json.loads(text) == summary and sum('"number"' in line for line in text.splitlines()) == 2


def test_field_of_walks_dots():
    assert field_of(defaults("demo"), "method.objective.threshold") == 0.14
