"""Measure a GPU in five minutes: the CUDA tests, and the cost of a local step of the papers' networks.

    python -m tests.performance.gpu                                 writes results/benchmarks/gpu.json
    python -m tests.performance.gpu --device cpu --quick            shows that everything runs, and measures nothing

It stops by the clock (--minutes 5); what is not measured then is left out. Each time is that of whole rounds of an
engine of this project, with views, averages and copies, on random images: "reference" trains one job after another,
"stacked" trains jobs of one kind together, "captured" does so as CUDA graphs. First come all engines in float32 and
TF32, with images in the usual order in memory; then steps of all jobs of a round, where the engine takes fewer at once;
then, with the fastest engine, the other order, and cuDNN timing its algorithms. The tables that are printed are for an
issue, and for `benchmark/federated/choices.toml`. `sweeps/cards.py` says what the file has; `fssl plan --device h200`
and the performance page read it.
"""

import argparse
import contextlib
import datetime
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmark.cli.doctor import NVIDIA
from benchmark.data.datasets import DATASETS
from benchmark.errors import ConfigError
from benchmark.experiment import Data, Federation, Precision
from benchmark.federated import devices
from benchmark.federated.devices import Choice, Images, card_name, check_precision, usual_choice
from benchmark.federated.engines import Engine, ReferenceEngine
from benchmark.federated.environment import Environment
from benchmark.federated.machine import keep_freed_memory
from benchmark.federated.module import FederatedModule
from benchmark.federated.processes import CPU
from benchmark.federated.stacked.engine import StackedEngine
from benchmark.files import write_atomically
from benchmark.methods.fed_consist import FedConsist
from benchmark.methods.fedswitch import FedSwitch
from benchmark.methods.sage import SAGE
from benchmark.methods.semifl import SemiFL
from benchmark.methods.ssfl import CRL, SSFL
from benchmark.models.build import Model
from benchmark.optimizer import Optimizer
from benchmark.records.provenance import commit, hardware
from sweeps.cards import ENGINES, LARGE, MEASURED, Row, choices_of, entries, rates_of, table_of
from tests.conftest import ROOT
from tests.performance.works import Work, environment_of, work_of

FEW = 10  # clients of a round whose jobs train one after another
FEW_IMAGES = 30  # of a client in a trial
ENOUGH, MOST_ROUNDS = 0.4, 5  # seconds of timed rounds, and how many at most
SHARE_OF_TESTS = 0.3  # of the time
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32")
TESTS = ("test_cuda*.py", "test_*_cuda.py")  # of tests/federated
ALL_SURE = 0.0  # tau
WAYS = tuple(Choice(images=images, cudnn_benchmark=timed) for timed in (False, True) for images in get_args(Images))


class TimeUp(BaseException):
    """The minutes are over. No handler of errors may take it for one of its own."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A paper's network with its method and batches; a round has so many clients."""

    work: Work
    jobs: int


def setting(jobs: int, steps: int, batch: int, data: Data, model: Model, method: Any, **settings: Any) -> Setting:
    """Return a setting whose clients have the images of so many steps."""
    federation = settings.pop("federation", Federation(K=jobs, C=jobs, T=steps, rounds=1000))
    work = work_of("", batch * steps, data=data, model=model, method=method, federation=federation, **settings)
    return Setting(work=work, jobs=jobs)


CIFAR = Data(name="cifar10", N_s=100)
AT_CLIENTS = replace(CIFAR, N_s=0, label_setting="some_clients")
SETTINGS: Mapping[str, Setting] = {
    "laptop: small_cnn, batch 16": setting(
        160,
        4,
        16,
        Data(name="mnist", N_s=100),
        Model(network="small_cnn", norm="gn", norm_groups=4),
        SSFL(objective=CRL(threshold=ALL_SURE), batch_size=16, server_batch_size=16),
    ),
    "SSFL Table 2: EMNIST CNN, batch 64": setting(
        10,
        8,
        64,
        Data(name="emnist_balanced_small", N_s=470),
        Model(network="emnist_cnn", norm="none", dropout=0.25),
        SSFL(objective=CRL(threshold=ALL_SURE), batch_size=64, server_batch_size=64),
    ),
    "SemiFL Table 1: WRN-28-2, batch 10": setting(
        10,
        4,
        10,
        replace(CIFAR, N_s=50),
        Model(network="wresnet28x2", norm="sbn"),
        SemiFL(threshold=ALL_SURE, nothing_below="draw_from_all"),
        federation=Federation(K=10, C=10, rounds=1000, epochs=1),
        optimizer=Optimizer(lr=0.03, weight_decay=5e-4, clip=1.0),
    ),
    "RSCFed Table 1: its CNN, batch 64": setting(
        9,
        8,
        64,
        AT_CLIENTS,
        Model(network="rscfed_cnn", norm="none"),
        FedConsist(),
        optimizer=Optimizer(lr=0.03, clip=5.0),
    ),
    "RSCFed Table 1: ResNet-18, 64 px, batch 12": setting(
        3,
        4,
        12,
        replace(AT_CLIENTS, name="ham10000_64"),
        Model(network="resnet18_mlp", norm="bn"),
        FedConsist(batch_size=12),
        optimizer=Optimizer(lr=0.03, clip=5.0),
    ),
    "FedSwitch Table 2: ResNet-9, batch 100": setting(
        5, 3, 100, CIFAR, Model(network="resnet9", norm="none"), FedSwitch(threshold=ALL_SURE)
    ),
    "SAGE Table 1: ResNet-8x4, batch 128 + 256": setting(
        2,
        2,
        384,
        replace(CIFAR, N_s=0, label_setting="drawn_apart", labelled_share=0.34),
        Model(network="resnet8x4", norm="bn"),
        SAGE(threshold=ALL_SURE, batch_size=256, labelled_batch_size=128),
    ),
    "gpu profile: WRN-28-2 with group norm, batch 64": setting(
        10,
        4,
        64,
        CIFAR,
        Model(network="wresnet28x2", norm="gn", norm_groups=8),
        SSFL(objective=CRL(threshold=ALL_SURE), batch_size=64, server_batch_size=64),
    ),
}


def shrunk(setting: Setting) -> Setting:
    """Return the setting with two clients and a few images: it shows that everything runs."""
    experiment = setting.work.experiment
    sizes = {name: 4 for name in ("batch_size", "server_batch_size", "labelled_batch_size")}
    method = replace(
        experiment.method, **{name: size for name, size in sizes.items() if hasattr(experiment.method, name)}
    )
    federation = replace(experiment.federation, T=2) if experiment.federation.epochs is None else experiment.federation
    data = replace(experiment.data, N_s=min(experiment.data.N_s, DATASETS[experiment.data.name].num_classes))
    work = replace(
        setting.work, experiment=replace(experiment, method=method, federation=federation, data=data), images=FEW_IMAGES
    )
    return Setting(work=work, jobs=2)


def engine_of(row: Row, environment: Environment, device: str) -> Engine:
    """Return the engine that a row names, with its options."""
    if row.engine == "reference":
        return ReferenceEngine(environment, device)
    return StackedEngine(environment, device, most=row.most, capture=row.engine == "captured")


class Operations(TorchDispatchMode):
    """Counts operations that compute or copy, and FLOPs of products and convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.number = self.flops = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.number += not function.is_view
        formula = flop_registry.get(function._overloadpacket)
        self.flops += formula(*args, **(kwargs or {}), out_val=result) if formula else 0
        return result


class Bench:
    """Measures rows, one after another, and keeps them."""

    def __init__(self, device: str, quick: bool) -> None:
        self.device, self.quick = device, quick
        self.engines = ENGINES if device != CPU else ENGINES[:-1]  # a CPU has no graphs
        self.rows: list[Row] = []
        self._counts: dict[str, tuple[float, float]] = {}  # by setting: operations and GFLOP of a step

    def measure(self, label: str, engine: str, precision: Precision, way: Choice, most: int | None = None) -> None:
        """Add a row. An error of the engine or of the GPU is its text."""
        setting = shrunk(SETTINGS[label]) if self.quick else SETTINGS[label]
        experiment = setting.work.experiment
        jobs = min(setting.jobs, FEW) if engine == "reference" else setting.jobs
        federation = replace(experiment.federation, K=jobs, C=jobs)
        experiment = replace(experiment, precision=precision, federation=federation)
        row = Row(
            setting=label,
            network=experiment.model.network,
            norm=experiment.model.norm,
            precision=precision,
            engine=engine,
            images=way.images,
            cudnn_benchmark=way.cudnn_benchmark,
            jobs=jobs,
            most=most,
        )
        try:
            with mock.patch.object(devices, "choice_for", lambda *_: way), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                row = self._timed(row, replace(setting.work, experiment=experiment))
        except torch.OutOfMemoryError:
            row = replace(row, error="out of memory")
        except Exception as error:  # whatever a driver or an engine raises: the other rows are measured all the same
            row = replace(row, error=" ".join(f"{type(error).__name__}: {error}".split())[:300])
        self.rows.append(row)
        self._free()
        took = row.error if row.ms is None else f"{row.ms:.3f} ms a job and step"
        cudnn = "timed" if way.cudnn_benchmark else "by rule"
        limit = "" if most is None else f" of up to {most} jobs at once"
        print(
            f"{label}, {precision}, {way.images}, cuDNN {cudnn}, {engine}{limit}: {took}", file=sys.stderr, flush=True
        )

    def _timed(self, row: Row, work: Work) -> Row:
        environment = environment_of(work)
        engine = engine_of(row, environment, self.device)
        module = FederatedModule(environment, engine)
        if self.device != CPU:
            torch.cuda.reset_peak_memory_stats(self.device)
        self._seconds_of_round(module, 1)  # it also compares, captures, times algorithms and takes its memory
        seconds = [self._seconds_of_round(module, 2)]
        while not self.quick and sum(seconds) < ENOUGH and len(seconds) < MOST_ROUNDS:
            seconds.append(self._seconds_of_round(module, len(seconds) + 2))
        steps = module.metrics["local_steps"]
        peak = torch.cuda.max_memory_allocated(self.device) if self.device != CPU else _resident()
        operations, gflop = self._counted(row, module, len(seconds) + 2, steps)
        ms = 1000 * min(seconds) / steps
        return replace(
            row,
            ms=ms,
            steps_per_second=1000 / ms,
            jobs_at_once=_at_once(engine),
            gflop=gflop,
            launches=operations,
            peak_mib=peak / 2**20,
            note=_note(engine),
        )

    def _counted(self, row: Row, module: FederatedModule, number: int, steps: float) -> tuple[float, float]:
        """Return the operations and GFLOP of a job's step, counted once for each setting in a round of "reference"."""
        if row.setting not in self._counts and row.engine == "reference":
            with Operations() as counted:
                module.training_step(number, 0)
            self._counts[row.setting] = counted.number / steps, counted.flops / 1e9 / steps
        return self._counts.get(row.setting, (0.0, 0.0))

    def _seconds_of_round(self, module: FederatedModule, number: int) -> float:
        self._wait()
        began = time.perf_counter()
        module.training_step(number, 0)
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.device != CPU:
            torch.cuda.synchronize(self.device)

    def _free(self) -> None:
        gc.collect()
        if self.device != CPU:
            torch.cuda.empty_cache()

    def measure_all(self, labels: Sequence[str], precisions: Sequence[Precision]) -> None:
        """Measure all engines in the usual order, then with more jobs at once, then the fastest one in other orders."""
        for precision in precisions:
            for label in labels:
                for engine in self.engines:
                    self.measure(label, engine, precision, usual_choice(precision))
        for row in [row for row in self.rows if row.engine == self.engines[-1]]:
            if row.ms is not None and row.jobs_at_once < row.jobs / 2 and row.gflop < LARGE:
                self.measure(row.setting, row.engine, row.precision, usual_choice(row.precision), most=row.jobs)
        for way in WAYS:
            for label in labels:
                for precision in precisions:
                    fastest = self.fastest(label, precision)
                    if fastest is not None and way != usual_choice(precision):
                        self.measure(label, fastest, precision, way)

    def fastest(self, label: str, precision: Precision) -> str | None:
        """Return the engine that is fastest in the usual order; None if none could be timed."""
        mine = [row for row in self.rows if (row.setting, row.precision) == (label, precision)]
        mine = [row for row in mine if row.way == mine[0].way and row.most is None]
        times = {row.engine: row.ms for row in mine if row.ms is not None}
        return min(times, key=times.__getitem__) if times else None


def _resident() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux


def _at_once(engine: Engine) -> float:
    """Return how many jobs a step of the engine trained, on average."""
    if not isinstance(engine, StackedEngine) or not engine.runner.counts.ticks:
        return 1.0
    return engine.runner.counts.steps / engine.runner.counts.ticks


def _note(engine: Engine) -> str:
    """Return why jobs train one at a time, or are not recorded as a graph."""
    if not isinstance(engine, StackedEngine):
        return ""
    counts = engine.runner.counts
    alone = [f"{kind} one at a time: {reason}" for kind, reason in counts.reasons.items()]
    launched = [f"{kind} not recorded: {reason}" for kind, reason in counts.not_recorded.items()]
    return "; ".join([*alone, *launched])


def run_tests(seconds: float) -> dict[str, Any]:
    """Run the CUDA tests for so long at most. Return their last line, and the names of those that failed."""
    folder = ROOT / "tests" / "federated"
    paths = sorted({path for pattern in TESTS for path in folder.glob(pattern)})
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *map(str, paths)]
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output += f"\nthe time for the tests was up after {seconds:.0f} s"
    lines = [line for line in output.splitlines() if line.strip()]
    failed = [line.split(" - ")[0].split()[-1] for line in lines if line.startswith(("FAILED", "ERROR"))]
    result = lines[-1].strip("= ") if lines else "no output"
    return {"result": result, "seconds": time.perf_counter() - began, "failed": failed}


def facts_of(device: str, quick: bool) -> dict[str, Any]:
    """Return what a reader needs to know of the GPU and of the versions."""
    driver = NVIDIA.read_text().splitlines()[0].split(":", 1)[-1].strip() if NVIDIA.exists() else "none"
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return {
        "card": card_name(device) if device != CPU else f"a core of {hardware()['processor']}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": cudnn,
        "code": commit(),
        "quick": quick,
    }


@contextlib.contextmanager
def ending_after(seconds: float) -> Iterator[None]:
    """Raise TimeUp after so many seconds."""

    def stop(number: int, frame: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write(path: Path, entry: Mapping[str, Any]) -> None:
    """Put the GPU's entry into the file, in place of an older one of the same GPU."""
    kept = [other for other in entries(path) if other.get("card") != entry["card"]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps({"cards": [*kept, entry]}, indent=1) + "\n").encode())


def printed(entry: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines to paste into an issue."""
    versions = f"torch {entry['torch']}, CUDA {entry['cuda']}, cuDNN {entry['cudnn']}, driver {entry['driver']}"
    yield f"**{entry['card']}**, {entry['date']}: {versions}, commit {entry['code']['commit']:.10}"
    yield "with uncommitted changes" if entry["code"]["changes"] else ""
    if entry["quick"]:
        yield "quick: sizes are tiny, times mean nothing"
    if entry["tests"]:
        failed = "".join(f"; failed: {name}" for name in entry["tests"]["failed"])
        yield f"CUDA tests: {entry['tests']['result']}{failed}"
    yield "complete" if entry["complete"] else "the time was up before all was measured"
    yield ""
    yield from table_of(rows)
    notes = {f"{row.setting}, {row.engine}: {row.note or row.error}": None for row in rows if row.note or row.error}
    yield from ("", *notes)
    chosen = choices_of(
        entry["card"], rows, f"{entry['date']}, torch {entry['torch']}, commit {entry['code']['commit']:.10}"
    )
    if chosen and not entry["quick"]:
        yield from ("", "For benchmark/federated/choices.toml:", "", "```toml", *chosen, "```")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:0, cuda:1 ..., or cpu for a trial (default: cuda:0)")
    parser.add_argument("--minutes", type=float, default=5.0, help="when it stops (default: 5)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs")
    parser.add_argument("--only", default="", help="settings whose name has this text")
    parser.add_argument("--no-tests", action="store_true", help="leave the CUDA tests out")
    parser.add_argument("--json", type=Path, help=f"file (default: results/{MEASURED}; on a CPU none)")
    options = parser.parse_args(words)
    end = time.monotonic() + 60 * options.minutes
    device = {"cuda": "cuda:0"}.get(options.device, options.device)
    known = (CPU, *devices.cuda_devices())
    if device not in known:
        sys.exit(f"--device is {options.device}, which is not here; choose one of {', '.join(known)}")
    labels = [label for label in SETTINGS if options.only in label]
    if not labels:
        sys.exit(f"--only is {options.only!r}, which no setting has; the settings are {'; '.join(SETTINGS)}")
    torch.set_num_threads(1)
    keep_freed_memory()
    path = options.json or (ROOT / "results" / MEASURED if device != CPU else None)
    precisions: list[Precision] = [precision for precision in PRECISIONS if _has(device, precision)]
    entry: dict[str, Any] = {**facts_of(device, options.quick), "complete": False, "tests": {}}
    bench = Bench(device, options.quick)
    try:
        with ending_after(end - time.monotonic()):
            if not options.no_tests:
                entry["tests"] = run_tests(SHARE_OF_TESTS * 60 * options.minutes)
                print(f"CUDA tests: {entry['tests']['result']}", file=sys.stderr, flush=True)
            bench.measure_all(labels, precisions)
            entry["complete"] = True
    except (TimeUp, KeyboardInterrupt):
        print("the time is up: what was measured follows", file=sys.stderr)
    entry |= {"rates": rates_of(bench.rows), "rows": [asdict(row) for row in bench.rows]}
    for line in printed(entry, bench.rows):
        print(line)
    if path is not None:
        write(path, entry)
        print(f"written: {path}", file=sys.stderr)


def _has(device: str, precision: Precision) -> bool:
    try:
        check_precision(precision, [device])
    except ConfigError:
        return False
    return True


if __name__ == "__main__":
    main()
