"""Start processes, and count the cores that they may use, without loading torch.

Loading torch and Lightning costs five CPU seconds. On Linux, the server of multiprocessing's `forkserver` does it once,
and every process is forked from it. Because the server has not run anything else, a forked process is equivalent to a
fresh one. It has the environment variables and the standard streams that its parent had when the server started.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

CPU = "cpu"  # the device that any number of processes can share
# Modules that the server loads for all processes that it forks.
LOADED = ["benchmark.records.run", "benchmark.verdicts.families", "benchmark.federated.process_pool"]


def usable_cores() -> int:
    """Return the number of cores that this process may use, limited by a container's quota (`docker --cpus=2`)."""
    cores, quota = _cores_allowed(), _quota()
    return cores if quota >= cores else max(1, math.ceil(quota))


def _cores_allowed() -> int:
    """Return the number of cores that the system lets this process use; all cores if it has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(system: Path = Path("/sys/fs/cgroup"), process: Path = Path("/proc/self/cgroup")) -> float:
    """Return the process's CPU quota in cores, from its control groups; infinity if they set no limit."""
    quotas = [math.inf]
    with contextlib.suppress(OSError, ValueError):
        for line in process.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            mount = system / controllers if controllers else system  # version 1 has a folder per set of controllers
            folder = mount / group.lstrip("/")
            for place in (folder, *folder.parents):  # outer groups also limit each group
                quotas.append(_quota_in(place))
                if place == mount:
                    break
    return min(quotas)


def _quota_in(group: Path) -> float:
    """Return quota / period from the files of a control group, version 2 or 1; infinity if there is no limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


@contextlib.contextmanager
def process_context(*, fresh: bool = False) -> Iterator[Any]:
    """Yield the multiprocessing context for starting processes.

    The processes load torch for one thread, and start with SIGINT and SIGTERM blocked; `end_with_parent` unblocks these
    signals. A signal to this process takes effect after the context. The terminal sends Ctrl-C to all processes, and
    without the block, a process that is still loading Python would end with a traceback. If `fresh`, each process loads
    everything again, as is necessary for devices other than the CPU.
    """
    # The resource tracker would unblock signals if it started with the first process (Python 3.11, `ensure_running`).
    resource_tracker.ensure_running()
    threads = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    heard: list[int] = []
    try:
        # A thread that blocks no signals may receive one, and Python would then raise it in this main thread.
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
    """Let the handler process these signals inside the context, and yield the previous handlers.

    Signals only reach the main thread; in other threads the context does nothing.
    """
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if is_main}
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


def sigterm_as_interrupt() -> contextlib.AbstractContextManager[object]:
    """Let SIGTERM raise KeyboardInterrupt; its default action would end this process, but not its workers."""
    return signals_handled_by(signal.default_int_handler, signal.SIGTERM)


def _method() -> str:
    """Return "forkserver", or "spawn" on systems other than Linux, because their libraries may not survive a fork.

    Also return "spawn" if no server can listen because there is no folder for temporary files, or its name is too long.
    """
    if sys.platform != "linux":
        return "spawn"
    forkserver.set_forkserver_preload(LOADED)
    try:
        forkserver.ensure_running()
    except OSError:
        return "spawn"
    return "forkserver"


def load_ahead() -> None:
    """Start the server in advance, so that it loads torch while this process does other work."""
    with process_context():
        pass


def end_with_parent(at_end: signal.Signals) -> None:
    """Let SIGTERM end this process, leave Ctrl-C to its parent, and send `at_end` to it when its parent ends.

    This function is called in a process from `process_context`. The terminal sends Ctrl-C to all processes. The signal
    `at_end` arrives whatever the main thread is doing.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), at_end)

    threading.Thread(target=follow, daemon=True).start()
