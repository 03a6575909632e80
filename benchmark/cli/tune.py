"""`fssl tune`: an Optuna study for what a paper does not report, chosen on held-out labels."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from benchmark.cli.launch import add_takeover
from benchmark.cli.main import add_places, number
from benchmark.errors import ConfigError
from benchmark.federated.start import usable_cores
from benchmark.records.files import write_atomically
from benchmark.verdicts.statistics import paired
from sweeps.studies import STUDIES
from sweeps.tune import SCALES, Plan, Worker, checked_storage, finished, shown, study_named, summary_of, tune

CAUTION = (
    "The best of many trials looks better on the labels it was chosen with than it is. No test image was read: a table "
    "with its own seeds says what the setting is worth."
)


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Searches what a paper does not report (Optuna's TPE; a trial that falls behind is given up) on labels held "
        "out at the server, never on test data. Start as many of these on one storage as you like; Ctrl-C loses "
        "nothing, a killed one goes on where it was."
    )
    command.add_argument("study", nargs="?", metavar="STUDY", help="see --list; or my_module:MY_STUDY")
    command.add_argument("--list", action="store_true", help="the declared studies, their ranges and reasons")
    command.add_argument("--profile", default="demo", help="demo (default), laptop: what the study declares")
    command.add_argument("--trials", type=number(1), help="in all, those done before included (default: the study's)")
    command.add_argument("--seeds", type=number(1), help="runs a trial (default: the study's)")
    command.add_argument("--jobs", type=number(1), help="trials side by side on this machine (default: cores)")
    command.add_argument(
        "--timeout", type=number(1, kind=float), metavar="SECONDS", help="begin no trial after that (exit 76)"
    )
    command.add_argument(
        "--storage",
        default=os.environ.get("FSSL_STORAGE"),
        metavar="URL",
        help="a journal's path (default: one under the results), sqlite:///FILE for one host, or "
        "postgresql+psycopg://USER@HOST/DATABASE (default: $FSSL_STORAGE, which other users of the machine cannot "
        "read off its list of processes; a password may also lie in ~/.pgpass)",
    )
    command.add_argument("--json", action="store_true", help="print the study as one JSON object, nothing else")
    add_takeover(command)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    if options.study is None:
        raise ConfigError(f"STUDY is missing; {', '.join(STUDIES)} is declared (--list says more)")
    study = study_named(options.study, STUDIES)
    plan = Plan(
        study=study,
        profile=options.profile,
        trials=study.trials if options.trials is None else options.trials,
        seeds=study.seeds if options.seeds is None else options.seeds,
    )
    summary = _tuned(plan, options)
    path = plan.summary_file(options.results)
    write_atomically(path, compact(summary))
    if options.json:
        print(json.dumps({**summary, "file": str(path)}))
    else:
        print("\n".join(_lines(summary)))
        print(f"study: {path}\n{CAUTION}")
    return 0


def _tuned(plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    from benchmark.data.datasets import load

    storage = checked_storage(options.storage, options.results / "tuning" / f"{plan.slug}.journal")
    load(plan.default.data.name, options.data_root)  # a missing data set is told before anything is written
    console, jobs = Console(stderr=True), options.jobs or usable_cores()
    console.print(
        f"{plan.study.name} ({plan.profile}): {plan.trials} trials of {plan.seeds} seeds, {jobs} side by side, "
        f"{shown(storage)}",
        soft_wrap=True,
    )
    worker = Worker(
        plan=plan,
        storage=storage,
        results=options.results.absolute(),
        data_root=options.data_root,
        patience=options.takeover_after,
        timeout=options.timeout,
    )

    def watch(study: Any) -> None:
        trials = summary_of(study, plan)["trials"]
        pruned = sum(trial["state"] == "pruned" for trial in trials)
        best = max((trial["value"] for trial in trials if trial["value"] is not None), default=None)
        text = f"{finished(study)}/{plan.trials} trials, {pruned} given up early"
        console.print(text if best is None else f"{text}, best {100 * best:.2f} %", highlight=False)

    return summary_of(tune(worker, jobs=min(jobs, plan.trials), watch=watch), plan)


def compact(summary: Mapping[str, Any]) -> bytes:
    """One line a trial, so that git shows what changed."""
    trials = ",\n".join("  " + json.dumps(trial, sort_keys=True, allow_nan=False) for trial in summary["trials"])
    rest = json.dumps({**summary, "trials": None}, indent=1, sort_keys=True, allow_nan=False)
    return (rest.replace('"trials": null', f'"trials": [\n{trials}\n ]') + "\n").encode()


def _lines(summary: Mapping[str, Any]) -> list[str]:
    trials = {trial["number"]: trial for trial in summary["trials"]}
    states = [trial["state"] for trial in trials.values()]
    ended = ", ".join(f"{states.count(s)} {s}" for s in ("complete", "pruned") if s in states)
    data = summary["data"]
    lines = [
        f"{summary['study']} ({summary['profile']}): {len(trials)} trials ({ended}), {len(summary['seeds'])} seeds",
        f"accuracy on {data['N_validation']} held-out labels of {data['name']}, N_s = {data['N_s']}, in percent:",
    ]
    best, default = trials.get(summary["best"]), trials.get(summary["default"])
    for name, trial in (("default", default), ("best", best)):
        if trial is not None:
            scores = " ".join(f"{100 * score:.1f}" for score in trial["scores"])
            lines.append(f"  {name:<8} trial {trial['number']:>3}  {100 * trial['value']:.2f}  (seeds: {scores})")
    if best is not None and default is not None and best is not default:
        difference = paired(dict(enumerate(best["scores"])), dict(enumerate(default["scores"])))
        if difference is not None and difference.interval is not None:
            low, high = difference.interval
            line = f"paired by seed: {100 * difference.mean:+.2f} points [{100 * low:.2f}, {100 * high:.2f}]"
            told = "" if low > 0 else "; these seeds do not tell it from the default"
            lines.append(f"{line}, n={difference.n}{told}")
    if best is default:
        lines.append("The defaults are the best of all trials: there is nothing to change.")
    elif best is not None:
        lines.append("values (default -> best):")
        for span in summary["space"]:
            lines.append(f"  {span['field']:<26} {span['default']:g} -> {best['values'][span['field']]:g}")
    if summary["importance"]:
        ordered = sorted(summary["importance"].items(), key=lambda entry: -entry[1])
        lines.append("importance: " + ", ".join(f"{name} {share:.2f}" for name, share in ordered))
    return lines


def _list(options: argparse.Namespace) -> int:
    if options.json:
        told = {
            name: [{"field": s.field, "low": s.low, "high": s.high, "reason": s.reason} for s in study.space]
            for name, study in STUDIES.items()
        }
        print(json.dumps(told))
        return 0
    for study in STUDIES.values():
        print(f"{study.name}  {study.title}\n  {study.reason}")
        print(f"  {study.trials} trials of {study.seeds} seeds; profiles: {', '.join(study.profiles)}")
        for span in study.space:
            print(f"  {span.field:<26} {span.low:g} to {span.high:g}, {SCALES[span.scale]}: {span.reason}")
    return 0
