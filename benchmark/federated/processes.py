"""How processes are started, and how many the machine has room for. Loads no torch.

Loading torch and Lightning takes five CPU seconds. It is done once, by the server of multiprocessing's `forkserver`
(Linux), from which every process is forked. Nothing ran in the server, so that a forked process is as good as a fresh
one. It has the environment variables and the standard streams that its parent had when the server started.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

CPU = "cpu"  # the device that any number of processes share
# By the server, for all that it forks.
LOADED = ["benchmark.records.run", "benchmark.verdicts.families", "benchmark.federated.process_pool"]


def usable_cores() -> int:
    """Cores that this process may run on, and no more than a container gives it time for (`docker --cpus=2`)."""
    cores, quota = len(os.sched_getaffinity(0)), _quota()
    return cores if quota >= cores else max(1, math.ceil(quota))


def _quota(system: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> float:
    """The cores' worth of time that the process's control groups allow; infinite where they set no limit."""
    quotas = [math.inf]
    with contextlib.suppress(OSError, ValueError):
        for line in process.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            mount = system / controllers if controllers else system  # version 1 has a folder for each set
            folder = mount / group.lstrip("/")
            for place in (folder, *folder.parents):  # each group is bound by those around it, too
                quotas.append(_quota_in(place))
                if place == mount:
                    break
    return min(quotas)


def _quota_in(group: Path) -> float:
    """The quota over the period in a group's files, of version 2 or 1."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


@contextlib.contextmanager
def process_context(*, fresh: bool = False) -> Iterator[Any]:
    """Gives the multiprocessing context to start processes with. They load torch for one thread, and begin with SIGINT
    and SIGTERM blocked: `end_with_parent` decides about these. A signal to this process meanwhile counts after it.

    The terminal sends Ctrl-C to all processes, and one that is still loading Python would end with a traceback.
    `fresh`: each process loads everything anew, as one should that will use another device than the CPU.
    """
    # The resource tracker would lift the block when it starts with the first process (Python 3.11, `ensure_running`).
    resource_tracker.ensure_running()
    threads = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    heard: list[int] = []
    try:
        # Another thread, which blocks nothing, may take the signal, and Python would raise it here, in the main thread.
        with signals_handled_by(lambda number, frame: heard.append(number), signal.SIGINT, signal.SIGTERM):
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            os.environ.update(dict.fromkeys(threads, "1"))
            try:
                yield multiprocessing.get_context("spawn" if fresh else _method())
            finally:
                for name in threads:
                    del os.environ[name]
                os.environ.update({name: value for name, value in threads.items() if value is not None})
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
    finally:
        if heard:
            signal.raise_signal(heard[0])


@contextlib.contextmanager
def signals_handled_by(
    handler: Callable[[int, Any], object], *numbers: signal.Signals
) -> Iterator[dict[signal.Signals, Any]]:
    """Let the handler answer these signals; gives the handlers before. Signals reach the main thread alone: in another
    one this does nothing."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


def sigterm_as_interrupt() -> contextlib.AbstractContextManager[object]:
    """Let SIGTERM raise KeyboardInterrupt: its default action would end this process and leave its workers."""
    return signals_handled_by(signal.default_int_handler, signal.SIGTERM)


def _method() -> str:
    """`forkserver`; `spawn` where no server can listen: no folder for temporary files, or one with too long a name."""
    forkserver.set_forkserver_preload(LOADED)
    try:
        forkserver.ensure_running()
    except OSError:
        return "spawn"
    return "forkserver"


def load_ahead() -> None:
    """Start the server now, for processes that are needed in a while: it loads while this process does other work."""
    with process_context():
        pass


def end_with_parent(at_end: signal.Signals) -> None:
    """In a process that was started so: SIGTERM ends it, and Ctrl-C, which the terminal sends to all, is left to its
    parent. Once its parent has ended it gets `at_end`, whatever its main thread is at."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), at_end)

    threading.Thread(target=follow, daemon=True).start()
