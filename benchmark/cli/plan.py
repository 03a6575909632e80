"""`fssl plan` lists the runs of `fssl reproduce` and their cost before anything runs."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from rich.filesize import decimal

from benchmark.cli import shared_options
from benchmark.experiment import Experiment
from benchmark.federated.devices import auto_devices, card_name
from benchmark.federated.processes import CPU, usable_cores
from benchmark.verdicts.judge import Judged
from benchmark.verdicts.open_claims import looks_in_words, looks_of
from sweeps.cards import Card, OnCard, devices_or_card, on_card
from sweeps.cost import Cost, cost_of, count, countable
from sweeps.deciding import Gap, claims_of, gaps_of, words_on_seeds
from sweeps.plan import Plan, plan
from sweeps.stacking import one_at_a_time
from sweeps.status import in_words

MANY = 100  # runs; before counting more of them, the command announces the wait
ENGINES_IN_WORDS = {  # names in `sweeps.cards`, with the option that selects the engine
    "reference": "with the reference engine",
    "stacked": "with --together 1 (stacked engine, without CUDA graphs)",
    "captured": "with --together 1 (stacked engine, CUDA graphs)",
}


def add_arguments(verb: str, command: argparse.ArgumentParser) -> None:
    shared_options.add_scope(command, what=shared_options.ITEMS_OR_FILES)
    shared_options.add_undecidable(command)
    shared_options.add_devices(
        command, "jobs that are timed; or the name of a GPU in a different machine, such as h200"
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="print only one JSON object per table or figure, and one for all of them if there are several",
    )
    command.add_argument("--all", action="store_true", help="also count runs that are already done")
    command.add_argument(
        "--stacked",
        action="store_true",
        help="also list the kinds of jobs that train one at a time on a GPU, and why (default: only on a CUDA device)",
    )
    shared_options.add_reference(command)


def run_command(options: argparse.Namespace) -> None:
    """Count runs, local steps, FLOPs and bytes from each method's own jobs, and mark counts that are not exact.

    Hours are based on finished runs of this machine, or on timing one step of each network on a core, which needs no
    data set. For a GPU of this machine they are based on its measured times. For a GPU in a different machine, such as
    `--device h200`, they are based on measurements by `python -m tests.performance.gpu` on that GPU or on estimates,
    and the plan names the source. The plan also shows at how many confirmatory seeds (--seeds N) open claims can be
    decided, which runs `fssl reproduce` leaves out because they decide no claim, and which seeds can never count.
    """
    options.devices, card = devices_or_card(options.devices, options.results)
    for name, part in _parts(options):
        runs = (*(part.runs if options.all else part.missing), *part.waiting)
        if len(runs) > MANY:
            print(f"fssl: {name}: {len(runs):,} runs are counted ...", file=sys.stderr)
        total, devices = cost_here(runs, options)
        there = None if card is None else cost_there(runs, card)
        profiles = {run.profile for run in part.runs}
        keys = {run.cell_key for run in part.runs}
        waiting = sum(len(item.choices) for item in part.items)
        claims = [claims_of(item, part.records) for item in part.items]
        gaps: list[Gap] = []
        for item, judged in zip(part.items, claims, strict=True):
            gaps += gaps_of(item, judged)
        counted = {
            "item": name,
            "profile": ", ".join(sorted(profiles)) or options.profile,
            "cells": len(keys) + waiting,
            "runs": len(runs),
            "tuned": len(part.waiting),
            **total.to_json(len(devices)),
            "device": card_name(devices[0]),
            "side_by_side": len(devices),
            **({} if there is None else as_there(there)),
            "could_decide": looks_of(chain.from_iterable(claims)),
            "left_out": len(part.left_out),
            "gaps": [gap.to_json() for gap in gaps],
        }
        counted["notes"] = [*counted["notes"], *_on_seeds(part, claims, options)]
        if options.stacked or devices[0] != CPU:
            counted["one_at_a_time"] = one_at_a_time(runs)
            counted["notes"] += _in_words(counted["one_at_a_time"])
        if options.json:
            print(json.dumps(counted))
        else:
            done = len(part.runs) - len(part.missing)
            times = [_time(counted, devices)] if there is None else _times(there)
            _print(counted, done, times)


def _on_seeds(part: Plan, claims: Sequence[Sequence[Judged]], options: argparse.Namespace) -> list[str]:
    """Describe what confirmatory seeds cannot decide, with the name of the table if there are several."""
    several = len(part.items) > 1
    return [
        f"{item.name}: {text}" if several else text
        for item, judged in zip(part.items, claims, strict=True)
        for text in words_on_seeds(item, judged, part, options.seeds)
    ]


def _in_words(reasons: Mapping[str, str]) -> list[str]:
    """Say which kinds of job train one at a time on a GPU."""
    if not reasons:
        return ["the jobs of a round train together on a GPU"]
    return [f"{kind}: its jobs train one at a time on a GPU ({reason})" for kind, reason in reasons.items()]


def _parts(options: argparse.Namespace) -> Iterator[tuple[str, Plan]]:
    """Yield the name and plan of each table if there are several, since they share runs, and then of all together."""
    chosen = [] if shared_options.grids_of(options) else shared_options.chosen_items(options)
    if len(chosen) > 1:
        seeds, with_reference = shared_options.seeds_of(options), shared_options.uses_reference(options)
        for item in chosen:
            yield item.name, plan([item], options.results, seeds=seeds, with_reference=with_reference)
    yield chosen[0].name if len(chosen) == 1 else ", ".join(options.items), shared_options.planned(options)


def _time(counted: dict[str, Any], devices: tuple[str, ...]) -> tuple[str, str]:
    return "time", f"{in_words(3600 * counted['hours'])} on {in_place(devices)}"


def _times(there: OnCard) -> list[tuple[str, str]]:
    """Return the hours on a GPU with each engine, the fastest first, and their source.

    Runs are trained one after the other, and with the stacked engine the jobs of a round together.
    """
    rows = []
    for engine in sorted(there.hours, key=lambda name: (there.hours[name], name != there.engine)):
        how = "" if there.measured[engine] else ", estimate"
        on = f"one {there.card.name} {ENGINES_IN_WORDS[engine]}"
        rows.append(("GPU time", f"{in_words(3600 * there.hours[engine])} on {on}{how}"))
    return [*rows, ("source", there.card.source)]


def _print(counted: dict[str, Any], done: int, times: list[tuple[str, str]]) -> None:
    tuned = f", {counted['tuned']} of them of settings that trials choose" if counted["tuned"] else ""
    rows = [
        ("cells", f"{counted['cells']}"),
        ("runs", f"{counted['runs']}{tuned} ({done} done already)"),
        ("local steps", f"{counted['local_steps']:,}"),
        ("FLOPs", f"{counted['flops']:.3g}"),
        ("bytes up", decimal(counted["bytes_up"])),
        ("bytes down", decimal(counted["bytes_down"])),
        *times,
        *([("claims", looks_in_words(counted["could_decide"]))] if counted["could_decide"] else []),
        *(("note", note) for note in counted["notes"]),
    ]
    print(f"{counted['item']}, profile {counted['profile']}")
    for name, text in rows:
        print(f"  {name:<12}{text}", flush=True)


def cost_there(runs: Sequence[Experiment], card: Card) -> OnCard:
    """Estimate the time of the runs on a GPU if they are trained one after the other.

    Runs that cannot be counted are left out; `cost_here` has a note on them.
    """
    able, _ = countable(runs)
    costs = [count(run).whole for run in able]
    return on_card(card, [(run, cost.local_steps, cost.flops) for run, cost in zip(able, costs, strict=True)])


def as_there(there: OnCard) -> dict[str, Any]:
    """Return the fields of the JSON output that are about a GPU, not about this machine."""
    hours = there.hours[there.engine]
    return {"hours": hours, "device": there.card.name, "side_by_side": 1, "on_card": there.to_json()}


def cost_here(runs: Sequence[Experiment], options: argparse.Namespace) -> tuple[Cost, tuple[str, ...]]:
    """Return the cost of the runs, and the device of each run that is trained at the same time.

    `options.devices` are names, or None for auto. Runs that cannot be counted are left out, and named in a note.
    """
    devices = options.devices or auto_devices(runs)
    able, notes = countable(runs)
    total = sum((cost_of(run, options.results, devices[0]) for run in able), Cost(notes=notes))
    return total, (CPU,) * usable_cores() if devices == (CPU,) else devices


def in_place(devices: tuple[str, ...]) -> str:
    """Return a readable description of the devices."""
    kind = "cores" if set(devices) == {CPU} else f"x {card_name(devices[0])}"
    return f"{len(devices)} {kind} of this machine, a run on each"
