"""`fssl tune` runs an Optuna study that chooses settings a paper does not report, on held-out labels."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from typing import Any

from benchmark.cli.main import number
from benchmark.cli.run import resolve
from benchmark.config import choose
from benchmark.data.datasets import load
from benchmark.errors import ConfigError
from benchmark.experiment import Experiment
from benchmark.federated.processes import usable_cores
from benchmark.files import write_json
from benchmark.papers.items import cell_named
from reports.tuning import best_text, counts_text
from sweeps.storage import checked_place, shown
from sweeps.studies import DECLARED, Study, read_study, study_of_words
from sweeps.tune import TuneWorker, summary_of, tune

CAUTION = (
    "The best trial's accuracy is optimistic, because the trial was selected on these held-out labels. No test image "
    "was read; to measure the setting, train it in a table with other seeds."
)


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.usage = "fssl tune STUDY | --search FIELD=SPAN ... [--FIELD=VALUE ...] [options]"
    command.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="FIELD=SPAN",
        help="a field to search, as LOW..HIGH, LOW..HIGH:log, LOW..HIGH:log-below-one (logarithmic in 1 - value), or "
        "VALUE,VALUE; may be given several times",
    )
    command.add_argument(
        "--cell", metavar="ITEM:LABEL", help="the cell that --search starts from (default: as for `fssl run`)"
    )
    command.add_argument(
        "--profile", default="demo", help="a profile that the study declares: demo (default) or laptop"
    )
    command.add_argument(
        "--trials",
        type=number(1),
        help="the total number of trials, including earlier ones (default: as the study declares; 24 with --search)",
    )
    command.add_argument(
        "--seeds", type=number(1), help="the number of runs per trial (default: as the study declares; 3 with --search)"
    )
    command.add_argument(
        "--jobs", type=number(1), help="the number of workers of this command (default: the number of cores)"
    )
    command.add_argument(
        "--storage",
        default=os.environ.get("FSSL_STORAGE"),
        metavar="URL",
        help="the path of a journal, sqlite:///FILE for one host, or postgresql+psycopg://USER@HOST/DATABASE (default: "
        "$FSSL_STORAGE, or if it is not set a journal in the results folder). Use $FSSL_STORAGE or ~/.pgpass for a "
        "password, since other users can read options in the machine's list of processes",
    )
    command.add_argument("--json", action="store_true", help="print only the study as one JSON object")
    command.set_defaults(fields_of=Experiment)


def run_command(options: argparse.Namespace) -> None:
    """Search for settings that a paper does not report, never on test data.

    Optuna's TPE chooses the trials by the accuracy on labels held out at the server, and a trial that falls behind is
    pruned. STUDY is fedswitch/open or a custom TOML file. In its place, --search names the fields to search, and other
    fields are set as for `fssl run`: --method my:M --search optimizer.lr=0.01..0.1:log --search
    method.batch_size=16,32,64. You can start the command several times on one storage; each process is a worker. Ctrl-C
    loses nothing, and the trial of a killed worker is queued again after two minutes.
    """
    study = _study(options)
    storage = checked_place(options.storage or str(options.results.absolute() / "tuning" / f"{study.slug}.journal"))
    load(study.experiment.data.name)  # a missing data set ends the command before it writes
    jobs = min(options.jobs or usable_cores(), study.trials)
    print(f"fssl: {study.trials} trials of {study.seeds} seeds, {jobs} at a time, {shown(storage)}", file=sys.stderr)
    worker = TuneWorker(study=study, storage=storage, results=options.results.absolute())
    summary = summary_of(study, tune(worker, jobs=jobs))
    path = options.results / "studies" / f"{study.slug}.json"
    write_json(path, summary)
    if options.json:
        print(json.dumps({**summary, "file": str(path)}))
    else:
        print(in_words(summary), f"study: {path}", CAUTION, sep="\n")


def _study(options: argparse.Namespace) -> Study:
    """Return the study that a name, a file or --search gives. Raise ConfigError if none is given or it is invalid."""
    given = {name: getattr(options, name) for name in ("trials", "seeds") if getattr(options, name) is not None}
    # A study sets its seeds by --seeds.
    options.parser.refuse([word for word in options.rest if word.partition("=")[0] == "--seed"])
    if not options.search and options.rest[:1] and not options.rest[0].startswith("-"):
        name, *options.rest = options.rest
        if options.rest or options.cell:
            raise ConfigError(f"{name} has all its fields; leave out --cell and single fields")
        return read_study(name, options.profile, **given)
    if not options.search:
        one = "a file, such as ./mine.toml, or --search optimizer.lr=0.01..0.1:log"
        raise ConfigError(f"STUDY is missing; {choose(DECLARED)}, or give {one}")
    start = cell_named(options.cell, options.profile) if options.cell else None
    cell = ["--cell", options.cell, "--profile", options.profile] if options.cell else []
    typed = shlex.join([*cell, *options.rest, *(word for span in options.search for word in ("--search", span))])
    return study_of_words(options.search, resolve(None, options.rest, start=start), typed=typed, **given)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def in_words(summary: Mapping[str, Any]) -> str:
    """Return a text with the number of finished trials, the gain of the best one, and its values."""
    trials = {trial["number"]: trial for trial in summary["trials"]}
    seeds = len(summary["seeds"])
    data = summary["data"]
    lines = [f"{summary['study']} ({summary['profile']}): {counts_text(summary)}; up to {seeds} seeds each"]
    for name in ("default", "best"):
        if (trial := trials.get(summary[name])) is not None:
            accuracy = f"{100 * trial['value']:.2f} % of {data['N_validation']} held-out labels of {data['name']}"
            lines.append(f"{name}: trial {trial['number']}, {accuracy}")
    lines.append(best_text(summary))
    if summary["best"] not in (None, summary["default"]):
        lines.append("values (default -> best):")
        best = trials[summary["best"]]["values"]
        for span in summary["space"]:
            before, after = _text(span["default"]), _text(best[span["field"]])
            lines.append(f"  {span['field']:<26} {before} -> {after}")
    return "\n".join(filter(None, lines))
