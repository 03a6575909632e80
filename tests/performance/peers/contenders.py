"""Who is compared, in which set-ups, and by which command each is run."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmark.errors import ConfigError
from tests.performance.peers.work import Work

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = "tests.performance.peers"
WANTED = {"flower": 2.0, "fedlab": 2.0, "pfl": 1.9}  # times our seconds a round, at least

# What `benchmark.federated.memory` sets in our own processes; a user can set it for any.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# For everyone. Idle threads that spin take the core from whoever has work (results/benchmarks/workers.json).
COMMON = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "CUDA_VISIBLE_DEVICES": "",
    "PFL_PYTORCH_DEVICE": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONWARNINGS": "ignore",
}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One system in one set-up."""

    peer: str  # ours, flower, fedlab or pfl
    processes: int  # that train at the same time
    threads: int  # of each of them
    channels_last: bool = False
    keeps_memory: bool = False  # by the allocator's environment variables

    @property
    def name(self) -> str:
        extras = [("channels last", self.channels_last), ("memory kept", self.keeps_memory)]
        return ", ".join([f"{self.peer} {self.processes} x {self.threads}", *(name for name, has in extras if has)])

    def command(self, python: Path, work: Work, rounds: int) -> list[str]:
        """What to run; `python` is the interpreter that has the peer installed."""
        module = f"{PACKAGE}.ours" if self.peer == "ours" else f"{PACKAGE}.{self.peer}_driver"
        launch = ["-m", module]
        if self.peer == "pfl" and self.processes > 1:
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes), *launch]
        sizes = [word for name, value in asdict(work).items() for word in (f"--{name}", str(value))]
        options = ["--processes", str(self.processes), "--threads", str(self.threads), "--rounds", str(rounds)]
        return [str(python), *launch, *sizes, *options, *(["--channels-last"] if self.channels_last else [])]

    def variables(self) -> dict[str, str]:
        """Environment variables on top of the caller's."""
        kept = KEEP_FREED_MEMORY if self.keeps_memory else {}
        return {**COMMON, **kept, "OMP_NUM_THREADS": str(self.threads), "PYTHONPATH": str(ROOT)}


def ours(cores: int) -> Contender:
    """Our engine; it sets the allocator in its processes by itself."""
    return Contender(peer="ours", processes=cores, threads=1, channels_last=True)


def setups(peer: str, cores: int) -> list[Contender]:
    """The set-ups a peer is tried in: how it shares the cores, memory order, and for the first also the allocator."""
    shares = {"flower": [(cores, 1), (1, cores)], "fedlab": [(1, cores)], "pfl": [(cores, 1), (1, cores)]}[peer]
    found = []
    for processes, threads in dict.fromkeys(shares):
        for channels_last in (False, True):
            found.append(Contender(peer=peer, processes=processes, threads=threads, channels_last=channels_last))
    processes, threads = shares[0]
    best = Contender(peer=peer, processes=processes, threads=threads, channels_last=True, keeps_memory=True)
    return [*found, best]


def interpreters(given: Mapping[str, Path | None]) -> dict[str, Path]:
    """The interpreters of the peers that were given. Raises ConfigError for one that is not there, or for none."""
    found = {peer: python for peer, python in given.items() if python is not None}
    for peer, python in found.items():
        if not python.is_file():
            raise ConfigError(f"--{peer}: {python} is no file; the Python of an environment with {peer} would be right")
    if not found:
        raise ConfigError(f"no peer: at least one of {', '.join(f'--{peer}' for peer in WANTED)} would be right")
    return {"ours": Path(sys.executable), **found}


def in_turn(cores: int, peers: Sequence[str], repeats: int) -> list[Contender]:
    """Ours before, between and after the others' blocks, so that each of them has one of ours on either side."""
    mine = ours(cores)
    others = [contender for peer in peers for contender in setups(peer, cores)] * repeats
    return [mine, *(contender for other in others for contender in (other, mine))]
