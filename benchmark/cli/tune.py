"""`fssl tune`: an Optuna study for what a paper does not report, chosen on held-out labels."""

import argparse
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console

from benchmark.cli.launchers import LAUNCHERS
from benchmark.cli.main import ROOT, add_places
from benchmark.cli.train import add_launch, checked_launch
from benchmark.errors import ConfigError
from benchmark.records.files import write_atomically
from reports.formatting import points, points_interval
from reports.tuning import best_over_default, undecided
from sweeps.tune.catalogue import STUDIES, study_named
from sweeps.tune.study import Plan

if TYPE_CHECKING:  # Optuna is imported when a study begins
    from sweeps.tune.book import Book

OUTAGE = 60.0
CAUTION = (
    "The best of many trials looks better on the labels it was chosen with than it is. No test image was read: a table "
    "with its own seeds says what the setting is worth."
)


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Searches what a paper does not report (TPE, seeds as steps of Wilcoxon pruning) on labels held out at the "
        "server, never on test data, and writes the best setting as a diff for you to read and apply. Start as many of "
        "these on one storage as you like; Ctrl-C loses nothing, a killed one goes on where it was."
    )
    command.add_argument("study", nargs="?", metavar="STUDY", help="see --list; or my_module:MY_STUDY")
    command.add_argument("--list", action="store_true", help="the declared studies, their ranges and reasons")
    command.add_argument("--profile", default="demo", help="demo (default), laptop: what the study declares")
    command.add_argument("--trials", type=int, help="in all, those done before included (default: the study's)")
    command.add_argument("--seeds", type=int, help="runs a trial (default: the study's)")
    command.add_argument("--timeout", type=float, metavar="SECONDS", help="stop then, resumable (exit 76)")
    command.add_argument(
        "--storage",
        default=os.environ.get("FSSL_STORAGE"),
        metavar="URL",
        help="a journal's path (default: one under the results), sqlite:///FILE for one host, or "
        "postgresql+psycopg://USER@HOST/DATABASE (default: $FSSL_STORAGE, which other users of the machine cannot "
        "read off its list of processes; a password may also lie in ~/.pgpass)",
    )
    command.add_argument(
        "--outage",
        type=float,
        default=OUTAGE,
        metavar="SECONDS",
        help=f"for which a storage that fails is asked again (default: {OUTAGE:g}, at the start 10), then exit 73",
    )
    command.add_argument("--json", action="store_true", help="print the study as one JSON object, nothing else")
    add_launch(command)
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    if options.list:
        return _list(options)
    if options.study is None:
        raise ConfigError(f"STUDY is missing; {', '.join(STUDIES)} would be right (--list says more)")
    checked_launch(options)
    if options.timeout is not None and not options.timeout > 0:
        raise ConfigError(f"--timeout: {options.timeout}; a positive number of seconds would be right")
    if not options.outage >= 0:
        raise ConfigError(f"--outage: {options.outage}; 0 seconds or more would be right")
    study = study_named(options.study)
    plan = Plan(
        study=study,
        profile=options.profile,
        trials=study.trials if options.trials is None else options.trials,
        seeds=study.seeds if options.seeds is None else options.seeds,
    )
    book = _tuned(plan, options)
    return _tell(book, options)


def _tuned(plan: Plan, options: argparse.Namespace) -> "Book":
    from benchmark.cli.tune_progress import TuneProgress
    from benchmark.data.datasets import load
    from sweeps.tune.loop import tune
    from sweeps.tune.storage import place_of

    place = place_of(options.storage, options.results / "tuning" / f"{plan.slug}.journal")
    load(plan.default.data.name, options.data_root)  # a missing data set is told before anything is written
    console = Console(stderr=True)
    console.print(f"{plan.study.name} ({plan.profile}): {plan.trials} trials of {plan.seeds} seeds, {place.shown}")
    with (
        LAUNCHERS[options.launcher](options, plan.trials) as crew,
        TuneProgress(plan, options.results, console) as progress,
    ):
        return tune(
            plan,
            place,
            options.results,
            crew=crew,
            watch=progress.watch,
            timeout=options.timeout,
            patience=options.takeover_after,
            outage=options.outage,
        )


def _tell(book: "Book", options: argparse.Namespace) -> int:
    """Write the summary and the diff beside it; print them."""
    from sweeps.tune.storage import quiet
    from sweeps.tune.summary import best_values, summary_file, summary_of

    with quiet():
        summary = summary_of(book)
    path = summary_file(options.results, book.plan)
    write_atomically(path, compact(summary))
    best = best_values(summary)
    text = _diff(book.plan, best)
    path_of_diff = path.with_suffix(".diff")
    if text:
        write_atomically(path_of_diff, text.encode())
    else:
        path_of_diff.unlink(missing_ok=True)  # of an earlier best
    if options.json:
        print(json.dumps({**summary, "file": str(path), "diff": str(path_of_diff) if text else None}))
        return 0
    print("\n".join(_lines(summary)))
    print(text or "The defaults are the best of all trials: there is nothing to change.")
    print(f"study: {path}")
    if text:
        print(f"diff: {path_of_diff} (read it, then: git apply {path_of_diff})")
    print(CAUTION)
    return 0


def _diff(plan: Plan, best: Mapping[str, float] | None) -> str:
    from sweeps.tune.patch import diff

    declaration = plan.study.declarations.get(plan.profile)
    if best is None or declaration is None:
        return ""
    return diff(ROOT, declaration, {span.keyword: best[span.field] for span in plan.study.space})


def compact(summary: Mapping[str, Any]) -> bytes:
    """One line a trial, so that git shows what changed."""
    trials = ",\n".join("  " + json.dumps(trial, sort_keys=True, allow_nan=False) for trial in summary["trials"])
    rest = json.dumps({**summary, "trials": None}, indent=1, sort_keys=True, allow_nan=False)
    return (rest.replace('"trials": null', f'"trials": [\n{trials}\n ]') + "\n").encode()


def _lines(summary: Mapping[str, Any]) -> list[str]:
    trials = {trial["number"]: trial for trial in summary["trials"]}
    states = [trial["state"] for trial in trials.values()]
    ended = ", ".join(f"{states.count(s)} {s}" for s in ("complete", "pruned", "failed") if s in states)
    data = summary["data"]
    lines = [
        f"{summary['study']} ({summary['profile']}): {len(trials)} trials ({ended}), {len(summary['seeds'])} seeds",
        f"accuracy on {data['N_validation']} held-out labels of {data['name']}, N_s = {data['N_s']}, in percent:",
    ]
    for name in ("default", "best"):
        trial = trials.get(summary[name])
        if trial is not None:
            scores = " ".join(f"{100 * score:.1f}" for score in trial["scores"])
            lines.append(f"  {name:<8} trial {trial['number']:>3}  {100 * trial['value']:.2f}  (seeds: {scores})")
    if summary["best"] != summary["default"] and (difference := best_over_default(summary)) is not None:
        line = f"paired by seed: {points(difference.mean)} {points_interval(difference.interval)}, n={difference.n}"
        lines.append(line + ("; these seeds do not tell it from the default" if undecided(difference) else ""))
    shares = summary["importance"]
    if shares:
        ordered = sorted(shares.items(), key=lambda entry: -entry[1])
        lines.append("importance: " + ", ".join(f"{name} {share:.2f}" for name, share in ordered))
    return lines


def _list(options: argparse.Namespace) -> int:
    if options.json:
        spans = {n: [{"field": s.field, "low": s.low, "high": s.high, "reason": s.reason} for s in study.space]
                 for n, study in STUDIES.items()}  # fmt: skip
        print(json.dumps(spans))
        return 0
    for study in STUDIES.values():
        profiles = ", ".join(study.profiles)
        print(f"{study.name}  {study.title}\n  {study.reason}")
        print(f"  {study.trials} trials of {study.seeds} seeds; profiles: {profiles}")
        for span in study.space:
            print(f"  {span.field:<26} {span.low:g} to {span.high:g}, {span.scale.name}: {span.reason}")
    return 0
