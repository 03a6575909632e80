"""Parts of a site that need nothing of each other, built side by side: each process is a forked copy of this one, which
has the records in memory already, and tells what it built."""

import contextlib
import gc
import heapq
import multiprocessing
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess

from benchmark.federated.processes import usable_cores
from reports.cache import Built

LEAST_RUNS = 500  # fewer are built before the processes are up


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some pages, put into `Built` by `build`."""

    runs: int  # that it shows; what its time goes with
    build: Callable[[], None]


def processes_for(runs: int) -> int:
    """One a core for many runs; none beside this one where a fork is not to be had, or other threads may hold a lock at
    that moment (the live view's; a launcher's)."""
    possible = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    return usable_cores() if possible and runs >= LEAST_RUNS else 1


def build_parts(parts: Sequence[Part], built: Built, processes: int) -> None:
    """Raises what a part raised, with where it did as a note; RuntimeError where a process was killed."""
    if min(processes, len(parts)) < 2:
        for part in parts:
            part.build()
        return
    context = multiprocessing.get_context("fork")
    with _frozen():
        children = [_started(context, share, built) for share in shares(parts, processes)]
    try:
        for process, connection in children:
            try:
                told, error = connection.recv()
            except EOFError:
                process.join()
                raise RuntimeError(f"a process that built pages ended with {process.exitcode}") from None
            if error is not None:
                raise error
            built.join(told)
    finally:
        for process, connection in children:
            process.terminate()
            process.join()
            connection.close()


def shares(parts: Sequence[Part], number: int) -> list[list[Part]]:
    """The parts of each process: the largest first, each to who has least to do."""
    found: list[list[Part]] = [[] for _ in range(min(number, len(parts)))]
    load = [(0, place) for place in range(len(found))]
    for part in sorted(parts, key=lambda part: -part.runs):
        runs, place = heapq.heappop(load)
        found[place].append(part)
        heapq.heappush(load, (runs + part.runs, place))
    return found


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Keeps the collector off what is there now: a look at it would copy the page that it shares with this process."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _started(context: ForkContext, share: Sequence[Part], built: Built) -> tuple[ForkProcess, Connection]:
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_build, args=(share, built, there), daemon=True)
    process.start()
    there.close()
    return process, here


def _build(share: Sequence[Part], built: Built, connection: Connection) -> None:
    try:
        for part in share:
            part.build()
        connection.send((built.told(), None))
    except KeyboardInterrupt:  # the process that forked this one has it, too
        pass
    except BaseException as error:
        error.add_note(traceback.format_exc())
        connection.send((None, error))
