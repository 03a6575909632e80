"""`fssl submit` writes a submission of run records for others; `fssl verify BUNDLE.zip` accepts or refuses one."""

import argparse
import contextlib
import json
import random
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from benchmark.cli.accepted import store
from benchmark.cli.main import number
from benchmark.cli.verify import further_troubles
from benchmark.errors import ConfigError, DataError
from benchmark.files import ANEW
from benchmark.papers.items import items
from benchmark.records.collect import read_records
from benchmark.records.record import FINISHED, Records, RunRecord
from benchmark.records.seeds import seeds_text
from benchmark.records.sources import own_names
from benchmark.sharing.bundle import Bundle, check_bundle, opened, running, write
from benchmark.sharing.verify import Retrained, retrain_each, troubles_of, why_not_here
from sweeps.plan import plan, restricted


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "what", metavar="ITEM|KEY", help="ssfl/tab2, ./mine.toml, or the key of a cell (see `fssl status`)"
    )
    command.add_argument(
        "--profile", default="laptop", help="the profile of the table or figure: demo, laptop (default), gpu or paper"
    )
    command.add_argument("--by", default="", metavar="NAME", help="the author of the runs")
    command.add_argument("--note", default="", help="a sentence for readers")
    command.add_argument(
        "--trials",
        type=number(0),
        metavar="N",
        help="how many settings per cell were tried before these runs, for the board (default: not stated)",
    )


def run_command(options: argparse.Namespace) -> None:
    """Write a submission to standard output. Nothing is sent anywhere.

    A submission contains the finished runs of a table, a figure or a cell, hashes of data and code, the source of
    custom methods and networks, and a card that describes it.
    """
    if sys.stdout.isatty():
        raise ConfigError(f"a submission must be written to a file; type fssl submit {options.what} > bundle.zip")
    title, labels, records = _chosen(options)
    runs = [run for key in labels for run in records.get(key, {}).values() if run.status in FINISHED]
    if not runs:
        raise DataError(f"{options.what}: no finished run of it in {options.results}; `fssl reproduce` makes them")
    kept = {run.cell_key: labels[run.cell_key] for run in runs}
    if left := [label for key, label in labels.items() if key not in kept]:
        missing = f"no finished run at --profile {options.profile}; train them, or type the profile that they have"
        print(f"fssl: without {', '.join(left)}: {missing}", file=sys.stderr)
    texts = {"title": title, "by": options.by, "note": options.note}
    sys.stdout.buffer.write(write(texts, kept, runs, options.trials))
    own = sorted({name for run in runs for name in own_names(run.experiment)})
    named = f"; your custom classes, with the names to use: {', '.join(own)}" if own else ""
    print(f"fssl: {len(runs)} runs of {len(kept)} cells{named}", file=sys.stderr)


def _chosen(options: argparse.Namespace) -> tuple[str, dict[str, str], Records]:
    """Return the title, the labels by cell key, and the run records of the submission."""
    if re.fullmatch("[0-9a-f]{16}", options.what):
        key = options.what
        return f"Cell {key}", {key: key}, read_records(options.results, [key], with_reference=True)
    chosen = items([options.what], options.profile)
    if len(chosen) != 1:
        raise ConfigError(f"{options.what}: is {len(chosen)} tables and figures; submit one, such as {chosen[0].name}")
    planned = plan(chosen, options.results, with_reference=options.profile != "demo")
    item = planned.items[0]
    labels = {cell.cell_key: cell.label for cell in item.cells}
    return f"{item.title} ({item.name}, {item.profile})", labels, restricted(planned.records, planned.shown)


@dataclass(kw_only=True)
class CheckedSubmission:
    """The results of checking a submission, as far as the check came."""

    bundle: Bundle | None = None  # None if the file is not a readable submission
    reasons: list[str] = field(default_factory=list)  # why it is refused; empty if it is accepted
    believed: list[str] = field(default_factory=list)  # parts that are accepted without a check
    not_trainable: dict[Path, str] = field(default_factory=dict)  # record -> why this machine cannot train it again
    outcomes: Mapping[Path, Retrained] = field(default_factory=dict)  # of the records that were trained again

    @property
    def retrained(self) -> list[str]:
        """Return the names of the records that were compared with a new run."""
        return [f"{name}" for name, outcome in self.outcomes.items() if not outcome.skipped]


def verify_bundle(path: Path, options: argparse.Namespace) -> int:
    """Accept or refuse a submission, in one line with the reason."""
    checked = _checked(path, options)
    bundle, reasons, retrained = checked.bundle, checked.reasons, checked.retrained
    if bundle is not None and options.accept and not reasons:
        retrained = store(path, bundle, options.results, retrained=retrained, believed=checked.believed)
    if options.json:
        card = {**bundle.card, **bundle.contents} if bundle is not None else {}
        not_trainable = {f"{name}": reason for name, reason in checked.not_trainable.items()}
        facts = {"card": card, "retrained": retrained, "believed": checked.believed, "not_trainable": not_trainable}
        print(json.dumps({"bundle": f"{path}", "accepted": not reasons, "troubles": reasons, **facts}))
    elif bundle is not None and not reasons:
        text = _in_words(bundle, retrained, checked.believed, checked.not_trainable)
        print(f"{path}: accepted: {_plain(text.removesuffix(f'; {ANEW}'))}")
    else:
        more = f" (and {len(reasons) - 1} more)" if reasons[1:] else ""
        print(f"{path}: refused: {_plain(reasons[0].removesuffix(f'; {ANEW}'))}{more}")
    return DataError.exit_code if reasons else 0


def _checked(path: Path, options: argparse.Namespace) -> CheckedSubmission:
    """Check the submission, and train N of its runs again if no check fails."""
    checked = CheckedSubmission()
    try:
        bundle = checked.bundle = opened(path)
        if bundle.own:
            does = "used" if options.trust else "not used: read it, then --trust uses it, and nothing confines it"
            print(f"fssl: {path}: custom code, {does}: {_plain(', '.join(bundle.own))}", file=sys.stderr)
        with running(bundle) if options.trust else contextlib.nullcontext():
            faults, absent = check_bundle(bundle, trusted=options.trust)
            others, not_compared = further_troubles(bundle.records, trusted=options.trust)
            checked.believed = [*sorted(absent), *([] if options.trust else bundle.own), *sorted(not_compared)]
            checked.reasons = [*faults, *others]
            why_not = {run.path: _why_not(run, options) for run in bundle.records}
            checked.not_trainable = {name: reason for name, reason in why_not.items() if reason is not None}
            if options.retrain and not checked.reasons:
                checked.outcomes = _retrained(bundle, checked.not_trainable, options)
                checked.reasons = troubles_of(checked.outcomes)
                if not checked.outcomes:
                    reason = next(iter(checked.not_trainable.values()))
                    checked.reasons = [f"nothing was checked by training: {reason}"]
    except DataError as error:
        checked.reasons = [f"{error}"]
    return checked


def _why_not(run: RunRecord, options: argparse.Namespace) -> str | None:
    """Return why this machine cannot train a submission's run again, or None if it can."""
    own = own_names(run.experiment)
    if own and not options.trust:
        return f"it is of {', '.join(own)}: read it, then type --trust"
    return why_not_here(run)


def _retrained(bundle: Bundle, unchecked: Collection[Path], options: argparse.Namespace) -> Mapping[Path, Retrained]:
    """Train N runs again, drawn at random in each call from the runs that this machine can train, so that nobody can
    predict them.
    """
    able = [run for run in bundle.records if run.path not in unchecked]
    drawn = random.Random(options.seed).sample(able, min(options.retrain, len(able)))
    return retrain_each(drawn, silent=options.json)


def _in_words(bundle: Bundle, again: Sequence[str], believed: Sequence[str], unchecked: Mapping[Path, str]) -> str:
    """Describe which seeds were, were not or cannot be trained again, and which parts are accepted without a check."""
    parts: dict[str, list[str]] = {"trained again": [], "not trained again": []}
    for key, label in sorted(bundle.card["labels"].items(), key=itemgetter(1)):
        for part, seeds in zip(parts.values(), bundle.split_seeds(key, again), strict=True):
            part += [f"{label} {seeds_text(seeds)}"] if seeds else []
    said = [f"{len(bundle.records)} runs of {len(bundle.card['labels'])} cells of {bundle.card['title']!r}"]
    said += [f"{what}: {', '.join(which) or 'none'}" for what, which in parts.items()]
    said += [f"believed: {', '.join(believed)}"] if believed else []
    cells = [(key, label) for key, label in sorted(bundle.card["labels"].items(), key=itemgetter(1))]
    for reason in dict.fromkeys(unchecked.values()):
        names = [f"{name}" for name, why in unchecked.items() if why == reason]
        unchecked_seeds = [(label, bundle.split_seeds(key, names)[0]) for key, label in cells]
        which = ", ".join(f"{label} {seeds_text(some)}" for label, some in unchecked_seeds if some)
        said.append(f"this machine could not check by training: {which} ({reason})")
    if not again and len(unchecked) < len(bundle.records):
        said.append("none of its numbers was checked by training: --retrain 1 trains a run again")
    return "; ".join(said)


def _plain(text: str) -> str:
    """Return a text of a submission with "?" in place of characters that a terminal must not print."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
