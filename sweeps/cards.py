"""Costs of local steps on GPUs, as measured on the GPU or, for unmeasured GPUs, as estimated.

`python -m tests.performance.gpu` measures a GPU and writes `results/benchmarks/gpu.json`:

    {"cards": [{
        "card": "NVIDIA H200",          as CUDA names it
        "date": "2026-12-01",
        "driver": ..., "torch": ..., "cuda": ..., "cudnn": ...,     versions
        "code": {"commit": ..., "changes": ...},
        "quick": false,                 true: the sizes are tiny, so the times are meaningless
        "complete": true,               false: the time was up before everything was measured
        "tests": {"result": "12 passed in 40 s", "seconds": 41.0, "failed": []},
        "rates": {"fp32": 14e12},       the highest FLOP/s of any row, by precision
        "rows": [{
            "setting": ..., "network": ..., "norm": ..., "precision": ...,
            "engine": "reference", "stacked" (each operation is launched) or "captured" (CUDA graphs),
            "images": "contiguous" or "channels last", "cudnn_benchmark": whether cuDNN times its algorithms,
            "jobs": clients per round, "jobs_at_once": mean number of jobs per step,
            "most": null, or the limit of jobs per step that replaced the engine's own limit,
            "ms": milliseconds per job and local step, "steps_per_second": 1000 / ms,
            "gflop": GFLOP of one job's local step, "launches": its launches by the reference engine, "peak_mib": ...,
            "note": "" or the reason why jobs train one at a time, "error": "" or the reason why there is no time
        }, ...]
    }, ...]}

For GPUs without an entry, `sweeps/cards.toml` has estimates.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmark.errors import ConfigError, DataError
from benchmark.experiment import Experiment, Precision
from benchmark.federated.devices import choice_on, devices_named, usual_choice

MEASURED = Path("benchmarks") / "gpu.json"  # in the folder of results
ESTIMATED = Path(__file__).with_name("cards.toml")
ENGINES = ("reference", "stacked", "captured")  # in the order of fewer launches
# Constants of the model for networks that were not timed: the number of kernels of a small step, and the time of each
# kernel if it is launched separately or as a part of a graph.
KERNELS, LAUNCH_MS, KERNEL_MS = 100, 0.028, 0.0035
LARGE = 50.0  # GFLOP of a step; networks of at least this size decide a GPU's rate, if there are any


@dataclass(frozen=True, kw_only=True)
class Row:
    """The cost of a local step of one network with one engine."""

    setting: str
    network: str
    norm: str
    precision: Precision
    engine: str
    images: str = "contiguous"
    cudnn_benchmark: bool = False
    jobs: int = 1
    most: int | None = None  # limit of jobs in one step, if one was set
    jobs_at_once: float = 1.0
    ms: float | None = None  # per job and local step
    steps_per_second: float | None = None
    gflop: float = 0.0
    launches: float = 0.0
    peak_mib: float = 0.0
    note: str = ""
    error: str = ""
    measured: bool = True

    @property
    def way(self) -> tuple[str, bool]:
        return self.images, self.cudnn_benchmark


@dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU and its rows. `facts` are versions, date and commit; they are empty for an estimate."""

    name: str
    rows: tuple[Row, ...]
    rates: Mapping[str, float]  # FLOP/s, by precision
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_measured(self) -> bool:
        return bool(self.facts)

    @property
    def source(self) -> str:
        """Describe the source of the times."""
        if not self.is_measured:
            return "estimates in sweeps/cards.toml, based on measurements of older versions in reports/performance.md"
        versions = f"torch {self.facts['torch']}, CUDA {self.facts['cuda']}, driver {self.facts['driver']}"
        return f"measured on {self.facts['date']}, {versions}, commit {self.facts['code']['commit']:.10}"

    def rate(self, precision: str) -> float:
        """Return the FLOP/s in this precision. If it is unknown, use tf32 for bf16, and fp32 for tf32."""
        known = [self.rates[name] for name in (precision, "tf32", "fp32") if name in self.rates]
        return known[0] if precision != "fp32" or "fp32" in self.rates else min(self.rates.values())

    def row(self, run: Experiment, engine: str) -> Row | None:
        """Return the row of the run's network in the memory format of a run, preferably with the network's norm."""
        timed = [row for row in self.rows if row.ms is not None and row.engine == engine and row.most is None]
        mine = [row for row in timed if (row.network, row.precision) == (run.model.network, run.precision)]
        mine = [row for row in mine if row.norm == run.model.norm] or mine
        choice = choice_on(self.name, run.model.network, run.model.norm, run.precision)
        chosen = [row for row in mine if row.way == (choice.images, choice.cudnn_benchmark)]
        return min(chosen or mine, key=_milliseconds, default=None)

    def step_seconds(self, run: Experiment, gflop: float, engine: str) -> tuple[float, bool]:
        """Return the seconds of one of the run's local steps, and whether its network was measured.

        The time of a step is the time of its FLOPs at the GPU's rate, plus the remaining time of a step of the
        network.
        """
        rate = self.rate(run.precision)
        row = self.row(run, engine)
        if row is None or row.ms is None:
            around = KERNELS * (LAUNCH_MS if engine == "reference" else KERNEL_MS) / 1000
        else:
            around = max(0.0, row.ms / 1000 - row.gflop * 1e9 / rate)
        return around + gflop * 1e9 / rate, row is not None and row.measured


@dataclass(frozen=True, kw_only=True)
class OnCard:
    """The hours of runs on a GPU, trained in sequence."""

    card: Card
    hours: Mapping[str, float]  # by engine
    measured: Mapping[str, bool]  # by engine: whether all networks of the runs were measured

    @property
    def engine(self) -> str:
        """Return the engine that is fastest on the GPU."""
        return min(self.hours, key=self.hours.__getitem__)

    def to_json(self) -> dict[str, Any]:
        facts = {"card": self.card.name, "engine": self.engine, "measured": self.measured[self.engine]}
        return {**facts, "hours_by_engine": dict(self.hours), "source": self.card.source}


def on_card(card: Card, counted: Iterable[tuple[Experiment, float, float]]) -> OnCard:
    """Return the hours of these runs. `counted` has each run with its local steps and FLOPs."""
    counted = list(counted)
    timed = {row.engine for row in card.rows if row.ms is not None}
    engines = [name for name in ENGINES if name in timed]
    hours, measured = dict.fromkeys(engines, 0.0), dict.fromkeys(engines, True)
    for engine in engines:
        for run, steps, flops in counted:
            of_run = engine if run.federation.C > 1 else "reference"  # a single job cannot be stacked
            seconds, known = card.step_seconds(run, flops / 1e9 / max(1.0, steps), of_run)
            hours[engine] += steps * seconds / 3600
            measured[engine] &= known
    return OnCard(card=card, hours=hours, measured=measured)


def cards(results: Path) -> dict[str, Card]:
    """Return the known GPUs by name: measured GPUs of `results`, and estimates for others. Raise DataError."""
    return {**estimated_cards(), **measured_cards(results / MEASURED)}


def card_named(text: str | None, results: Path) -> Card | None:
    """Return the GPU with a name such as "h200" or "nvidia-h200", or None if there is none. Raise DataError."""
    word = "-".join((text or "").lower().split())
    found = [card for card in cards(results).values() if word and word in _names_of(card.name)]
    measured = [card for card in found if card.is_measured]
    return next(iter(measured or found), None)


def devices_or_card(text: str | None, results: Path) -> tuple[tuple[str, ...] | None, Card | None]:
    """Return the devices that `text` names, or the GPU. Raise ConfigError if it names neither."""
    card = card_named(text, results)
    if card is not None:
        return None, card
    try:
        return devices_named(text), None
    except ConfigError as error:
        shortest = [min(_names_of(name), key=len) for name in cards(results)]
        known = ", ".join(sorted(shortest))
        raise ConfigError(f"{error}; or, to plan for a GPU in a different machine, one of {known}") from None


def _names_of(card: str) -> set[str]:
    """Return the names of a GPU, such as "nvidia-h100-80gb-hbm3", "h100-80gb-hbm3" and "h100"."""
    whole = "-".join(card.lower().split())
    words = whole.split("-")
    models = {word for word in words if word[0].isalpha() and not word.isalpha()}
    short = {word for word in models if not word.startswith("hbm")} or {whole}
    return {whole, whole.removeprefix("nvidia-"), *short}


@cache
def estimated_cards() -> dict[str, Card]:
    """Read `cards.toml`."""
    found = {}
    for group in tomllib.loads(ESTIMATED.read_text())["card"]:
        for name in group["names"]:
            rows = [row for fields in group["rows"] for row in _estimated(fields, name in group["measured_on"])]
            found[name] = Card(name=name, rows=tuple(rows), rates=group["rates"])
    return found


def _estimated(fields: Mapping[str, Any], on_this: bool) -> Iterable[Row]:
    """Yield the rows of a line of `cards.toml`."""
    common = {name: fields[name] for name in ("setting", "network", "norm", "gflop")}
    for engine in ENGINES:
        times = zip(("fp32", "tf32"), fields.get(engine, ()), strict=False)
        for precision, ms in times:
            jobs = 1 if engine == "reference" else fields["jobs"]
            measured = on_this and engine == "reference" and fields.get("measured", False)
            yield Row(
                **common,
                precision=precision,  # type: ignore[arg-type]  # the two are precisions
                engine=engine,
                jobs=fields["jobs"],
                jobs_at_once=jobs,
                ms=ms,
                steps_per_second=1000 / ms,
                measured=measured,
            )


def measured_cards(path: Path) -> dict[str, Card]:
    """Read `gpu.json` without the entries of quick trials. Raise DataError if the file is damaged."""
    found = {}
    for entry in entries(path):
        if entry.get("quick"):
            continue
        try:
            rows = tuple(Row(**row) for row in entry["rows"])
            facts = {name: value for name, value in entry.items() if name not in ("rows", "rates")}
            card = Card(name=entry["card"], rows=rows, rates=entry["rates"], facts=facts)
            _ = card.source
        except (KeyError, TypeError) as error:
            raise DataError(
                f"{path} is damaged ({error}); write it anew with python -m tests.performance.gpu"
            ) from None
        if any(row.ms is not None for row in rows):
            found[card.name] = card
    return found


def entries(path: Path) -> list[dict[str, Any]]:
    """Return the GPUs of the file, or an empty list if it does not exist. Raise DataError if it is damaged."""
    if not path.is_file():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text())["cards"]
        return list(found)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error}); write it anew with python -m tests.performance.gpu") from None


def rates_of(rows: Iterable[Row]) -> dict[str, float]:
    """Return the highest FLOP/s of any row by precision, in the usual memory format.

    Only large networks count, if there are any.
    """
    rates: dict[str, float] = {}
    timed = [row for row in rows if row.ms is not None and row.gflop]
    for precision in dict.fromkeys(row.precision for row in timed):
        usual = usual_choice(precision)
        mine = [row for row in timed if row.precision == precision]
        mine = [row for row in mine if row.way == (usual.images, usual.cudnn_benchmark)] or mine
        mine = [row for row in mine if row.gflop >= LARGE] or mine
        rates[precision] = max(row.gflop * 1e12 / _milliseconds(row) for row in mine)
    return rates


def fastest_ways(rows: Sequence[Row]) -> list[Row]:
    """Return the fastest row of each network, norm and precision that was timed in all four ways with one engine."""
    fastest = []
    for what in dict.fromkeys((row.network, row.norm, row.precision) for row in rows):
        timed = [row for row in rows if (row.network, row.norm, row.precision) == what and row.ms is not None]
        timed = [row for row in timed if row.most is None]
        compared: list[Row] = []
        for engine in ENGINES:
            mine = [row for row in timed if row.engine == engine]
            compared = mine if len({row.way for row in mine}) == 4 else compared
        if compared:
            fastest.append(min(compared, key=_milliseconds))
    return fastest


def choices_of(card: str, rows: Sequence[Row], measured: str) -> list[str]:
    """Return the lines for `benchmark/federated/choices.toml`: the choices that are faster than the default."""
    lines: list[str] = []
    for row in fastest_ways(rows):
        usual = usual_choice(row.precision)
        if row.way == (usual.images, usual.cudnn_benchmark):
            continue
        values = {"card": card, "network": row.network, "norm": row.norm, "precision": row.precision}
        values |= {"images": row.images}
        lines += ["[[choice]]", *(f'{name} = "{value}"' for name, value in values.items())]
        lines += [f"cudnn_benchmark = {str(row.cudnn_benchmark).lower()}", f'measured = "{measured}"', ""]
    return lines


def table_of(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table with one line per setting, precision and memory format, and one column per engine."""
    head = ["setting", "precision", "images, cuDNN", *(f"{engine}, ms" for engine in ENGINES)]
    head += ["jobs at once", "steps a second", "peak MiB", "GFLOP a step"]
    lines = ["| " + " | ".join(head) + " |", "| --- | --- | --- |" + " ---: |" * (len(head) - 3)]
    for what in dict.fromkeys((row.setting, row.precision, *row.way, row.most) for row in rows):
        mine = {row.engine: row for row in rows if (row.setting, row.precision, *row.way, row.most) == what}
        setting, precision, images, timed, most = what
        setting = setting if most is None else f"{setting}; up to {most} jobs at once"
        timed_rows = [row for row in mine.values() if row.ms is not None]
        cells = [setting, precision, f"{images}, {'timed' if timed else 'by rule'}"]
        cells += [_time(mine.get(engine)) for engine in ENGINES]
        if timed_rows:
            best = min(timed_rows, key=_milliseconds)
            peak = f"{best.peak_mib:,.0f}" if best.peak_mib else ""
            speed = f"{'' if best.measured else '~'}{1000 / _milliseconds(best):,.0f}"
            numbers = [f"{best.jobs_at_once:.3g}", speed, peak, f"{best.gflop:.3g}"]
        else:
            numbers = [""] * 4
        lines.append("| " + " | ".join([*cells, *numbers]) + " |")
    return lines


def _time(row: Row | None) -> str:
    if row is None:
        return ""
    if row.ms is None:
        return row.error.split(":")[0]
    return f"{row.ms:.3g}" if row.measured else f"~{row.ms:.3g}"


def _milliseconds(row: Row) -> float:
    assert row.ms is not None
    return row.ms
