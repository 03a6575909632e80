"""Our engine against Flower, FedLab and pfl-research on the same work, in blocks of rounds in turn.

    python -m tests.performance.peers.compare --flower PYTHON --fedlab PYTHON --pfl PYTHON
        [--json results/benchmarks/peers.json] [--rounds 7] [--repeats 1] [--clients 10 --steps 16 --batch 64]

PYTHON is the interpreter of an environment with that peer (README.md in this folder); a peer left out is not compared.
Each block is a process of its own whose start and first two rounds do not count. A ratio is a peer's median round over
that of our block right before it and right after it. Prints a table; `--json` also writes every round.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmark.errors import FsslError
from benchmark.federated.processes import usable_cores
from benchmark.records.files import write_atomically
from benchmark.records.provenance import commit, hardware
from tests.performance.peers.contenders import ROOT, WANTED, Contender, in_turn, interpreters
from tests.performance.peers.laps import DROPPED, check_rounds
from tests.performance.peers.work import Work

TOLERANCE = 1e-4  # of a round's largest change; the same batches in the same order of memory give 1e-6 or less
PATIENCE = 3600  # seconds for a block

Block = dict[str, Any]  # what a driver printed, and the contender's "name"


def run(contender: Contender, python: Path, work: Work, rounds: int) -> Block:
    """One block. Raises ConfigError for too few rounds, FsslError where the driver fails or has another mean."""
    check_rounds(rounds)
    command = contender.command(python, work, rounds)
    variables = {**os.environ, **contender.variables()}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=said, stderr=errors, start_new_session=True)
        try:
            process.wait(PATIENCE)
        finally:
            end(process)
        said.seek(0)
        errors.seek(0)
        found = last_object(said.read())
        complaint = errors.read().strip().splitlines()[-1:] or ["it said nothing"]
    if process.returncode != 0 or found is None:
        raise FsslError(f"{contender.name}: the driver ended with exit code {process.returncode}: {complaint[0]}")
    if not found["difference"] <= TOLERANCE:
        raise FsslError(
            f"{contender.name}: its mean of round 1 differs from the plain loop's by {found['difference']:.1e} of the "
            f"largest change; at most {TOLERANCE:.0e} would be right"
        )
    return {"name": contender.name, **found}


def end(process: "subprocess.Popen[bytes]") -> None:
    """Leave no process of the block behind, whatever interrupted it."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)


def last_object(text: str) -> Block | None:
    """The last line that is a JSON object: frameworks print their own lines, too."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return None


def rows(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """One row a contender: seconds over all its rounds, and ratios to the blocks of ours on either side."""
    found: dict[str, list[int]] = {}
    for index, block in enumerate(blocks):
        found.setdefault(block["name"], []).append(index)
    return [row(blocks, indices) for indices in found.values()]


def row(blocks: Sequence[Block], indices: Sequence[int]) -> dict[str, Any]:
    first = blocks[indices[0]]
    figures: dict[str, Any] = {"name": first["name"], "peer": first["peer"]}
    for kind in ("wall_seconds", "cpu_seconds"):
        each = [seconds for index in indices for seconds in blocks[index][kind]["each"]]
        figures[kind] = {"median": statistics.median(each), "min": min(each), "max": max(each)}
        if first["peer"] != "ours":
            ratios = [ratio for index in indices for ratio in neighbours(blocks, index, kind)]
            figures[kind.replace("seconds", "ratio")] = {
                "median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)
            }  # fmt: skip
    figures["others"] = max(blocks[index]["others"] for index in indices)
    figures["difference"] = max(blocks[index]["difference"] for index in indices)
    return figures


def neighbours(blocks: Sequence[Block], index: int, kind: str) -> list[float]:
    """This block's median over that of each neighbouring block of ours; above 1: we are faster."""
    beside = [blocks[at] for at in (index - 1, index + 1) if 0 <= at < len(blocks) and blocks[at]["peer"] == "ours"]
    return [blocks[index][kind]["median"] / ours[kind]["median"] for ours in beside]


def best(table: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each peer's fastest set-up, the fastest among those in PyTorch's default order of memory, and what is wanted."""
    found = {}
    for peer in dict.fromkeys(each["peer"] for each in table if each["peer"] != "ours"):
        tried = sorted(
            (each for each in table if each["peer"] == peer), key=lambda each: each["wall_seconds"]["median"]
        )
        plain = [each for each in tried if "channels last" not in each["name"]]
        found[peer] = {
            "best": tried[0]["name"],
            "ratio": tried[0]["wall_ratio"]["median"],
            "best_in_default_order": plain[0]["name"] if plain else None,
            "ratio_in_default_order": plain[0]["wall_ratio"]["median"] if plain else None,
            "wanted": WANTED[peer],
        }
    return found


def as_text(table: Sequence[Mapping[str, Any]], summary: Mapping[str, Mapping[str, Any]]) -> str:
    """The table that is printed."""
    head = ("set-up (processes x threads)", "wall s/round", "min..max", "CPU s", "wall ratio", "CPU ratio", "others")
    lines = [("{:44}{:>13}{:>15}{:>8}{:>20}{:>11}{:>8}").format(*head)]
    for each in table:
        wall, ratio = each["wall_seconds"], each.get("wall_ratio")
        shown = "1" if ratio is None else f"{ratio['median']:.2f} ({ratio['min']:.2f}..{ratio['max']:.2f})"
        cpu = "1" if ratio is None else f"{each['cpu_ratio']['median']:.2f}"
        spread = f"{wall['min']:.2f}..{wall['max']:.2f}"
        lines.append(
            f"{each['name']:44}{wall['median']:13.2f}{spread:>15}{each['cpu_seconds']['median']:8.2f}{shown:>20}"
            f"{cpu:>11}{each['others']:8.2f}"
        )
    for peer, found in summary.items():
        default = found["ratio_in_default_order"]
        lines.append(
            f"{peer}: {found['ratio']:.2f} in its best set-up ({found['best']})"
            + ("" if default is None else f", {default:.2f} in the default order of memory")
            + f"; wanted: {found['wanted']}"
        )
    return "\n".join(lines)


def measure(options: argparse.Namespace, work: Work) -> list[Block]:
    pythons = interpreters({peer: getattr(options, peer) for peer in WANTED})
    order = in_turn(usable_cores(), [peer for peer in pythons if peer != "ours"], options.repeats)
    blocks = []
    for number, contender in enumerate(order, start=1):
        blocks.append(run(contender, pythons[contender.peer], work, options.rounds))
        median = blocks[-1]["wall_seconds"]["median"]
        print(f"{number}/{len(order)} {contender.name}: {median:.2f} s a round", file=sys.stderr, flush=True)
    return blocks


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in WANTED:
        parser.add_argument(f"--{peer}", type=Path, metavar="PYTHON", help=f"interpreter that has {peer}")
    parser.add_argument("--rounds", type=int, default=DROPPED + 5, help=f"of a block; the first {DROPPED} do not count")
    parser.add_argument("--repeats", type=int, default=1, help="blocks of each set-up")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures to this file")
    for name, default in asdict(Work()).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    try:
        work = Work(**{name: getattr(options, name) for name in asdict(Work())})
        blocks = measure(options, work)
    except FsslError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    table = rows(blocks)
    summary = best(table)
    print(as_text(table, summary))
    if options.json:
        found = {
            "command": "python -m tests.performance.peers.compare "
            + "".join(f"--{peer} PYTHON " for peer in summary)
            + f"--rounds {options.rounds} --repeats {options.repeats}",
            "what": f"{work.clients} clients and the server, {work.steps} local steps of {work.batch} images, EMNIST "
            "CNN, FixMatch with every image kept: seconds a round; ratios to our blocks before and after, above 1: "
            "we are faster; others: CPUs that other programs used",
            "hardware": hardware(),
            **commit(),
            "work": asdict(work),
            "summary": summary,
            "rows": table,
            "blocks": blocks,
        }
        write_atomically(options.json, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
