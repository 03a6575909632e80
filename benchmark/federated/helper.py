"""What runs in every rank but rank 0: jobs, one after another, until rank 0 says farewell. Nothing is written here."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from benchmark.errors import FsslError, Stopped
from benchmark.experiment import Experiment
from benchmark.federated.bench import Bench
from benchmark.federated.distributed import Identity
from benchmark.federated.engines import PLAIN
from benchmark.federated.environment import Environment, prepare
from benchmark.federated.links import FAREWELL
from benchmark.federated.memory import keep_freed_memory
from benchmark.federated.ranks import Lost, Mail, Place, Ranks, join
from benchmark.federated.worker import Failure

LEAVES_IN = 1.0  # seconds after the farewell in which a job has to end that nobody waits for


def serve(
    place: Place, experiment: Experiment, data_root: Path | None, identity: Callable[[Environment], Identity]
) -> None:
    """Do jobs of the experiment until rank 0 ends. Raises ConfigError and DataError as `prepare`, which rank 0 raises
    as well; where rank 0 is gone the process ends at once, with exit code 76."""
    helper = Helper(place)
    with join(place, receive=helper.receive) as ranks:
        helper.ranks = ranks
        try:
            keep_freed_memory()
            environment = prepare(experiment, data_root)
            ranks.links[0].put(("ready", identity(environment)))
            helper.begun.wait()
            torch.set_num_threads(helper.threads)
            helper.bench.work(environment, helper.speed, ranks.links[0].put)
        except FsslError as error:
            ranks.links[0].put(("failed", Failure.of(error)))
            raise
        finally:
            helper.left.set()


class Helper:
    """What a rank does about that which comes to it from outside, whatever its main thread is at."""

    def __init__(self, place: Place) -> None:
        self.bench = Bench()
        self.ranks: Ranks | None = None  # None: not met yet
        self.begun, self.left = threading.Event(), threading.Event()
        self.threads = 1  # for each tensor operation; as at rank 0
        self.speed = PLAIN  # as at rank 0
        self._place, self._asked = place, False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def receive(self, mail: Mail) -> None:
        """In the link's thread."""
        match mail.message:
            case Lost(reason=reason):
                name = "rank 0" if self.ranks is None else str(self.ranks.names[0])
                self._leave(f"{name} has ended ({reason}); the same command goes on from the last checkpoint")
            case ("begin", threads, speed):
                self.threads, self.speed = threads, speed
                self.begun.set()
            case message:
                self.bench.put(message, mail.tensors)
                if message == FAREWELL:
                    self.begun.set()
                    if not self.left.wait(LEAVES_IN):
                        os._exit(0)  # the main thread is deep in something that nobody waits for

    def _ask(self, number: int, frame: FrameType | None) -> None:
        """Rank 0 decides, and puts the last finished round on disk before anything ends; a second signal does not
        wait for it."""
        if self._asked or self.ranks is None:
            os._exit(Stopped.exit_code)
        self._asked = True
        self.ranks.links[0].put(("asked", signal.Signals(number).name))

    def _leave(self, why: str) -> None:
        if not self.left.is_set():
            print(f"fssl: rank {self._place.rank}: {why}", file=sys.stderr, flush=True)
            os._exit(Stopped.exit_code)
