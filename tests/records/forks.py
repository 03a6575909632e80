"""A process that has imported everything once, and forks a child for each run that a test kills.

Importing takes seconds and a tiny run a fraction of one. Requests and answers are lines of JSON: see `Forks.run`.
A child is the leader of a session of its own, so that whatever is left of it is found.
"""

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.experiment import Experiment, to_json
from tests.conftest import ROOT

SECONDS_BETWEEN_SIGNALS = 0.3
PATIENCE = 180.0  # seconds after which a child that should have ended is given up


class Forks:
    """The parent's side; one process behind it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.records.forks"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        experiment: Experiment,
        results: Path,
        *,
        engine: str = "reference",
        workers: int | None = None,
        faults: dict[str, Any] | None = None,
        lines: int = 0,
        delay: float = 0.0,
        signals: Sequence[int] = (),
        group: bool = False,
        successor: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run in a child, with a save after every round; its end.

        The `signals` are sent one after another when `lines` rounds are saved and `delay` seconds have passed; with
        `group`, to the whole process group. `faults` are functions of `tests.records.faults` and their argument.
        With a `successor` (options of `records.run`), the run stops itself (`faults.happens`); another child then
        does the same run to its end, and the first one is woken. "successor" in the answer is the other's end.
        Workers are forked, too: starting them as in production takes seconds.
        The answer: "code" (as `subprocess` has it), "said" (standard error), "seconds" from the first signal to the
        end, "left" (processes that were still there thirty seconds later).
        """
        request = {
            "experiment": to_json(experiment),
            "results": str(results),
            "engine": {"engine": engine, "workers": workers},
            "faults": faults or {},
            "lines": lines,
            "delay": delay,
            "signals": [int(number) for number in signals],
            "group": group,
            "successor": successor,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the forking process has ended"
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=120)


def serve() -> None:
    """Answer requests until the other side is gone."""
    import torch

    import benchmark.records.run  # noqa: F401  # so that children need not import it
    import tests.methods.golden  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
        pid = os.fork()
        if pid == 0:
            child(request)
        answer = {}
        if request["successor"] is not None:
            answer = {"successor": succeed(pid, request)}
        print(json.dumps({**watch(pid, request), **answer}), flush=True)


def succeed(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Once the child stands still: its run by another one; then it is woken."""
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    engine = {**request["engine"], **request["successor"]}
    time.sleep(engine.get("patience", 0.0))  # it may have begun, and beaten, less than that ago
    other = {**request, "engine": engine, "faults": {}, "said": "said_by_the_successor"}
    if (second := os.fork()) == 0:
        child(other)
    try:
        return watch(second, other)
    finally:
        os.kill(pid, signal.SIGCONT)


def child(request: dict[str, Any]) -> None:
    """The forked process: one run, then the end, never back into `serve`."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background has it ignored
        Path(request["results"]).mkdir(parents=True, exist_ok=True)
        said = os.open(said_in(request), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = run_with(request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_with(request: dict[str, Any]) -> int:
    from benchmark.errors import FsslError
    from benchmark.experiment import from_json
    from benchmark.federated.engines import EngineOptions
    from benchmark.records.claim import PATIENCE
    from benchmark.records.run import run
    from tests.records import faults

    experiment, results = from_json(request["experiment"]), Path(request["results"])
    faults.save_every_round()
    faults.forked_workers()
    for name, argument in request["faults"].items():
        getattr(faults, name)(argument)
    engine = EngineOptions(engine=request["engine"]["engine"], workers=request["engine"]["workers"])
    try:
        run(experiment, results, engine=engine, patience=request["engine"].get("patience", PATIENCE))
    except FsslError as error:
        print(f"fssl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def watch(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Send the signals when it is time, and wait for the end."""
    began, left = time.monotonic(), list(request["signals"])
    while left and lines_of(request["results"]) < request["lines"] and not ended(pid):
        time.sleep(0.001)
    time.sleep(request["delay"])
    sent = time.monotonic()
    while left and not ended(pid):
        (os.killpg if request["group"] else os.kill)(pid, left.pop(0))
        if left:
            time.sleep(SECONDS_BETWEEN_SIGNALS)
    while not ended(pid):
        if time.monotonic() - began > PATIENCE:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    seconds = time.monotonic() - sent
    _, status = os.waitpid(pid, 0)
    said = said_in(request)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
        "said": said.read_text() if said.exists() else "",
        "left": survivors(pid),
    }


def said_in(request: dict[str, Any]) -> Path:
    """Outside the results, whose disk may be full."""
    return Path(f"{request['results']}.{request.get('said', 'said')}")


def ended(pid: int) -> bool:
    """Whether the process has ended; it stays a zombie, so that its number is not given to another."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def lines_of(results: str) -> int:
    """Saved rounds of all runs under this folder of results."""
    files = [*Path(results).glob("runs/*/*/rounds.jsonl"), *Path(results).glob("runs/*/*/progress.jsonl")]
    return sum(bytes_of(path).count(b"\n") for path in files)


def bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # a run that ends in this moment
        return b""


def survivors(session: int, seconds: float = 30.0) -> list[int]:
    """Processes of the session that do not end within so many seconds."""
    deadline = time.monotonic() + seconds
    while (processes := living(session)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes


def living(session: int) -> list[int]:
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = path.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(of_session) == session and state != "Z":
            processes.append(int(path.parent.name))
    return processes


if __name__ == "__main__":
    serve()
