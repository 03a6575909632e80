"""`fssl tune`: an Optuna study for what a paper does not report, chosen on held-out labels."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from benchmark.cli.main import add_places, number
from benchmark.config import choose
from benchmark.data.datasets import load
from benchmark.errors import ConfigError
from benchmark.federated.start import usable_cores
from benchmark.records.files import write_atomically
from reports.tuning import best_text, counts_text
from sweeps.storage import checked_place, shown
from sweeps.studies import DECLARED, read_study
from sweeps.tune import Worker, summary_of, tune

CAUTION = (
    "The best of many trials looks better on the labels it was chosen with than it is. No test image was read: a table "
    "with its own seeds says what the setting is worth."
)


def add(verb: str, command: argparse.ArgumentParser) -> None:
    command.description = (
        "Searches what a paper does not report (Optuna's TPE; a trial that falls behind is pruned) on labels held out "
        "at the server, never on test data. Start it as often as you like on one storage: each is a worker. Ctrl-C "
        "loses nothing; the trial of a killed one is queued again, from another machine after two minutes."
    )
    command.add_argument("study", nargs="?", metavar="STUDY", help="fedswitch/open, or a TOML file of your own")
    command.add_argument("--profile", default="demo", help="demo (default), laptop: what the study declares")
    command.add_argument("--trials", type=number(1), help="in all, those done before included (default: the study's)")
    command.add_argument("--seeds", type=number(1), help="runs of a trial (default: the study's)")
    command.add_argument("--jobs", type=number(1), help="workers of this command (default: cores)")
    command.add_argument(
        "--storage",
        default=os.environ.get("FSSL_STORAGE"),
        metavar="URL",
        help="a journal's path (default: one under the results), sqlite:///FILE for one host, or "
        "postgresql+psycopg://USER@HOST/DATABASE (default: $FSSL_STORAGE, which other users of the machine cannot "
        "read off its list of processes; a password may also lie in ~/.pgpass)",
    )
    command.add_argument("--json", action="store_true", help="print the study as one JSON object, nothing else")
    add_places(command)
    command.set_defaults(act=act)


def act(options: argparse.Namespace) -> int:
    if options.study is None:
        raise ConfigError(f"STUDY is missing; {choose(DECLARED)}, or give a file, such as ./mine.toml")
    given = {name: getattr(options, name) for name in ("trials", "seeds") if getattr(options, name) is not None}
    study = read_study(options.study, options.profile, **given)
    storage = checked_place(options.storage or str(options.results / "tuning" / f"{study.slug}.journal"))
    load(study.experiment.data.name, options.data_root)  # a missing data set ends the command before it writes
    jobs = min(options.jobs or usable_cores(), study.trials)
    print(f"fssl: {study.trials} trials of {study.seeds} seeds, {jobs} at a time, {shown(storage)}", file=sys.stderr)
    worker = Worker(study=study, storage=storage, results=options.results.absolute(), data_root=options.data_root)
    summary = summary_of(study, tune(worker, jobs=jobs))
    path = options.results / "studies" / f"{study.slug}.json"
    write_atomically(path, compact(summary))
    if options.json:
        print(json.dumps({**summary, "file": str(path)}))
    else:
        print(in_words(summary), f"study: {path}", CAUTION, sep="\n")
    return 0


def compact(summary: Mapping[str, Any]) -> bytes:
    """One line a trial, so that git shows what changed."""
    trials = ",\n".join("  " + json.dumps(trial, sort_keys=True, allow_nan=False) for trial in summary["trials"])
    rest = json.dumps({**summary, "trials": None}, indent=1, sort_keys=True, allow_nan=False)
    return (rest.replace('"trials": null', f'"trials": [\n{trials}\n ]') + "\n").encode()


def in_words(summary: Mapping[str, Any]) -> str:
    """How many trials ended, what the best one gained, and with which values."""
    trials = {trial["number"]: trial for trial in summary["trials"]}
    seeds, data = len(summary["seeds"]), summary["data"]
    lines = [f"{summary['study']} ({summary['profile']}): {counts_text(summary)}; up to {seeds} seeds each"]
    for name in ("default", "best"):
        if (trial := trials.get(summary[name])) is not None:
            accuracy = f"{100 * trial['value']:.2f} % of {data['N_validation']} held-out labels of {data['name']}"
            lines.append(f"{name}: trial {trial['number']}, {accuracy}")
    lines.append(best_text(summary))
    if summary["best"] not in (None, summary["default"]):
        lines.append("values (default -> best):")
        best = trials[summary["best"]]["values"]
        lines += [f"  {span['field']:<26} {span['default']:g} -> {best[span['field']]:g}" for span in summary["space"]]
    return "\n".join(filter(None, lines))
